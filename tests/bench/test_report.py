from __future__ import annotations

import dataclasses
import io
import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from eagle_chat.bench import plot
from eagle_chat.bench.answers import answer_lines, answer_path
from eagle_chat.bench.card import bench_card
from eagle_chat.bench.files import check_writable
from eagle_chat.bench.parity import Check, Findings
from eagle_chat.bench.parity_report import parity_card, parity_document, verdict_line
from eagle_chat.bench.plot import draw
from eagle_chat.bench.prompts import Question
from eagle_chat.bench.report import as_json, document, unlike_plain
from eagle_chat.bench.runner import Measured
from eagle_chat.core.errors import UserError
from tests.bench.parts import candidate, cycle, scripted

MACHINE = {
    "cpu": "Some CPU", "device": "cpu", "device_name": None, "dtype": "float32", "threads": 2, "versions": {},
}  # fmt: skip
ODD = Question(7, "[red]odd[/red] \x1b[31m:smile:", ("a", "b"))
PLAIN_STEP, CYCLE = (0.0, 0.1, 0.0, 0.0, 0.0), (0.05, 0.1, 0.01, 0.0, 0.0)


def measured(second_token: int = 2) -> Measured:
    plain = [scripted(ODD, *(cycle(n, [n], PLAIN_STEP) for n in (1, 2)), turn=turn) for turn in (0, 1)]
    drafted = [scripted(ODD, cycle(1, [1, second_token], CYCLE, [True]), turn=turn) for turn in (0, 1)]
    return Measured([candidate("plain"), candidate()], [plain, drafted], [ODD], False, ["a [bold]note[/bold]"])


def made(**changes: Any) -> dict[str, Any]:
    return {**document(MACHINE, "target", ["head"], "builtin", [ODD], measured(), 12), **changes}


def text_of(card: Any, width: int = 110) -> str:
    out = io.StringIO()
    Console(file=out, width=width, markup=False, emoji=False, highlight=False).print(card)
    return out.getvalue()


def test_the_document_has_the_promised_keys() -> None:
    value = json.loads(as_json(made()))
    assert list(value) == ["machine", "target", "head", "heads", "questions", "runs", "partial", "notes"]
    promised = {
        "policy", "tree", "temperature", "tau", "tokens_per_second", "speedup", "speedup_interval", "c",
        "accept_lengths", "by_category",
    }  # fmt: skip
    for run in value["runs"]:
        assert promised <= set(run)
        assert set(run["c"]) == {"total", "draft", "verify", "sample", "commit", "other"}
    assert [run["label"] for run in value["runs"]] == ["plain", "dynamic 8"]
    assert value["questions"]["answered"] == 1
    assert value["runs"][1]["speedup"] == pytest.approx(0.2 / 0.16)


def test_several_heads_have_letters_in_the_card_and_names_in_the_document() -> None:
    one = measured()
    both = dataclasses.replace(
        one,
        candidates=[*one.candidates, dataclasses.replace(candidate(), head=1)],
        answers=[*one.answers, one.answers[1]],
    )
    value = document(MACHINE, "target", ["first/head", "[b]second[/b]"], "builtin", [ODD], both, 12)
    assert [(run["label"], run["head"]) for run in value["runs"]] == [
        ("plain", None),
        ("A dynamic 8", "first/head"),
        ("B dynamic 8", "[b]second[/b]"),
    ]
    assert (value["head"], len(value["heads"])) == ("first/head", 2)
    card = text_of(bench_card(value))
    assert "target + 2 heads" in card
    assert "B = [b]second[/b]" in card
    assert "B dynamic 8" in card


def test_nothing_answered_is_an_empty_but_whole_document() -> None:
    empty = Measured([candidate("plain")], [[]], [], True, [])
    value = document(MACHINE, "target", [], "builtin", [ODD], empty, 12)
    assert value["runs"] == []
    assert value["partial"]
    assert "PARTIAL" in text_of(bench_card(value))


def test_data_is_never_markup_in_the_card() -> None:
    card = text_of(bench_card(made()))
    assert "[red]odd[/red]" in card
    assert "a [bold]note[/bold]" in card
    assert ":smile:" in card
    assert "\x1b" not in card
    assert "τ" in card


def test_the_card_in_ascii() -> None:
    alpha = [{"head": "head", "temperature": 0.0, "questions": 1, "alpha": [
        {"n": 0, "rate": 0.5, "interval": [0.1, 0.9], "accepted": 2, "judged": 4}]}]  # fmt: skip
    one = {"low": 0.3, "high": 0.4, "count": 4, "accepted": 1, "confidence": 0.35, "rate": 0.25}
    depths = [{"depth": 1, "judged": 4, "accepted": 1, "confidence": 0.35, "error": 0.1, "bins": [one]}]
    calibration = [{"head": "head", "temperature": 0.0, "questions": 1, "depths": depths}]
    card = text_of(bench_card(made(alpha=alpha, calibration=calibration), ascii_only=True))
    card.encode("ascii")
    assert "0-alpha" in card
    assert "0.350" in card


def test_a_greedy_difference_in_float32_is_called_a_fault() -> None:
    value = document(MACHINE, "target", ["head"], "builtin", [ODD], measured(second_token=99), 12)
    assert unlike_plain(value) == ["dynamic 8"]
    assert "FAULT: in float32 the greedy text of dynamic 8" in text_of(bench_card(value))
    value["machine"] = {**MACHINE, "dtype": "bfloat16"}
    assert unlike_plain(value) == []


def test_answers_are_read_by_the_authors_arithmetic() -> None:
    lines = answer_lines(measured().answers[1], "target-dynamic", 12.5).splitlines()
    (value,) = [json.loads(line) for line in lines]
    assert set(value) >= {"question_id", "answer_id", "model_id", "choices", "tstamp"}
    (choice,) = value["choices"]
    assert set(choice) >= {"index", "turns", "idxs", "decoding_steps", "new_tokens", "wall_time"}
    # Their speed script: sum(new_tokens) / sum(wall_time); Spec-Bench's: mean(accept_lengths).
    assert sum(choice["new_tokens"]) / sum(choice["wall_time"]) == pytest.approx(4 / 4.0)
    assert choice["idxs"] == [0, 0]
    assert choice["decoding_steps"] == [1, 1]
    assert choice["accept_lengths"] == [2, 2]
    assert (value["question_id"], len(choice["turns"])) == (7, 2)
    assert answer_path(Path("/x/a.jsonl"), "dynamic 8") == Path("/x/a-dynamic-8.jsonl")


def test_files_that_cannot_be_written_are_told_before(tmp_path: Path) -> None:
    check_writable(tmp_path / "b.json", "--json")
    for path in (tmp_path / "none" / "b.json", tmp_path, Path("/dev/null")):
        with pytest.raises(UserError, match="--json"):
            check_writable(path, "--json")


def test_a_picture_is_drawn_from_the_document() -> None:
    pytest.importorskip("matplotlib")
    one = {"low": 0.3, "high": 0.4, "count": 4, "accepted": 1, "confidence": 0.35, "rate": 0.25}
    depths = [{"depth": 1, "judged": 4, "accepted": 1, "confidence": 0.35, "error": 0.1, "bins": [one]}]
    picture = draw(
        made(target="a_$x$", calibration=[{"head": "head", "temperature": 0.0, "questions": 1, "depths": depths}])
    )
    assert picture.startswith(b"\x89PNG")
    width, height = (int.from_bytes(picture[at : at + 4], "big") for at in (16, 20))
    assert width == pytest.approx(3 * plot.PANEL_INCHES[0] * plot.DOTS, abs=2)
    assert height == pytest.approx(plot.PANEL_INCHES[1] * plot.DOTS, abs=2)
    with pytest.raises(UserError, match="a finished run expected"):
        draw(made(runs=[]))


def test_without_matplotlib_one_line_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "matplotlib.figure", None)
    with pytest.raises(UserError, match=r"pip install 'eagle-chat\[bench\]'"):
        plot.check_matplotlib()


def test_verify_documents_say_the_worst_of_each_prompt() -> None:
    about = ("chain", {}, 0.0, "greedy")
    tie = Check(ODD, 0, *about, "tie", 5, 11, 12, 0.25, 2.0, 6.0)
    checks = [Check(ODD, 0, *about, "equal"), tie, Check(ODD, 1, *about, "equal")]
    value = parity_document(MACHINE, "target", "head", Findings(checks))
    assert [(one["question_id"], one["turn"], one["verdict"]) for one in value["prompts"]] == [
        (7, 0, "tie"),
        (7, 1, "equal"),
    ]
    assert (value["prompts"][0]["position"], value["prompts"][0]["gap_ulps"]) == (5, 2.0)
    assert value["summary"] == {"equal": 2, "tie": 1, "fault": 0}
    assert verdict_line(value) == "LOSSLESS here: 2 of 3 answers equal, 1 part at a numerical tie"
    card = text_of(parity_card(value, lambda token: f"<{token}>\x1b", ascii_only=True))
    assert "'<11>\\x1b'" in card
    assert "tie" in card
    fault = Check(ODD, 1, *about, "fault", 3)
    value = parity_document(MACHINE, "target", "head", Findings([*checks, fault], partial=True))
    assert verdict_line(value).startswith("PARTIAL (stopped early): FAULT: 1 of 4")
    assert json.loads(as_json(value))["prompts"][1]["gap_ulps"] is None
