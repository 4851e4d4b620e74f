"""The chat and `generate` through a server."""

from __future__ import annotations

import json

import pytest

from eagle_chat.cli.app import main
from tests.cli.conftest import Program
from tests.serving.fake_server import ANSWER, DONE, FakeServer, Response, chunk, data
from tests.serving.test_counters import page

USAGE = {"prompt_tokens": 7, "completion_tokens": 50}
COUNTED = Response([chunk("Hello"), chunk(" there"), chunk(reason="stop"), data({"choices": [], "usage": USAGE}), DONE])
PAGES = [page(10, 20, 9, 6, 3, 100), page(29, 60, 24, 15, 9, 150)]


def test_generate_answers_through_a_server(program: Program) -> None:
    with FakeServer(COUNTED, pages=list(PAGES), owner="vllm") as server:
        ran = program("--engine", server.url, "generate", "-p", "hi", "--temperature", "0.5", "--system", "be kind")
    assert (ran.code, ran.out) == (0, "Hello there\n")
    assert "50 tok" in ran.err
    assert "τ 1.79 (19 cycles)" in ran.err
    assert "accept 0.47/0.67" in ran.err
    assert "verify" not in ran.err  # a server does not tell where its time goes
    assert ran.engines == []
    assert [message["role"] for message in server.asked[0]["messages"]] == ["system", "user"]
    assert server.asked[0]["temperature"] == 0.5


def test_json_and_recordings_hold_what_the_server_told(program: Program) -> None:
    with FakeServer(COUNTED, pages=[PAGES[0], *PAGES], owner="vllm") as server:
        value = json.loads(program("generate", "--engine", server.url, "-p", "hi", "--json").out)
    assert value["usage"] == {"prompt_tokens": 7, "completion_tokens": 50}
    assert (value["text"], value["cycles"]) == ("Hello there", 19)
    assert value["accept_by_depth"] == pytest.approx([9 / 19, 6 / 9])
    with FakeServer(COUNTED, pages=list(PAGES), owner="vllm") as server:
        lines = [
            json.loads(line)
            for line in program("generate", "--engine", server.url, "-p", "hi", "--jsonl").out.splitlines()
        ]
    kinds = [line["type"] for line in lines]
    assert (kinds[0], kinds[-1]) == ("started", "finished")
    assert "reported" in kinds


def test_a_chat_survives_a_server_that_breaks_off(program: Program) -> None:
    with FakeServer(Response(ANSWER[:1], breaks=True), Response(ANSWER)) as server:
        ran = program("--engine", server.url, stdin="one\ntwo\n/tree\n/compare x\n/continue\n/model\n")
    assert ran.out == "Hel\nHello\n"
    assert "the server ended the answer in the middle" in ran.err
    # The part that came is what the next question builds on.
    assert [message["content"] for message in server.asked[1]["messages"]] == ["one", "Hel", "two"]
    assert "this server tells nothing about drafts" in ran.err
    assert "a draft head here expected" in ran.err
    assert "/tree shows what it tells" in ran.err


def test_a_refused_question_changes_nothing(program: Program) -> None:
    busy = Response([b'{"error": {"message": "slow down"}}'], 429, "application/json", {"Retry-After": "3"})
    with FakeServer(busy, Response(ANSWER)) as server:
        ran = program("--engine", server.url, stdin="one\ntwo\n")
    assert ran.out == "Hello\n"
    assert "the server is busy (slow down): ask again in 3 s" in ran.err
    assert [message["content"] for message in server.asked[1]["messages"]] == ["two"]


def test_no_server_is_one_line_and_exit_code_1(program: Program) -> None:
    ran = program("--engine", "http://127.0.0.1:9", "generate", "-p", "hi")
    assert (ran.code, ran.out) == (1, "")
    assert ran.err.splitlines()[-1].startswith("error: a server expected at http://127.0.0.1:9")
    for command in ("verify", "bench"):
        ran = program(command, "--engine", "http://127.0.0.1:9")
        assert (ran.code, "a model in this process expected" in ran.err) == (2, True)
    ran = program("--engine", "vllm", "generate", "-p", "hi")
    assert (ran.code, "eagle-chat serve --engine vllm" in ran.err) == (2, True)


def test_serve_prints_the_command_of_another_engine(capsys: pytest.CaptureFixture[str]) -> None:
    common = ["serve", "--base", "llama-3.1-8b", "--print-only", "--depth", "3", "--api-key", "secret"]
    assert main([*common, "--engine", "vllm", "--", "--max-model-len", "4096"]) == 0
    out, _ = capsys.readouterr()
    assert out.count("\n") == 1
    assert out.startswith('VLLM_API_KEY="$EAGLE_CHAT_API_KEY" vllm serve meta-llama/Llama-3.1-8B-Instruct')
    assert out.rstrip().endswith("--max-model-len 4096")
    assert "secret" not in out
    assert main([*common, "--engine", "sglang"]) == 0
    assert "sglang.launch_server" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--print-only",), "add --engine vllm"),
        (("--tensor-parallel", "2"), "add --engine vllm"),
        (("--engine", "http://127.0.0.1:9"), "found a URL"),
        (("--host", "256.0.0.1"), "a free address expected"),
    ],
)
def test_serve_says_what_is_wrong(capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], words: str) -> None:
    assert main(["serve", *arguments]) in (1, 2)
    assert words in capsys.readouterr().err.splitlines()[-1]
