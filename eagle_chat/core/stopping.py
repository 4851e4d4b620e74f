"""When an answer ends. Tokens are cut *before* they are committed, so that text, tokens, cache and counters agree."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from eagle_chat.core.detokenizer import TextSource
from eagle_chat.core.events import FinishReason


@dataclass(frozen=True)
class Cut:
    """How many of the offered tokens to keep, why the answer ends (None: it goes on), and for each kept token the text
    that became certain with it."""

    keep: int
    pieces: tuple[str, ...]
    reason: FinishReason | None

    @property
    def text(self) -> str:
        """The text the kept tokens add."""
        return "".join(self.pieces)


class Stopper:
    """Watches one answer: stop ids, stop strings, token budget, context room.

    `source`: gives the text of tokens. `budget`: tokens the answer may have. `room`: tokens the context still holds.
    The stop token itself is kept (it is part of the answer's tokens) and has no text; a stop string and what follows it
    is not shown.
    """

    def __init__(
        self, source: TextSource, stop_ids: Iterable[int], stop_strings: Sequence[str], budget: int, room: int
    ) -> None:
        self._source = source
        self._stop_ids = frozenset(stop_ids)
        self._stop_strings = tuple(stop_strings)
        self._left = min(budget, room)
        self._limit: FinishReason = "length" if budget <= room else "context"
        self._held = ""
        self._silent = False  # a stop string was found: nothing after it is shown

    def exhausted(self) -> FinishReason | None:
        """The reason why not even one more token fits, or None."""
        return self._limit if self._left <= 0 else None

    @property
    def left(self) -> int:
        """Tokens that still fit."""
        return self._left

    def offer(self, tokens: Sequence[int]) -> Cut:
        """Take tokens in order up to the first reason to end."""
        pieces: list[str] = []
        for count, token in enumerate(tokens, start=1):
            self._left -= 1
            if token in self._stop_ids:
                return Cut(count, (*pieces, self.flush()), "stop")
            piece, stopped = self._visible(self._source.feed(token))
            pieces.append(piece)
            if stopped:
                return Cut(count, tuple(pieces), "stop")
            if self._left <= 0:
                return Cut(count, (*pieces[:-1], piece + self.flush()), self._limit)
        return Cut(len(tokens), tuple(pieces), None)

    def flush(self) -> str:
        """The text still held back, at the end of the answer."""
        if self._silent:
            return ""
        piece, stopped = self._visible(self._source.flush())
        if not stopped:
            piece += self._held
        self._held = ""
        return piece

    def _visible(self, piece: str) -> tuple[str, bool]:
        """The part of held text and `piece` that no stop string can touch any more; whether one was found."""
        text = self._held + piece
        found = [at for at in (text.find(stop) for stop in self._stop_strings) if at >= 0]
        if found:
            self._held, self._silent = "", True
            return text[: min(found)], True
        keep = max((_overlap(text, stop) for stop in self._stop_strings), default=0)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep], False


def _overlap(text: str, stop: str) -> int:
    """Length of the longest end of `text` with which `stop` could begin."""
    longest = min(len(text), len(stop) - 1)
    return next((size for size in range(longest, 0, -1) if text.endswith(stop[:size])), 0)
