from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import pytest

if sys.platform == "win32":
    pytest.skip("pseudo terminals are needed", allow_module_level=True)

from tests.cli.terminal import Terminal


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
