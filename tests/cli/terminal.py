"""A terminal in memory: `eagle-chat` on a real pseudo terminal, what it shows kept by pyte."""

from __future__ import annotations

import codecs
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

import pexpect
import pyte

from tests.cli.conftest import ROOT, command_line
from tests.patience import PATIENCE


class _Screen(pyte.HistoryScreen):
    """Answers what the program asks the terminal."""

    reply: Callable[[str], None]

    def write_process_input(self, data: str) -> None:
        self.reply(data)


class Terminal:
    """Keys in, rows out."""

    def __init__(
        self,
        *argv: str,
        home: Path,
        size: tuple[int, int] = (80, 24),
        env: dict[str, str] | None = None,
        command: list[str] | None = None,
        encoding: str = "utf-8",
        **script: Any,
    ) -> None:
        ours = ("NO_COLOR", "PYTHONIOENCODING", "TMUX", "STY", "XTERM_VERSION")
        surroundings = {k: v for k, v in os.environ.items() if k not in ours}
        # As left behind by another terminal: the real size must win.
        surroundings |= {"LINES": "24", "COLUMNS": "41"}
        surroundings |= {"TERM": "xterm-256color", "HOME": str(home), "LANG": "C.UTF-8"} | (env or {})
        for name in ("STATE", "DATA", "CONFIG", "CACHE"):
            surroundings[f"XDG_{name}_HOME"] = str(home / name.lower())
        program, *arguments = command or command_line(*argv, **script)
        columns, rows = size
        self.child = pexpect.spawn(
            program, arguments, cwd=str(ROOT), env=surroundings, dimensions=(rows, columns), timeout=PATIENCE
        )
        self.screen = _Screen(columns, rows, history=5000)
        self.screen.reply = lambda data: self.child.send(data)
        self._stream = pyte.Stream(self.screen)
        self._decoder = codecs.getincrementaldecoder(encoding)("replace")
        self.raw = b""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.child.close(force=True)

    def pump(self, seconds: float = 0.05) -> bool:
        """Take in what the program has written; False at its end."""
        try:
            data = self.child.read_nonblocking(65536, seconds)
        except pexpect.TIMEOUT:
            return True
        except pexpect.EOF:
            return False
        self.raw += data
        self._stream.feed(self._decoder.decode(data))
        return True

    def rows(self) -> list[str]:
        """Everything that can be seen, scrolled back or not, without blanks at the ends of rows."""
        past = ["".join(line[x].data for x in range(self.screen.columns)) for line in self.screen.history.top]
        return [row.rstrip() for row in [*past, *self.screen.display]]

    def text(self) -> str:
        return "\n".join(self.rows())

    def wait(self, *words: str, count: int = 1) -> str:
        """Until each of `words` is seen `count` times; what is seen then."""
        until = time.monotonic() + PATIENCE
        while not all(self.text().count(word) >= count for word in words):
            assert time.monotonic() < until, f"{words} not seen in:\n{self.text()}"
            assert self.pump() or all(self.text().count(word) >= count for word in words), self.text()
        return self.text()

    def settle(self, seconds: float = 0.25) -> str:
        """Until nothing new was written for a while."""
        until = time.monotonic() + PATIENCE
        seen = -1
        while len(self.raw) != seen and time.monotonic() < until:
            seen = len(self.raw)
            quiet = time.monotonic() + seconds
            while time.monotonic() < quiet and self.pump():
                pass
        return self.text()

    def prompt(self) -> str:
        """Until the program asks for a line."""
        until = time.monotonic() + PATIENCE
        while True:
            self.settle(0.12)
            rows = [row for row in self.screen.display if row.strip()]
            if any(row.strip() == ">" for row in rows[-3:]):
                return self.text()
            assert time.monotonic() < until, self.text()
            assert self.child.isalive(), self.text()

    def line(self, text: str) -> None:
        """Type a line and send it."""
        self.child.send(text.encode() + b"\r")

    def keys(self, keys: str) -> None:
        self.child.send(keys)

    def resize(self, columns: int, rows: int) -> None:
        self.child.setwinsize(rows, columns)
        self.screen.resize(rows, columns)

    def end(self) -> int | None:
        """Until the program has ended; its exit code."""
        until = time.monotonic() + PATIENCE
        while self.pump() and time.monotonic() < until:
            pass
        self.child.close()
        status: int | None = self.child.exitstatus
        return status

    @property
    def cursor_visible(self) -> bool:
        return not self.screen.cursor.hidden
