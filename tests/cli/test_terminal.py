from __future__ import annotations

import json
import os
import re
import stat
import sys
import time
from pathlib import Path

import pytest

if sys.platform == "win32":
    pytest.skip("pseudo terminals are needed", allow_module_level=True)

from tests.cli.conftest import command_line
from tests.cli.terminal import Terminal

STATS = "tok · 20.0 tok/s · τ 2.00"


def test_every_command_in_one_conversation(tmp_path: Path) -> None:
    with Terminal(home=tmp_path, size=(110, 40), pieces=["Hello", " *wor", "ld*."]) as terminal:
        terminal.prompt()
        said = {
            "hi": "Hello world.",
            "/help": "/quit - leave (so does Ctrl-D)",
            "/set temperature=0.7 seed=3": "seed=3",
            "/set temprature=1": "did you mean temperature?",
            "/set depth=deep": "error: depth:",
            "/set base=x": "fixed once a model is loaded",
            "/system Be brief.": "system message: Be brief.",
            "/regen": "seed 1",
            "/stats": "accept depth 1",
            "/tree": "✓ accepted",
            "/tree off": "draft tree: off",
            "/tree sideways": "error: on, off or step expected",
            "/continue": "error: an answer that was cut short expected",
            "/draft off": "drafting: off",
            "/draft on": "drafting: on",
            "/compare": "same text: yes, token for token (5 tokens)",
            "/save mine": "mine.json",
            f"/export {tmp_path}/a.md": "written: ",
            f"/export {tmp_path}/a.html": "error: a page is made from a recording",
            "/undo": "taken back: hi",
            "/stop": "unknown command /stop",
            "/clear": "the conversation starts anew",
            "/load": "saved conversations: mine",
            "/load mine": "taken up: 1 questions, smollm2",
            "/model other": "other, head fake",
        }
        for line, answer in said.items():
            terminal.line(line)
            terminal.wait(answer)
            terminal.prompt()
        terminal.line("/edit")
        terminal.wait("> hi")
        terminal.settle()
        terminal.line(" again")
        terminal.wait("> hi again")
        terminal.prompt()
        terminal.line("/quit")
        assert terminal.end() == 0
        assert (tmp_path / "a.md").read_text() == (
            "# Conversation\n\nSystem message:\n\n> Be brief.\n\n> hi\n\nHello *world*.\n\n"
            "*smollm2: 5 tok · 20.0 tok/s · τ 2.00 (2 cycles) · accept 1.00/0.00 · draft 20% verify 70% · TTFT 0.42s"
            " · seed 1*\n"
        )
        check_private_files(tmp_path)


def check_private_files(home: Path) -> None:
    state = home / "state" / "eagle-chat"
    for path in (state / "history", state / "last.json", home / "data/eagle-chat/conversations/mine.json"):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600, path
    assert "+hi again" in (state / "history").read_text()
    saved = json.loads((state / "last.json").read_text())
    assert saved["ended"] is True
    assert [turn["question"] for turn in saved["turns"]] == ["hi again"]


def test_editing_completion_and_paste(tmp_path: Path) -> None:
    with Terminal(home=tmp_path, echo=True, size=(100, 30)) as terminal:
        terminal.prompt()
        terminal.keys("/reg")
        terminal.wait("answer the last question again")
        terminal.keys("\x03")
        terminal.wait("(Ctrl-D or /quit leaves)")
        terminal.prompt()
        terminal.keys("\x1b[200~two\nlines\x1b[201~")
        terminal.settle()
        terminal.keys("\x1b\rthird\r")
        terminal.wait(r"two\nlines\nthird")
        terminal.prompt()
        terminal.keys("\x1b[A")
        terminal.wait("> two", count=2)
        terminal.keys("\x03")
        terminal.prompt()
        terminal.keys("\x04")
        assert terminal.end() == 0


def test_a_long_answer_on_a_short_screen_is_there_exactly_once(tmp_path: Path) -> None:
    lines = [f"line {number:02d} of sixty" for number in range(60)]
    with Terminal(home=tmp_path, size=(60, 10), pieces=[f"{line}\n" for line in lines], delay=0.03) as terminal:
        terminal.prompt()
        terminal.line("hi")
        terminal.wait("line 30")
        assert len([row for row in terminal.screen.display if row.strip()]) <= 10
        terminal.wait("seed 0")
        text = terminal.prompt()
        assert [row for row in text.split("\n") if row.startswith("line ")] == lines
        assert terminal.cursor_visible
        assert text.count("> hi") == 1


def test_the_picture_follows_the_size_of_the_screen(tmp_path: Path) -> None:
    with Terminal(home=tmp_path, size=(140, 30), pieces=["word "], repeat=120, delay=0.06) as terminal:
        terminal.prompt()
        terminal.line("hi")
        terminal.wait("│ ✓ accepted")
        for columns, rows in ((60, 15), (250, 60), (30, 6), (100, 20)):
            terminal.resize(columns, rows)
            terminal.settle(0.02)
            time.sleep(0.3)
            terminal.pump()
            assert max(map(len, terminal.screen.display)) <= columns
        terminal.keys("\x03")
        terminal.wait("ended by cancelled")
        text = terminal.prompt()
        assert "✓ accepted" not in text
        assert terminal.cursor_visible


@pytest.mark.parametrize("presses", [1, 2])
def test_ctrl_c_stops_the_answer_keeps_it_and_the_next_turn_builds_on_it(tmp_path: Path, presses: int) -> None:
    with Terminal(home=tmp_path, pieces=["word "], repeat=300, delay=0.1) as terminal:
        terminal.prompt()
        terminal.line("go on")
        terminal.wait("word word word")
        for _ in range(presses):
            terminal.keys("\x03")
        terminal.wait("ended by cancelled", "(/continue goes on from here)")
        kept = re.findall(r"^(?:word ?)+$", terminal.prompt(), re.MULTILINE)
        assert 3 <= len(" ".join(kept).split()) < 100
        terminal.line("/continue")
        terminal.wait("now 2")
        terminal.keys("\x03")
        terminal.wait("ended by cancelled", count=2)
        terminal.prompt()
        terminal.line("/quit")
        assert terminal.end() == 0
        assert terminal.cursor_visible


def test_ctrl_c_while_loading_and_during_the_prefill(tmp_path: Path) -> None:
    with Terminal(home=tmp_path, load_delay=30.0) as terminal:
        terminal.wait("loading")
        terminal.keys("\x03")
        assert terminal.end() == 130
        assert "Traceback" not in terminal.text()
    with Terminal(home=tmp_path, pieces=["first", " second"], delay=1.0) as terminal:
        terminal.prompt()
        terminal.line("hi")
        terminal.wait("reading the prompt")
        terminal.keys("\x03")
        terminal.wait("ended by cancelled")
        text = terminal.prompt()
        assert "first" in text
        assert "second" not in text


def test_steps_are_walked_through(tmp_path: Path) -> None:
    with Terminal(home=tmp_path, size=(90, 24)) as terminal:
        terminal.prompt()
        terminal.line("/tree step")
        terminal.prompt()
        terminal.line("hi")
        for name in ("expand", "rerank", "verify", "commit"):
            terminal.wait("cycle 1 ", f"[{name}]", "Enter: next step")
            terminal.keys("\r")
        terminal.wait("cycle 2 ", "[expand]")
        terminal.keys("n")
        terminal.wait("cycle 3 ", "[expand]")
        terminal.keys("c")
        terminal.wait("Hello world.", "seed 0")
        terminal.prompt()
        terminal.line("hi")
        terminal.wait("[expand]")
        terminal.keys("\x03")
        terminal.wait("ended by cancelled")
        terminal.prompt()


@pytest.mark.parametrize("kind", ["UserError", "Unknown"])
def test_an_error_in_the_middle_leaves_a_clean_screen(tmp_path: Path, kind: str) -> None:
    with Terminal(home=tmp_path, pieces=["half an answer"], late_error=(kind, "it [b]broke[/b]")) as terminal:
        terminal.prompt()
        terminal.line("hi")
        terminal.wait("it [b]broke[/b]")
        if kind == "Unknown":
            assert terminal.end() == 1
        else:
            terminal.prompt()
        text = terminal.text()
        assert text.count("half an answer") == 1
        assert "now" not in text
        assert terminal.cursor_visible


TEXTS = ["[INST] hi [/INST]", "a[i] = b[j] and [bold]x", ":smile:", "<think>x</think> List<String>", "  a , b"]


def test_text_is_data_in_every_place(tmp_path: Path) -> None:
    for_tree = Terminal(home=tmp_path, size=(120, 50), pieces=["", *(f"{text}\n" for text in TEXTS)], accepted=0)
    with for_tree as terminal:
        terminal.prompt()
        for text in TEXTS:
            terminal.line(f"{text} ?")
            terminal.wait(f"> {text} ?")
            shown = terminal.prompt()
        for text in TEXTS:
            assert shown.count(f"\n{text}\n") == len(TEXTS), text
        terminal.line("/save [bold]x:smile:")
        terminal.wait("saved: [bold]x:smile:")
        (Path(__file__).parents[2] / "[bold]x:smile:").unlink()


@pytest.mark.parametrize(
    ("env", "encoding"),
    [
        ({"PYTHONIOENCODING": "cp1252"}, "cp1252"),
        ({"PYTHONIOENCODING": "ascii"}, "ascii"),
        ({"NO_COLOR": "1"}, "utf-8"),
        ({"TERM": "dumb"}, "utf-8"),
    ],
)
def test_poor_terminals(tmp_path: Path, env: dict[str, str], encoding: str) -> None:
    pieces = ["café", " 好\n\n", "`code`", " τ\n"]
    with Terminal(home=tmp_path, env=env, encoding=encoding, pieces=pieces, delay=0.2) as terminal:
        terminal.prompt()
        terminal.line("hi")
        if "TERM" not in env:
            terminal.wait("accepted")
        text = terminal.wait("seed 0")
        if encoding == "utf-8":
            assert "café 好" in text.replace("好 ", "好")
            assert STATS in text
        else:
            assert ("café ?" if encoding == "cp1252" else "caf? ?") in text
            assert "`code` ?" in text
            assert "tok | 20.0 tok/s | tau 2.00" in text
        colours = re.findall(rb"\x1b\[[0-9;]*m", terminal.raw)
        if "TERM" in env:
            assert colours == []
        if "NO_COLOR" in env:
            assert not any(re.search(rb"[;\[](3[0-7]|9[0-7]|38|48)[;m]", code) for code in colours)


def test_a_crash_loses_nothing(tmp_path: Path) -> None:
    with Terminal(home=tmp_path, pieces=["word "], repeat=300, delay=0.1) as terminal:
        terminal.prompt()
        terminal.line("first")
        terminal.wait("word word")
        os.kill(terminal.child.pid, 9)
    with Terminal(home=tmp_path, size=(110, 24)) as terminal:
        terminal.wait("was not ended properly", "/load last")
        terminal.prompt()
        terminal.line("/load last")
        terminal.wait("this question was not answered: first", "> first")
        terminal.settle()
        terminal.keys("\r")
        terminal.wait("Hello world.")
        terminal.prompt()


def test_typed_questions_with_the_answers_in_a_file(tmp_path: Path) -> None:
    words = " ".join(f"'{word}'" for word in command_line(pieces=["answer"]))
    command = ["/bin/sh", "-c", f"{words} > {tmp_path}/out"]
    with Terminal(home=tmp_path, command=command) as terminal:
        terminal.prompt()
        terminal.line("q")
        terminal.wait("1 tok")
        terminal.prompt()
        terminal.keys("\x04")
        assert terminal.end() == 0
    assert (tmp_path / "out").read_text() == "answer\n"
