"""Other engines as guests in the rounds of a benchmark, and all of them in one table.

Every engine gets the same prompt ids and token budget, greedy, and is timed from outside the first step: decoding is
what comes after it, prefill apart.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

from eagle_chat.bench.figures import bootstrap
from eagle_chat.bench.peers.catalog import Skipped
from eagle_chat.bench.peers.worker import Peer, PeerError, Reading, Worker
from eagle_chat.bench.prompts import Question
from eagle_chat.bench.runner import WARM_UP_TOKENS, Answer, Measured, Stop
from eagle_chat.core.progress import Report

Readings = Mapping[int | str, Reading]
"""By question."""


@dataclass
class PeerGuest:
    """A running peer in the rounds. One that fails on the way is out: `failed` says why, and it asks no more."""

    worker: Worker
    versions: dict[str, str]
    encode: Callable[[Question], list[int]]
    max_new_tokens: int
    stop_ids: Sequence[int]
    readings: dict[int | str, Reading] = field(default_factory=dict)
    failed: str | None = None
    _pending: dict[int | str, Reading] = field(default_factory=dict)

    def warm_up(self, question: Question) -> None:
        """Twice the same question: what is compiled for the first answer is there for the second."""
        for _ in range(2):
            self._ask(question, min(WARM_UP_TOKENS, self.max_new_tokens))

    def answer(self, question: Question) -> None:
        """The first turn."""
        reading = self._ask(question, self.max_new_tokens)
        if reading is not None:
            self._pending[question.id] = reading

    def settle(self) -> None:
        """What was answered in the round counts."""
        self.readings.update(self._pending)
        self._pending.clear()

    def _ask(self, question: Question, budget: int) -> Reading | None:
        if self.failed is not None:
            return None
        try:
            return self.worker.ask(self.encode(question), budget, self.stop_ids)
        except PeerError as error:
            self.failed = str(error)
            return None


@contextmanager
def open_guests(
    found: Sequence[Peer | Skipped],
    encode: Callable[[Question], list[int]],
    max_new_tokens: int,
    stop_ids: Sequence[int],
    stop: Stop,
    report: Report,
) -> Iterator[tuple[list[PeerGuest], list[Skipped]]]:
    """Start every peer, one after another; those that do not come up are skipped with what they said."""
    guests: list[PeerGuest] = []
    skipped = [peer for peer in found if isinstance(peer, Skipped)]
    peers = [peer for peer in found if isinstance(peer, Peer)]
    with ExitStack() as running:
        for number, peer in enumerate(peers):
            report(f"starting {peer.name}", number / len(peers))
            try:
                worker = running.enter_context(Worker(peer, stop))
                versions = worker.wait_ready()
            except PeerError as error:
                skipped.append(Skipped(peer.name, str(error)))
                continue
            guests.append(PeerGuest(worker, versions, encode, max_new_tokens, stop_ids))
        yield guests, skipped


def own_readings(answers: Sequence[Answer]) -> dict[int | str, Reading]:
    """Our own answers by the same clock: the whole time from asking, and what came before the first token."""
    return {
        answer.question.id: Reading(
            answer.token_ids,
            len(answer.committed[0].token_ids),
            answer.committed[0].seconds["prefill"],
            answer.wall_seconds,
            len(answer.committed),
        )
        for answer in answers
        if answer.committed
    }


def peer_figures(
    measured: Measured, labels: Sequence[str], guests: Sequence[PeerGuest], skipped: Sequence[Skipped], seed: int
) -> dict[str, Any]:
    """`engines`, ours (by the labels of their runs) first, then the peers; `skipped`; and `best`: our fastest over the
    fastest peer. Ratios are medians over questions, with bootstrap intervals. JSON-ready."""
    plain = own_readings(measured.answers[0])
    ours: list[dict[str, Any]] = [
        {
            "name": f"eagle-chat {label}",
            "format": None,
            "versions": {},
            "peer": False,
            "readings": own_readings(answers),
        }
        for label, answers in zip(labels, measured.answers, strict=True)
    ]
    theirs: list[dict[str, Any]] = [
        {
            "name": guest.worker.peer.name,
            "format": guest.worker.peer.format,
            "versions": guest.versions,
            "peer": True,
            "readings": guest.readings,
        }
        for guest in guests
        if guest.failed is None and guest.readings
    ]
    out = [Skipped(guest.worker.peer.name, guest.failed) for guest in guests if guest.failed is not None]
    engines = [*ours, *theirs]
    best = _best(ours, theirs, seed)
    for engine in engines:
        engine |= _figures(engine.pop("readings"), plain, seed)
    return {
        "engines": engines,
        "best": best,
        "skipped": [{"name": one.name, "reason": one.reason} for one in (*skipped, *out)],
    }


def _figures(readings: Readings, plain: Readings, seed: int) -> dict[str, Any]:
    """Tokens per second of decoding and end to end; against our plain decoding; how many texts are the same."""
    chosen = list(readings.values())
    decoded = sum(len(one.token_ids) - one.first_tokens for one in chosen)
    seconds = sum(one.seconds - one.first_seconds for one in chosen)
    steps = [one.steps - 1 for one in chosen if one.steps is not None]
    spent = sum(one.seconds for one in chosen)
    return {
        "tokens_per_second": decoded / seconds if decoded else None,
        "end_to_end": sum(len(one.token_ids) for one in chosen) / spent if spent else None,
        "first_seconds": statistics.median(one.first_seconds for one in chosen) if chosen else None,
        "tau": decoded / sum(steps) if len(steps) == len(chosen) and any(steps) else None,
        **_ratio(readings, plain, seed),
        "questions": len(chosen),
        "same_text": {
            "equal": sum(int(one.token_ids == plain[number].token_ids) for number, one in readings.items()),
            "of": len(chosen),
        },
    }


def _ratio(readings: Readings, base: Readings, seed: int) -> dict[str, Any]:
    """`speedup` over `base`, question by question."""
    own, other = _speeds(readings), _speeds(base)
    ratios = [speed / other[number] for number, speed in own.items() if number in other]
    interval = bootstrap(ratios, seed)
    return {
        "speedup": statistics.median(ratios) if ratios else None,
        "speedup_interval": list(interval) if interval else None,
    }


def _speeds(readings: Readings) -> dict[int | str, float]:
    """Tokens per second after the first step, for the questions that had such."""
    spent = {number: one.seconds - one.first_seconds for number, one in readings.items()}
    return {
        number: (len(one.token_ids) - one.first_tokens) / spent[number]
        for number, one in readings.items()
        if len(one.token_ids) > one.first_tokens and spent[number] > 0.0
    }


def _best(ours: Sequence[dict[str, Any]], theirs: Sequence[dict[str, Any]], seed: int) -> dict[str, Any] | None:
    """Our fastest engine over the fastest peer; None without a peer."""
    if not theirs:
        return None
    own, other = (max(engines, key=lambda engine: _median_speed(engine["readings"])) for engines in (ours, theirs))
    return {"ours": own["name"], "theirs": other["name"], **_ratio(own["readings"], other["readings"], seed)}


def _median_speed(readings: Readings) -> float:
    return statistics.median(_speeds(readings).values() or [0.0])
