from __future__ import annotations

import json
import signal
import subprocess
import time
from pathlib import Path

import pytest

from eagle_chat.core.events import Committed, Drafted, Event, Finished, Started, Verified, from_json, to_json
from eagle_chat.core.metrics import Metrics
from tests.cli.conftest import ROOT, Program, command_line, run_process
from tests.patience import PATIENCE

STATS = "7 tok · 20.0 tok/s · τ 2.00 (3 cycles) · accept 1.00/0.00 · draft 20% verify 70% · TTFT 0.42s · seed 0"


def events(text: str) -> list[Event]:
    return [from_json(json.loads(line)) for line in text.splitlines()]


def test_the_answer_on_stdout_everything_else_on_stderr(program: Program) -> None:
    ran = program("generate", "-p", "hi", held="!", notes=["a note"], print_while_loading="from a library\n")
    assert (ran.code, ran.out) == (0, "Hello world.!\n")
    assert ran.err.splitlines() == ["loading smollm2 ...", "from a library", "note: a note", STATS]
    assert ran.engine.asked == [[{"role": "user", "content": "hi"}]]


def test_an_answer_that_ends_its_line_gets_no_second_end(program: Program) -> None:
    assert program("generate", "-p", "hi", pieces=["a\n", "b\n"]).out == "a\nb\n"
    assert program("generate", "-p", "hi", pieces=[""]).out == ""


def test_json_is_one_object_with_the_documented_keys(program: Program) -> None:
    ran = program("generate", "-p", "hi", "--json", "--seed", "7", print_while_loading="noise\n", held="!")
    answer = json.loads(ran.out)
    assert ran.out.count("\n") == 1
    assert " ".join(answer) == (
        "text token_ids finish_reason usage tau cycles accept_lengths accept_by_depth seconds "
        "tokens_per_second time_to_first_token seed config versions"
    )
    assert list(answer["usage"]) == ["prompt_tokens", "completion_tokens"]
    assert list(answer["seconds"]) == ["prefill", "draft", "verify", "sample", "commit", "other"]
    assert (answer["text"], answer["seed"], answer["finish_reason"]) == ("Hello world.!", 7, "stop")
    assert (answer["tau"], answer["cycles"], answer["accept_lengths"]) == (2.0, 3, {"1": 3})


def test_jsonl_is_the_traced_run_and_reads_back(program: Program) -> None:
    ran = program("generate", "-p", "hi", "--jsonl", held="!")
    read = events(ran.out)
    assert [type(event) for event in read] == [
        Started, Committed, *([Drafted, Verified, Committed] * 3), Finished,
    ]  # fmt: skip
    assert [json.dumps(to_json(event)) for event in read] == ran.out.splitlines()
    metrics = Metrics()
    for event in read:
        metrics.add(event)
    assert metrics.summary() == json.loads(program("generate", "-p", "hi", "--json", held="!").out)


def test_json_carries_any_text_and_stays_one_safe_line(program: Program) -> None:
    text = 'é 好 😀 \x1b[31m \x9b2J \u2028 \ud83d " \\ \x7f \x00'
    for flag in ("--json", "--jsonl"):
        ran = program("generate", "-p", "hi", flag, pieces=[text])
        assert "好 😀" in ran.out
        assert not any(sign in ran.out for sign in "\x1b\x9b\u2028\ud83d\x7f\x00")
        values = [json.loads(line) for line in ran.out.splitlines()]
        assert text in [value.get("text") for value in values]


def test_what_is_piped_in_is_appended(program: Program) -> None:
    def asked(*argv: str, stdin: str) -> str:
        return program("generate", *argv, stdin=stdin).engine.asked[0][-1]["content"]

    assert asked("-p", "Sum up:", stdin="one\n two\n\n") == "Sum up:\n\none\n two"
    assert asked("--prompt", "hi", stdin="") == "hi"
    assert asked(stdin="\ufeffonly this\n") == "only this"


def test_undecodable_bytes_reach_the_engine_as_replacements() -> None:
    ran = run_process("generate", "-p", "a\udcffb", stdin=b"c\xffd\n", echo=True)
    assert ran.returncode == 0
    assert json.loads(ran.stdout)[0]["content"] == "a\ufffdb\n\nc\ufffdd"


@pytest.mark.parametrize("argv", [(), ("-p", ""), ("-p", " \n")])
def test_no_prompt_is_a_usage_error_before_anything_is_loaded(program: Program, argv: tuple[str, ...]) -> None:
    ran = program("generate", *argv)
    assert (ran.code, ran.out, ran.engines) == (2, "", [])
    assert ran.err == "error: a prompt expected, found none: give -p TEXT, or pipe text in\n"


def test_two_formats_are_a_usage_error(program: Program) -> None:
    ran = program("generate", "-p", "q", "--json", "--jsonl")
    assert (ran.code, ran.engines) == (2, [])
    assert "give only one of the two" in ran.err


def test_an_answer_that_ends_in_an_error(program: Program) -> None:
    ran = program("generate", "-p", "q", reason="error", message="the logits were not numbers")
    assert (ran.code, ran.out) == (1, "Hello world.\n")
    assert ran.err.splitlines()[-1] == "the logits were not numbers"


def test_a_full_context_is_an_answer(program: Program) -> None:
    ran = program("generate", "-p", "q", reason="context", message="the context is full")
    assert ran.code == 0
    assert ran.err.splitlines()[-2:] == [f"{STATS} · ended by context", "the context is full"]


def test_a_head_that_does_not_fit_is_said_once(program: Program) -> None:
    ran = program("generate", "-p", "q", accepted=0, repeat=20)
    assert ran.err.splitlines()[-1].startswith("warning: this head does not seem to fit this target: ")
    assert "warning" not in program("generate", "-p", "q", accepted=1, repeat=20).err


@pytest.mark.parametrize("flag", [None, "--json", "--jsonl"])
def test_ctrl_c_keeps_what_there_is(flag: str | None) -> None:
    argv = ["generate", "-p", "q", *([flag] if flag else [])]
    process = subprocess.Popen(
        command_line(*argv, pieces=["word "], repeat=1000, delay=0.05),
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT,
    )  # fmt: skip
    assert process.stderr is not None
    assert process.stderr.readline() == "loading smollm2 ...\n"
    time.sleep(0.7)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 130
    assert "Traceback" not in err
    if flag == "--json":
        answer = json.loads(out)
        assert answer["finish_reason"] == "cancelled"
        assert answer["text"] == "word " * (answer["cycles"] + 1)
    elif flag == "--jsonl":
        last = events(out)[-1]
        assert isinstance(last, Finished)
        assert last.reason == "cancelled"
        assert last.cycles + 2 == sum(isinstance(event, Committed) for event in events(out)) + 1
    else:
        assert out.startswith("word ")
        assert out.endswith("word \n")
        assert err.rstrip().endswith("ended by cancelled")


def test_a_reader_that_leaves_is_no_trouble() -> None:
    process = subprocess.Popen(
        command_line("generate", "-p", "q", pieces=["word\n"], repeat=3000, delay=0.001),
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT,
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stderr is not None
    assert process.stdout.readline() == "word\n"
    process.stdout.close()
    assert process.wait(timeout=PATIENCE) == 1
    assert process.stderr.read() == "loading smollm2 ...\n"
    process.stderr.close()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_is_one_line() -> None:
    with open("/dev/full", "w") as full:  # noqa: PTH123
        ran = subprocess.run(
            command_line("generate", "-p", "q"),
            stdin=subprocess.DEVNULL,
            stdout=full,
            stderr=subprocess.PIPE,
            cwd=ROOT,
        )
    assert ran.returncode == 1
    assert b"Traceback" not in ran.stderr
    assert b"No space left" in ran.stderr


def test_closed_streams() -> None:
    words = " ".join(f"'{word}'" for word in command_line("generate", "-p", "q"))
    for closed in ("<&-", ">&-", "2>&-", "<&- >&- 2>&-"):
        ran = subprocess.run(["/bin/sh", "-c", f"{words} {closed}"], capture_output=True, cwd=ROOT, timeout=PATIENCE)
        assert ran.returncode == 0
        assert b"Error" not in ran.stderr
