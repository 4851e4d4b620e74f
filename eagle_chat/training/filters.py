"""What is not taken into a corpus: too short, too long, seen before, going in circles, or known from a benchmark."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from eagle_chat.core.errors import UserError
from eagle_chat.training.conversations import Conversation, normalised
from eagle_chat.training.rows import data_files, text_lines, whole_text

LONGEST_PERIOD = 48
REPEATS = 3
SHORTEST_LOOP = 24
"""A loop: the last tokens repeat a period of at most `LONGEST_PERIOD` tokens `REPEATS` times, over at least so many."""


def loops(tokens: Sequence[int]) -> bool:
    """Whether a text ends by going in circles."""
    for period in range(1, min(LONGEST_PERIOD, len(tokens) // REPEATS) + 1):
        length = max(REPEATS * period, SHORTEST_LOOP)
        if length > len(tokens):
            break
        tail = tokens[-length:]
        if all(tail[at] == tail[at + period] for at in range(length - period)):
            return True
    return False


class Seen:
    """Questions met so far, whatever their case and punctuation."""

    def __init__(self, questions: Iterable[str] = ()) -> None:
        self._known = {normalised(question) for question in questions}

    def add(self, question: str) -> bool:
        """Remember a question; whether it is new."""
        name = normalised(question)
        new = name not in self._known
        self._known.add(name)
        return new

    def __contains__(self, question: str) -> bool:
        return normalised(question) in self._known

    def __len__(self) -> int:
        return len(self._known)


class Exclusion:
    """Refuses questions that share `words` words in a row with any of a list of questions.

    A listed question shorter than that is refused where it occurs whole.
    """

    def __init__(self, questions: Iterable[str] = (), words: int = 8) -> None:
        self.words = words
        self._grams: dict[int, set[tuple[str, ...]]] = {}
        self.num_questions = 0
        for question in questions:
            self.num_questions += 1
            parts = normalised(question).split()
            length = min(words, len(parts))
            if length:
                self._grams.setdefault(length, set()).update(_grams(parts, length))

    def hits(self, text: str) -> bool:
        """Whether `text` shares words in a row with a listed question."""
        parts = normalised(text).split()
        return any(gram in known for length, known in self._grams.items() for gram in _grams(parts, length))

    def refuses(self, conversation: Conversation) -> bool:
        """Whether any question of the conversation is refused."""
        return any(self.hits(turn["content"]) for turn in conversation.messages if turn["role"] == "user")


def _grams(parts: list[str], length: int) -> Iterator[tuple[str, ...]]:
    return (tuple(parts[at : at + length]) for at in range(len(parts) - length + 1))


def read_exclusion(files: Sequence[str], words: int) -> Exclusion:
    """An exclusion from question files: JSONL with `turns`, `prompt`, `question` or `messages`, or one question a line.

    UserError for a file that is not there or holds no question.
    """
    return Exclusion((text for texts in _files(files, "--exclude") for text in texts), words)


def read_questions(files: Sequence[str]) -> list[str]:
    """The first question of every row of question files, in the layouts of `read_exclusion`."""
    return [texts[0] for texts in _files(files, "--questions")]


def _files(files: Sequence[str], option: str) -> Iterator[list[str]]:
    """The questions of each row. UserError for a file without any."""
    for name in files:
        path = Path(name).expanduser()
        if not path.exists():
            raise UserError(f"a file with questions expected at {name}, found none: check {option}")
        found = False
        for file in data_files(path) if path.is_dir() else [path]:
            for texts in _questions(file):
                found = True
                yield texts
        if not found:
            raise UserError(f"questions expected in {name}, found none: check {option}")


def _questions(path: Path) -> Iterator[list[str]]:
    for line, _ in text_lines(path):
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            row = line  # plain text, one question a line
        texts = [whole_text(text) for text in row_questions(row)]
        if texts:
            yield texts


def row_questions(row: Any) -> Iterator[str]:
    """The questions of one row of a question file, whichever of the usual keys it uses."""
    if isinstance(row, str):
        yield row
    elif isinstance(row, dict):
        for key in ("turns", "prompt", "question", "instruction", "messages", "conversations"):
            value = row.get(key)
            if isinstance(value, str):
                yield value
            elif isinstance(value, list):
                yield from (text for item in value for text in _item_questions(item))


def _item_questions(item: Any) -> Iterator[str]:
    if isinstance(item, str):
        yield item
    elif isinstance(item, dict) and item.get("role", item.get("from")) in ("user", "human"):
        text = item.get("content", item.get("value"))
        if isinstance(text, str):  # parts of other kinds, such as pictures, are no question in words
            yield text
