"""Ctrl-C during long work: the step in progress is finished and saved; a second one ends at once."""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import Any, Self


class StopRequest:
    """While entered, Ctrl-C and SIGTERM set `asked`; asked a second time, they raise KeyboardInterrupt."""

    def __init__(self) -> None:
        self.asked = False
        self._previous: dict[int, Any] = {}

    def _handle(self, _signal: int, _frame: FrameType | None) -> None:
        if self.asked:
            raise KeyboardInterrupt
        self.asked = True

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():  # elsewhere Python allows no handlers
            for number in (signal.SIGINT, signal.SIGTERM):
                self._previous[number] = signal.getsignal(number)
                if self._previous[number] != signal.SIG_IGN:
                    signal.signal(number, self._handle)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)
