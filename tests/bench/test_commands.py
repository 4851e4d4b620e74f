"""`eagle-chat bench` and `eagle-chat verify` on tiny models, from the command line to the files."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import eagle_chat
from eagle_chat.bench.peers.catalog import Skipped
from eagle_chat.cli import bench_peers
from eagle_chat.cli.app import main
from eagle_chat.core import engine as engine_module
from eagle_chat.core import hub, loading
from tests.bench.parts import speaker, tiny_engine
from tests.tiny import head_files, make_engine, make_head, make_target

Run = Callable[..., tuple[int, str, str]]
SHORT = ("--max-new-tokens", "8")


@pytest.fixture
def questions(tmp_path: Path) -> str:
    path = tmp_path / "questions.jsonl"
    rows = [(1, "letters", ["abc", "more"]), (2, "numbers", ["one two"])]
    lines = [json.dumps({"question_id": i, "category": c, "turns": t}) for i, c, t in rows]
    path.write_text("\n".join(lines), encoding="utf-8")
    return str(path)


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Run:
    for name in [name for name in os.environ if name.startswith("EAGLE_CHAT_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))

    def call(*argv: str, engine: Any = None) -> tuple[int, str, str]:
        loaded = engine or tiny_engine()
        monkeypatch.setattr(eagle_chat, "load_engine", lambda _: loaded, raising=False)
        code = main(argv)
        out, err = capsys.readouterr()
        return code, out, err

    return call


def test_bench_writes_card_json_plot_and_answers(run: Run, questions: str, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    files = [str(tmp_path / name) for name in ("b.json", "b.png", "a.jsonl")]
    arguments = ("--policies", "chain,dynamic", "--total-tokens", "4,8", "--temperature", "0,1", "--seed", "3")
    code, out, err = run(
        "bench", "--questions", questions, *SHORT, *arguments,
        "--json", files[0], "--plot", files[1], "--answers", files[2],
    )  # fmt: skip
    assert code == 0, err
    value = json.loads(Path(files[0]).read_text(encoding="utf-8"))
    shapes = [(one["policy"], one["temperature"], one["tree"]["total_tokens"]) for one in value["runs"]]
    each = [("plain", 1), ("chain", 4), ("dynamic", 4), ("dynamic", 8)]
    assert shapes == [(policy, temperature, nodes) for temperature in (0.0, 1.0) for policy, nodes in each]
    assert {one["seed"] for one in value["runs"]} == {3}
    assert all(one["same_text"] == {"equal": 3, "of": 3, "first_different": None} for one in value["runs"])
    assert set(value["runs"][0]["by_category"]) == {"letters", "numbers"}
    assert Path(files[1]).read_bytes().startswith(b"\x89PNG")
    written = sorted(path.name for path in tmp_path.glob("a-*.jsonl"))
    assert len(written) == 8
    assert "a-dynamic-8-temperature-1.jsonl" in written
    assert "Speed-up" in out
    assert "question 1 of 2" in err
    assert "question 1 of 2" not in out


def test_several_heads_are_compared_in_one_run(
    run: Run, questions: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = make_target()
    checkpoints = {name: head_files("eagle3", target, seed) for seed, name in enumerate("pqr")}
    monkeypatch.setattr(hub, "head_folder", lambda name, revision: Path(name))
    monkeypatch.setattr(loading, "read_checkpoint", lambda folder: checkpoints[folder.name])
    engine = make_engine(target, make_head("eagle3", target, 0))
    engine.head_name = "p"
    file = str(tmp_path / "b.json")
    drafts = ("--draft", "p", "--draft", "none", "--draft", "q", "--draft", "r", "--draft", "q")
    arguments = ("--questions", questions, *SHORT, "--policies", "chain", "--alpha", "--json", file)
    code, out, err = run("bench", *arguments, *drafts, engine=engine)
    assert code == 0, err
    value = json.loads(Path(file).read_text(encoding="utf-8"))
    assert value["heads"] == ["p", "q", "r"]
    assert [(one["policy"], one["head"]) for one in value["runs"]] == [
        ("plain", None), ("chain", "p"), ("chain", "q"), ("chain", "r"),
    ]  # fmt: skip
    assert [table["head"] for table in value["alpha"]] == ["p", "q", "r"]
    assert "C chain 4" in out


def test_peers_are_asked_in_the_same_rounds(
    run: Run, questions: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("eagle_chat.bench.peers.worker.REST_SECONDS", 0.0)
    monkeypatch.setattr(bench_peers, "find_peers", lambda *_: [speaker(), Skipped("vLLM", "not installed")])
    file = str(tmp_path / "b.json")
    code, out, err = run("bench", "--questions", questions, *SHORT, "--peers", "--json", file)
    assert code == 0, err
    value = json.loads(Path(file).read_text(encoding="utf-8"))
    assert [one["name"] for one in value["peers"]["engines"]] == [
        "eagle-chat plain", "eagle-chat dynamic 8", "speaker",
    ]  # fmt: skip
    assert [one["questions"] for one in value["peers"]["engines"]] == [2, 2, 2]
    assert value["peers"]["engines"][1]["same_text"] == {"equal": 2, "of": 2}
    assert value["peers"]["skipped"] == [{"name": "vLLM", "reason": "not installed"}]
    assert "skipped: vLLM: not installed" in out
    assert "times as fast as speaker" in out
    assert "starting speaker" in err
    for arguments in (("--temperature", "0,1"), ("--load-in-8bit",)):
        code, _, err = run("bench", "--peers", *arguments)
        assert code == 2
        assert "--peers" in err.splitlines()[-1]


def test_alpha_and_calibration_alone_skip_the_comparison(run: Run, questions: str, tmp_path: Path) -> None:
    file = str(tmp_path / "b.json")
    code, out, err = run("bench", "--questions", questions, *SHORT, "--alpha", "--calibration", "--json", file)
    assert code == 0, err
    value = json.loads(Path(file).read_text(encoding="utf-8"))
    assert value["runs"] == []
    assert value["alpha"][0]["alpha"][0]["n"] == 0
    assert value["calibration"][0]["depths"][0]["depth"] == 1
    assert "Draft confidence against acceptance" in out


def test_context_asks_prompts_of_the_lengths_given(run: Run, tmp_path: Path) -> None:
    file = str(tmp_path / "b.json")
    code, _, err = run("bench", "--context", "100,180,999", "--policies", "chain", *SHORT, "--json", file)
    assert code == 0, err
    value = json.loads(Path(file).read_text(encoding="utf-8"))
    longest = 256 - 8
    assert list(value["runs"][1]["by_category"]) == ["100", "180", str(longest)]
    prefills = [one["prefill"]["tokens"] / 3 for one in value["runs"][1]["by_category"].values()]
    for tokens, wanted in zip(prefills, (100, 180, longest), strict=True):
        assert wanted - 20 < tokens <= wanted
    assert any("instead of 999" in note for note in value["notes"])
    assert value["questions"]["lengths"] == [100, 180, 999]


def test_without_a_head_plain_decoding_is_measured_and_nothing_else_can_be(run: Run, questions: str) -> None:
    engine = make_engine(make_target())
    assert run("bench", "--questions", questions, *SHORT, engine=engine)[0] == 0
    for arguments in (("bench", "--alpha"), ("bench", "--policies", "chain"), ("verify",)):
        code, _, err = run(*arguments, "--questions", questions, engine=engine)
        assert code == 2
        assert err.count("error:") == 1


@pytest.mark.parametrize(
    "arguments",
    [
        ("--policies", "tree"),
        ("--temperature", "hot"),
        ("--temperature", "-1"),
        ("--total-tokens", "8", "--policies", "chain"),
        ("--context", "long"),
        ("--context", "3"),
        ("--limit", "0"),
        ("--max-new-tokens", "1"),
        ("--questions", "nowhere.jsonl"),
        ("--json", "no/such/folder/b.json"),
        ("--json", "b.out", "--answers", "./b.out"),
        ("--alpha", "--answers", "a.jsonl"),
        ("--alpha", "--calibration", "--answers", "a.jsonl"),
        ("--alpha", "--plot", "a.png"),
    ],
)
def test_mistakes_are_one_line_and_exit_code_2(run: Run, arguments: tuple[str, ...]) -> None:
    code, out, err = run("bench", *arguments)
    assert (code, out) == (2, "")
    assert err.splitlines()[-1].startswith("error: ")


@pytest.mark.parametrize("arguments", [("--policies", "plain"), ("--max-new-tokens", "1")])
def test_what_would_check_nothing_is_no_verification(run: Run, questions: str, arguments: tuple[str, ...]) -> None:
    code, out, err = run("verify", "--questions", questions, *arguments)
    assert (code, out) == (2, "")
    assert "error: " in err.splitlines()[-1]


def test_verify_of_questions_that_do_not_fit_fails(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "long.jsonl"
    path.write_text(json.dumps({"question_id": 7, "category": "c", "turns": ["word " * 999]}), encoding="utf-8")
    code, out, err = run("verify", "--questions", str(path), *SHORT)
    assert code == 2
    assert "NOTHING WAS CHECKED" in out
    assert "question 7 was left out" in out
    assert "LOSSLESS" not in out
    assert "fits the context expected, found none in 1" in err


def test_an_error_late_in_a_run_does_not_cost_what_was_measured(
    run: Run, questions: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The finished question is on the card and in all files; the error is told, and is the exit code."""
    pytest.importorskip("matplotlib")
    engine = tiny_engine()
    stream = engine.stream

    def fragile(messages: Any, **options: Any) -> Any:
        if messages[-1]["content"] == "one two":
            raise RuntimeError("out of memory")
        return stream(messages, **options)

    monkeypatch.setattr(engine, "stream", fragile)
    files = [str(tmp_path / name) for name in ("b.json", "a.jsonl", "b.png")]
    options = ("--json", files[0], "--answers", files[1], "--plot", files[2])
    code, out, err = run("bench", "--questions", questions, "--policies", "chain", *SHORT, *options, engine=engine)
    assert code == 1
    assert "out of memory" in err.splitlines()[-1]
    assert "PARTIAL" in out
    assert json.loads(Path(files[0]).read_text(encoding="utf-8"))["questions"]["ids"] == [1]
    assert len(list(tmp_path.glob("a-*.jsonl"))) == 2
    assert Path(files[2]).read_bytes().startswith(b"\x89PNG")


def test_options_before_the_command_and_from_variables_count(
    run: Run, questions: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EAGLE_CHAT_MAX_NEW_TOKENS", "5")
    monkeypatch.setenv("EAGLE_CHAT_TEMPERATURE", "0.5")
    file = str(tmp_path / "b.json")
    code, _, err = run("--depth", "2", "bench", "--questions", questions, "--policies", "chain", "--json", file)
    assert code == 0, err
    value = json.loads(Path(file).read_text(encoding="utf-8"))
    assert [one["temperature"] for one in value["runs"]] == [0.5, 0.5]
    assert value["runs"][1]["tree"]["depth"] == 2
    assert value["questions"]["max_new_tokens"] == 5


def interrupting(engine: Any, answers: int) -> Any:
    """Ctrl-C in the middle of answer number `answers`."""
    real, asked = engine.stream, []

    def stream(*args: Any, **more: Any) -> Any:
        asked.append(1)
        for number, event in enumerate(real(*args, **more)):
            if len(asked) == answers and number == 2:
                os.kill(os.getpid(), signal.SIGINT)
            yield event

    engine.stream = stream
    return engine


def test_ctrl_c_gives_what_was_finished_marked_partial(run: Run, questions: str, tmp_path: Path) -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)
    file = str(tmp_path / "b.json")
    common = ("--questions", questions, *SHORT, "--policies", "chain", "--json", file)
    # Two to warm up, four for the two turns of question 1, then question 2.
    code, out, _ = run("bench", *common, engine=interrupting(tiny_engine(), 8))
    value = json.loads(Path(file).read_text(encoding="utf-8"))
    assert code == 130
    assert value["partial"]
    assert value["questions"]["ids"] == [1]
    assert "PARTIAL" in out
    code, out, _ = run("verify", *common, engine=interrupting(tiny_engine(), 9))
    value = json.loads(Path(file).read_text(encoding="utf-8"))
    assert (code, value["partial"]) == (130, True)
    assert "PARTIAL" in out


def test_verify_says_lossless(run: Run, questions: str, tmp_path: Path) -> None:
    file = str(tmp_path / "v.json")
    code, out, err = run("verify", "--questions", questions, *SHORT, "--json", file)
    assert code == 0, err
    value = json.loads(Path(file).read_text(encoding="utf-8"))
    assert value["summary"] == {"equal": 24, "tie": 0, "fault": 0}
    assert [one["verdict"] for one in value["prompts"]] == ["equal"] * 3
    rules = {(one["rule"], one["policy"]) for one in value["laws"]}
    assert len(rules) == 4 + 3
    assert "LOSSLESS here: 24 of 24 answers equal" in out


def test_verify_fails_on_a_fault(run: Run, questions: str, monkeypatch: pytest.MonkeyPatch) -> None:
    real = engine_module.verify

    def wrong(tree: Any, logits: Any, position: int, config: Any, *noise: Any) -> Any:
        acceptance = real(tree, logits, position, config, *noise)
        shifted = acceptance.bonus + 1 if len(tree) > 1 else acceptance.bonus
        return dataclasses.replace(acceptance, bonus=shifted % logits.shape[-1])

    monkeypatch.setattr(engine_module, "verify", wrong)
    code, out, _ = run("verify", "--questions", questions, *SHORT, "--temperature", "0", "--policies", "chain")
    assert code == 1
    assert "FAULT" in out
    code, out, _ = run("bench", "--questions", questions, *SHORT, "--policies", "chain")
    assert code == 1
    assert "FAULT: in float32 the greedy text of chain 4" in out
