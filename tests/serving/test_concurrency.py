from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from eagle_chat.bench.concurrency import Level, Timed, quantiles, stops_paying
from eagle_chat.cli.app import main
from eagle_chat.serving.counters import Counters
from tests.serving.fake_server import DONE, FakeServer, Response, as_json, chunk

USAGE = {"prompt_tokens": 5, "completion_tokens": 4}
ANSWER = Response([chunk("a b c d"), chunk(reason="length", usage=USAGE), DONE])


def test_figures_of_a_level() -> None:
    answers = [Timed(11, 1.0, 2.0), Timed(21, 1.5, 3.5), Timed(1, 0.5, 0.5)]
    level = Level(2, answers, 4.0, Counters(10, 30, 12, {0: 8, 1: 3, 2: 1}), ["busy"])
    figures = level.figures()
    assert (figures["tokens"], figures["tokens_per_second"], figures["tau"]) == (33, 33 / 4, 2.2)
    assert figures["first_token_seconds"] == {"p50": 1.0, "p95": 1.5}
    assert figures["token_seconds"] == {"p50": 0.1, "p95": 0.1}
    assert (figures["accepted_by_position"], figures["failures"]) == ([8, 3, 1], 1)
    assert quantiles([]) is None
    assert quantiles(list(range(1, 101))) == {"p50": 50.5, "p95": 95}


@pytest.mark.parametrize(
    ("speedups", "at"),
    [([1.5, 1.2, 0.9], 4), ([1.5, 1.2, 1.1], None), ([0.9, 0.8, 0.7], 1), ([0.9, 1.2, 0.7], 4), ([1.2, 1.0, 1.0], 2)],
)
def test_where_drafting_stops_paying(speedups: list[float], at: int | None) -> None:
    levels = [{"concurrency": 2**place, "speedup": speedup} for place, speedup in enumerate(speedups)]
    assert stops_paying([{"levels": levels}, {}]) == at
    assert stops_paying([{"levels": levels[::-1]}, {}]) == at  # in whatever order they were measured
    assert stops_paying([{"levels": levels}]) is None


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = main(("bench", *arguments))
    out, err = capsys.readouterr()
    return code, out, err


def test_two_servers_are_held_against_each_other(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "b.json"
    with FakeServer(ANSWER) as first, FakeServer(ANSWER) as second:
        code, out, err = run(
            capsys, "--engine", first.url, "--plain-engine", second.url, "--concurrency", "1,3", "--limit", "4",
            "--json", str(file),
        )  # fmt: skip
    assert code == 0, err
    value: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    assert [run["server"] for run in value["runs"]] == ["drafting", "plain"]
    for one in value["runs"]:
        assert [level["concurrency"] for level in one["levels"]] == [1, 3]
        assert all((level["answers"], level["tokens"]) == (4, 16) for level in one["levels"])
    assert all(level["speedup"] > 0 for level in value["runs"][0]["levels"])
    assert len(first.asked) == len(second.asked) == 1 + 4 + 4  # one to warm up
    assert "drafting" in out


def test_refusals_are_counted_and_said(capsys: pytest.CaptureFixture[str]) -> None:
    busy = as_json({"error": {"message": "slow down"}}, 429)
    with FakeServer(ANSWER, busy, ANSWER) as server:
        code, out, _ = run(capsys, "--engine", server.url, "--concurrency", "2", "--limit", "3")
    assert code == 0
    assert "slow down" in out
    with FakeServer(ANSWER, busy) as server:
        code, _, err = run(capsys, "--engine", server.url, "--concurrency", "2", "--limit", "3")
    assert (code, "slow down" in err) == (1, True)


@pytest.mark.parametrize(
    "arguments",
    [
        ("--concurrency", "1"),
        ("--concurrency", "0", "--engine", "http://127.0.0.1:9"),
        ("--concurrency", "x", "--engine", "http://127.0.0.1:9"),
        ("--concurrency", "1", "--engine", "http://127.0.0.1:9", "--alpha"),
        ("--concurrency", "1", "--engine", "vllm"),
        ("--plain-engine", "http://127.0.0.1:9"),
        ("--engine", "http://127.0.0.1:9"),
    ],
)
def test_mistakes_are_one_line_and_exit_code_2(capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...]) -> None:
    code, out, err = run(capsys, *arguments)
    assert (code, out) == (2, "")
    assert err.splitlines()[-1].startswith("error: ")
