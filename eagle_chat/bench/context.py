"""Prompts of given lengths, to see how τ, c and speed change with the context."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING

from eagle_chat.bench.prompts import BUILTIN, Question, read_questions
from eagle_chat.core.errors import UserError

if TYPE_CHECKING:
    from eagle_chat.core.engine import Engine

PER_LENGTH = 3
"""Questions of each length: each begins at another place of the filler, so that their answers differ."""
TASK = "Continue this collection of exercises with new ones:"


def context_questions(
    engine: Engine, lengths: Sequence[int], max_new_tokens: int, system: str | None
) -> tuple[list[Question], list[str]]:
    """Questions whose prompts have about (never more than) the given tokens, with the length as category, and notes.

    The filler is the built-in questions, one after another and again from the start where they do not suffice.
    UserError where a length is too short for any question or leaves the target's context no room for an answer.
    """
    texts = [turn for question in read_questions(BUILTIN) for turn in question.turns]
    limit = engine.target.context_limit
    questions: list[Question] = []
    notes: list[str] = []
    for length in lengths:
        fitting = length
        if length + max_new_tokens > limit:
            fitting = limit - max_new_tokens
            notes.append(f"the target's context holds {limit} tokens: a prompt of {fitting} used instead of {length}")
        if any(question.category == str(fitting) for question in questions):
            continue
        for number in range(PER_LENGTH):
            words = _words(texts, number * len(texts) // PER_LENGTH, fitting)
            text = _longest(engine, words, fitting, system)
            questions.append(Question(f"{fitting}-{number + 1}", str(fitting), (text,)))
    return questions, notes


def _words(texts: Sequence[str], start: int, count: int) -> list[str]:
    """At least `count` words (a word has at least one token) from text number `start` on, round and round."""
    words: list[str] = []
    for text in itertools.islice(itertools.cycle(texts), start, None):
        words.extend(text.split(" "))
        if len(words) >= count:
            return words
    return words


def _longest(engine: Engine, words: Sequence[str], limit: int, system: str | None) -> str:
    """The longest beginning of the filler whose rendered prompt has at most `limit` tokens, by bisection."""
    low, high = 0, len(words)
    while low < high:
        middle = (low + high + 1) // 2
        if _size(engine, _text(words[:middle]), system) <= limit:
            low = middle
        else:
            high = middle - 1
    if low == 0:
        shortest = _size(engine, _text(words[:1]), system)
        raise UserError(f"contexts of at least {shortest} tokens expected, found {limit}: change --context")
    return _text(words[:low])


def _text(words: Sequence[str]) -> str:
    return f"{TASK}\n\n{' '.join(words)}"


def _size(engine: Engine, text: str, system: str | None) -> int:
    before = [] if system is None else [{"role": "system", "content": system}]
    return len(engine.chat.encode([*before, {"role": "user", "content": text}]))  # type: ignore[list-item]  # messages
