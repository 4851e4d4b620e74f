"""What arrives from a server -> the events that views and figures are made from."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from eagle_chat.core.events import Committed, Event, Finished, FinishReason, Reported, Started
from eagle_chat.serving.client import COUNTED, Piece, ServerError
from eagle_chat.serving.counters import Counters

UNKNOWN_TOKEN = -1
"""Stands for a token whose id the server does not tell."""
REASONS: dict[str, FinishReason] = {"stop": "stop", "length": "length"}
Item = tuple[float, Piece | Counters | ServerError | None]
"""When something arrived, and what; None is the end."""


class Telling:
    """Makes events of what arrives."""

    def __init__(self, started: Started) -> None:
        self._started = started
        self._last = time.perf_counter()
        self._number = self._tokens = 0
        self._report = Reported()
        self._made = 0
        self._counters: Counters | None = None
        self._reason: str | None = None

    def events(self, items: Iterator[Item]) -> Iterator[Event]:
        """From `Started` to `Finished`."""
        waiting = True
        for at, item in items:
            if isinstance(item, ServerError):
                if waiting:
                    raise item
                yield self._finished("error", str(item))
                return
            if waiting:  # the server has taken the question
                yield self._started
                waiting = False
            if item is None:
                yield from self._ending(at)
                return
            if isinstance(item, Counters):
                self._counters = item
                yield from self._reported(**_of_counters(item))
            else:
                yield from self._piece(at, item)
        if waiting:
            yield self._started
        yield self._finished("cancelled", None)

    def _piece(self, at: float, piece: Piece) -> Iterator[Event]:
        if piece.ahead is not None:
            yield from self._reported(ahead=piece.ahead)
        if piece.finish_reason is not None:
            self._reason = piece.finish_reason
        usage = piece.usage or {}
        self._made = usage.get("completion_tokens") or self._made
        count = _num_tokens(piece, self._made, self._tokens)
        ids = list(piece.token_ids) if piece.token_ids else [UNKNOWN_TOKEN] * count
        if ids or piece.text:
            yield from self._reported(ahead=0)
            yield self._committed(at, ids, piece.text)
        if usage:
            told = usage.get("speculative") or {}
            own = {name: told[name] for name in COUNTED if name in told}
            yield from self._reported(prompt_tokens=usage.get("prompt_tokens"), **own)

    def _reported(self, **fields: Any) -> Iterator[Event]:
        """What is newly known, together with what was."""
        report = replace(self._report, **fields)
        if report != self._report:
            self._report = report
            yield report

    def _committed(self, at: float, ids: list[int], text: str) -> Committed:
        stage = "other" if self._number else "prefill"
        event = Committed(self._number, ids, ["target"] * len(ids), text, 0, 0, {stage: at - self._last})
        self._number, self._tokens, self._last = self._number + 1, self._tokens + len(ids), at
        return event

    def _ending(self, at: float) -> Iterator[Event]:
        missing = self._made - self._tokens
        if missing > 0:  # pieces of more than one token, which only the sum tells
            yield self._committed(self._last, [UNKNOWN_TOKEN] * missing, "")
        if self._counters is not None:
            yield from self._reported(others=self._counters.generated_tokens > self._tokens)
        reason = REASONS.get(self._reason or "stop")
        yield self._finished(reason or "error", None if reason else f"the server ended the answer: {self._reason}")

    def _finished(self, reason: FinishReason, message: str | None) -> Finished:
        return Finished(reason, "", 0, self._tokens, message)


def _num_tokens(piece: Piece, made: int, known: int) -> int:
    """How many tokens a piece has: by the server's count so far, else one where there is text."""
    if not piece.text:
        return 0
    return max(made - known, 0) if made else 1


def _of_counters(counters: Counters) -> dict[str, Any]:
    """Counters as fields of `Reported`. In a chain, the token at one place is judged where the one before was
    accepted."""
    accepted = [counters.by_position[place] for place in sorted(counters.by_position)]
    return {
        "cycles": counters.drafts,
        "draft_tokens": counters.draft_tokens,
        "accepted_tokens": counters.accepted_tokens,
        "judged_by_position": [counters.drafts, *accepted][: len(accepted)],
        "accepted_by_position": accepted,
    }
