"""Shows one answer while it is made: events in, at most about ten pictures a second out."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Literal, Self

from rich.console import Console

from eagle_chat.cli import steps
from eagle_chat.cli.canvas import Canvas
from eagle_chat.cli.live import frame, text_width
from eagle_chat.cli.progress import Progress
from eagle_chat.cli.theme import Theme
from eagle_chat.cli.wrapping import Wrapped
from eagle_chat.core.events import Committed, Event, Finished, Reported, Started

TreeMode = Literal["on", "off", "step"]
INTERVAL = 0.1
"""Least seconds from one picture to the next."""
STEP_HINT = "Enter: next step   n: next cycle   c: go on without steps   Ctrl-C: stop"
Answer = Literal["next", "cycle", "continue", "stop"]


class Show:
    """Draws on the canvas while it is entered, and leaves nothing there. Call it with every event.

    `wait`: asks the person at a step for what comes next; None where nobody can be asked.
    """

    def __init__(
        self,
        console: Console,
        theme: Theme,
        mode: TreeMode = "on",
        title: str = "",
        wait: Callable[[], Answer] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.progress = Progress(title)
        self.mode = mode
        self.footer = title
        self.theme, self._wait, self._clock = theme, wait, clock
        self._canvas = Canvas(console)
        self._lines = Wrapped(1, theme)
        self._fed = 0
        self._drawn_at = float("-inf")
        self._stepping = mode == "step" and wait is not None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *arguments: object) -> None:
        self._canvas.__exit__(*arguments)

    def __call__(self, event: Event) -> None:
        """Take the event; draw where it is time."""
        self.progress.take(event)
        if isinstance(event, Finished):
            return
        if isinstance(event, Committed) and event.cycle > 0 and self._stepping and self.progress.cycle is not None:
            self._step_through()
        elif isinstance(event, Started | Reported | Committed) and self._clock() - self._drawn_at >= INTERVAL:
            self.draw()
            if isinstance(event, Started):  # what a server says right after it may be all for a long time
                self._drawn_at = float("-inf")

    def draw(self, step: int | None = None, footer: str = "") -> None:
        """Draw the present state."""
        width, height = self._canvas.size
        inspector = self.mode != "off"
        cycle = self.progress.cycle
        # A step shows the text as it was then: what the cycle adds joins the answer with its last step.
        earlier = step is not None and cycle is not None and step < len(steps.steps(cycle, self.theme)) - 1
        self._wrap(text_width(width, inspector), self.progress.pieces_before if earlier else None)
        rows = frame(self.progress, self._lines, width, height - 1, self.theme, inspector, step, footer or self.footer)
        self._canvas.draw(rows)
        self._drawn_at = self._clock()

    def replace(self, progress: Progress) -> None:
        """Show another state from now on, as a jump in a recording does."""
        self.progress = progress
        self._lines = Wrapped(1, self.theme)
        self._fed = 0

    def _wrap(self, width: int, count: int | None = None) -> None:
        """Make the lines those of the first `count` pieces (None: all); anew only after a jump or a change of width."""
        pieces = self.progress.pieces[self._fed : count]
        if self._lines.width != max(width, 2) or (count is not None and count < self._fed):
            self._lines = Wrapped(width, self.theme)
            pieces = self.progress.pieces[:count]
        for text, origin in pieces:
            self._lines.feed(text, origin)
        self._fed = len(self.progress.pieces) if count is None else count

    def _step_through(self) -> None:
        assert self.progress.cycle is not None and self._wait is not None
        for step in range(len(steps.steps(self.progress.cycle, self.theme))):
            self.draw(step, STEP_HINT)
            answer = self._wait()
            if answer in ("continue", "stop"):
                self._stepping = False
            if answer != "next":
                return
