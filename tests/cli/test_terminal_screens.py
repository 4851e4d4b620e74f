from __future__ import annotations

import re
import sys
import time
from pathlib import Path

import pytest

if sys.platform == "win32":
    pytest.skip("pseudo terminals are needed", allow_module_level=True)

from tests.cli.terminal import Terminal

STATS = "tok · 20.0 tok/s · τ 2.00"


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


def test_what_stands_above_outlives_a_narrower_screen_that_cuts_rows_off(tmp_path: Path) -> None:
    """As xterm does it, and the terminal of these tests."""
    env = {"XTERM_VERSION": "XTerm(390)"}
    with Terminal(home=tmp_path, size=(140, 40), env=env, pieces=["word "], repeat=40, delay=0.06) as terminal:
        terminal.prompt()
        terminal.line("the first question")
        text = terminal.wait("TTFT")
        assert "verify 70% · TTFT" in text  # in one row: COLUMNS is not believed
        terminal.prompt()
        terminal.line("/tree step")
        terminal.wait("draft tree: step")
        terminal.prompt()
        terminal.line("the second question")
        terminal.wait("Enter: next step")
        terminal.settle()  # it waits: nothing is drawn for the old width any more
        terminal.resize(60, 40)
        terminal.keys("\r")
        terminal.wait("[rerank]")
        text = terminal.settle()
        assert text.count("> the first question") == 1
        assert text.count("> the second question") == 1
        assert text.count("verify > commit") == 1


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
