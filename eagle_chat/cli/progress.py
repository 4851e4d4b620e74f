"""What the events of one answer have told so far, in the form that views read."""

from __future__ import annotations

from dataclasses import dataclass

from eagle_chat.cli.text import Cleaner
from eagle_chat.core.events import Committed, Drafted, Event, Finished, Started, Verified
from eagle_chat.core.metrics import Metrics


@dataclass(frozen=True)
class Cycle:
    """One whole cycle, traced."""

    drafted: Drafted
    verified: Verified
    committed: Committed


class Progress:
    """Takes events in order. A step costs the same in a long answer as in a short one."""

    def __init__(self, title: str = "") -> None:
        self.title = title
        self.metrics = Metrics()
        self.taus: list[int] = []
        self.cycle: Cycle | None = None
        self._drafted: Drafted | None = None
        self._verified: Verified | None = None
        self.pieces: list[tuple[str, str]] = []
        """The visible text in order: (text, "draft" | "target")."""
        self.pieces_before = 0
        """How many of the pieces are older than the last cycle."""
        self._cleaner = Cleaner()

    def take(self, event: Event) -> None:
        """The next event of the run."""
        self.metrics.add(event)
        if isinstance(event, Drafted):
            self._drafted, self._verified = event, None
        elif isinstance(event, Verified):
            self._verified = event
        elif isinstance(event, Committed):
            self._take_committed(event)
        elif isinstance(event, Finished):
            self._add(event.text, "target")
            self._show(self._cleaner.flush(), "target")

    def _take_committed(self, event: Committed) -> None:
        self.pieces_before = len(self.pieces)
        # Told apart by the token that a piece came with, not by looking for its text.
        if event.pieces:
            for piece, origin in zip(event.pieces, event.origins, strict=True):
                self._add(piece, origin)
        else:
            self._add(event.text, "target")
        if event.cycle == 0 or event.num_nodes == 0:  # a server's pieces are no cycles
            return
        self.taus.append(len(event.token_ids))
        if self._drafted and self._verified and self._drafted.cycle == self._verified.cycle == event.cycle:
            self.cycle = Cycle(self._drafted, self._verified, event)

    def _add(self, piece: str, origin: str) -> None:
        self._show(self._cleaner.feed(piece), origin)

    def _show(self, text: str, origin: str) -> None:
        if text:
            self.pieces.append((text, origin))

    @property
    def started(self) -> Started | None:
        """The run's header."""
        return self.metrics.started

    @property
    def text(self) -> str:
        """The answer so far, safe to show."""
        return "".join(piece for piece, _ in self.pieces)
