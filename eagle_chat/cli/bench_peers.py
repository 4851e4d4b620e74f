"""`eagle-chat bench --peers`: other engines, invited into the same rounds."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from eagle_chat.bench.peers.catalog import Skipped, find_peers
from eagle_chat.bench.peers.compare import PeerGuest, open_guests
from eagle_chat.bench.plan import Candidate
from eagle_chat.bench.prompts import Question
from eagle_chat.bench.runner import Asker, Measured, Stopped, measure
from eagle_chat.cli.options import Settings
from eagle_chat.core.errors import UserError
from eagle_chat.core.progress import Report

if TYPE_CHECKING:
    from eagle_chat.core.chat import Message

PEER_POLICIES = ("plain", "dynamic")
"""What of ours is compared with other engines where nothing else is said."""
FIRST_TURNS = "with --peers only the first turn of each question is asked"
OTHER_WEIGHTS = "the formats differ: weights of fewer bits are read faster, and the texts may differ"
ROOM = 64
"""Positions beyond prompt and answer, for drafts."""


def check_peers(settings: Settings, temperatures: Sequence[float]) -> None:
    """UserError for what cannot be compared with others."""
    if tuple(temperatures) != (0.0,):
        raise UserError("temperature 0 alone expected with --peers (others draw other noise), found more: change it")
    if settings.load.load_in_8bit or settings.load.load_in_4bit:
        raise UserError("unquantised weights expected with --peers, found --load-in-8bit or --load-in-4bit: drop it")


def first_turns(questions: Sequence[Question]) -> list[Question]:
    """The questions without what follows in the same conversation."""
    return [dataclasses.replace(question, turns=question.turns[:1]) for question in questions]


def measure_with_peers(
    askers: Sequence[Asker],
    candidates: Sequence[Candidate],
    questions: Sequence[Question],
    settings: Settings,
    drafts: Sequence[str],
    report: Report,
) -> tuple[Measured, tuple[list[PeerGuest], list[Skipped]]]:
    """The comparison with every peer in its rounds; the peers with what they answered, and those left out."""
    budget = candidates[0].sampling.max_new_tokens
    try:
        with _invited(askers[0], settings, questions, budget, drafts, report) as met:
            return measure(askers, candidates, questions, report, met[0]), met
    except Stopped:  # while they started
        return Measured(list(candidates), [[] for _ in candidates], [], True, []), ([], [])


@contextmanager
def _invited(
    asker: Asker,
    settings: Settings,
    questions: Sequence[Question],
    max_new_tokens: int,
    drafts: Sequence[str],
    report: Report,
) -> Iterator[tuple[list[PeerGuest], list[Skipped]]]:
    """The peers, running, with the prompts that `asker` would use."""
    engine = asker.engine

    def encode(question: Question) -> list[int]:
        said: list[Message] = [*asker.begin().messages, {"role": "user", "content": question.turns[0]}]
        return engine.chat.encode(said)

    longest = max(len(encode(question)) for question in questions) + max_new_tokens + ROOM
    head = next((draft for draft in drafts if draft != "none"), settings.load.draft)
    load = dataclasses.replace(settings.load, draft=head)
    found = find_peers(engine, load, min(longest, engine.target.context_limit), report)
    with open_guests(found, encode, max_new_tokens, sorted(engine.chat.stop_ids), asker.stop, report) as opened:
        yield opened
