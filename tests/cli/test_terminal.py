from __future__ import annotations

import json
import stat
import sys
from pathlib import Path

import pytest

if sys.platform == "win32":
    pytest.skip("pseudo terminals are needed", allow_module_level=True)

from tests.cli.conftest import command_line
from tests.cli.terminal import Terminal


def test_every_command_in_one_conversation(tmp_path: Path) -> None:
    with Terminal(home=tmp_path, size=(200, 40), pieces=["Hello", " *wor", "ld*."]) as terminal:
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
            "/save mine": "conversations/mine",
            f"/export {tmp_path}/a.md": "written: ",
            f"/export {tmp_path}/a.html": "a.html",
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
