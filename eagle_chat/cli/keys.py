"""Single keys from the keyboard, while no line is being edited."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import ClassVar

from prompt_toolkit.input import Input, create_input
from prompt_toolkit.keys import Keys

POLL = 0.02
"""Seconds between looks at the keyboard; works on every platform, and costs next to nothing."""


class Keyboard:
    """Keys by name: a character, or "enter", "left", "right", "escape", "interrupt", "end"."""

    _NAMES: ClassVar[dict[str, str]] = {
        Keys.ControlM: "enter", Keys.ControlJ: "enter", Keys.Left: "left", Keys.Right: "right", Keys.Escape: "escape",
        Keys.ControlC: "interrupt", Keys.ControlD: "end", Keys.Up: "up", Keys.Down: "down",
    }  # fmt: skip

    def __init__(self, source: Input) -> None:
        self._source = source
        self._waiting: list[str] = []

    def poll(self) -> str | None:
        """A key that was pressed, or None."""
        if not self._waiting:
            pressed = self._source.read_keys() or self._source.flush_keys()
            self._waiting = [self._NAMES.get(key.key, key.data) for key in pressed]
        if not self._waiting and self._source.closed:
            return "end"
        return self._waiting.pop(0) if self._waiting else None

    def wait(self, seconds: float | None = None) -> str | None:
        """The next key; None after `seconds` without one."""
        until = None if seconds is None else time.monotonic() + seconds
        while (key := self.poll()) is None:
            left = POLL if until is None else min(until - time.monotonic(), POLL)
            if left <= 0:
                return None
            time.sleep(left)
        return key


@contextmanager
def keyboard() -> Iterator[Keyboard]:
    """The terminal's keyboard, key by key. Ctrl-C arrives as "interrupt"."""
    source = create_input()
    with source.raw_mode():
        yield Keyboard(source)


@contextmanager
def unseen() -> Iterator[None]:
    """Inside, what is typed is not shown: it would end up in the middle of a picture. Ctrl-C works as ever."""
    if sys.platform == "win32" or not sys.stdin.isatty():
        yield
        return
    import termios

    try:
        terminal = sys.stdin.fileno()
        before = termios.tcgetattr(terminal)
    except (OSError, ValueError, termios.error):
        yield
        return
    silent = [*before]
    silent[3] &= ~termios.ECHO
    termios.tcsetattr(terminal, termios.TCSANOW, silent)
    try:
        yield
    finally:
        termios.tcsetattr(terminal, termios.TCSANOW, before)
