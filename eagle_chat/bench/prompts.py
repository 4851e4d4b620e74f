"""Questions to measure with: files in the format that MT-bench, Spec-Bench and EAGLE share, or the built-in set.

One JSON object a line: `question_id`, `category` and `turns`, a list of what the user says in turn. Other keys (such
as MT-bench's `reference`) are not needed here.
"""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eagle_chat.core.assets import asset_path
from eagle_chat.core.errors import UserError

BUILTIN = "builtin"
"""The name of the set that is shipped: 40 questions of our own in 8 categories, 16 of them of two turns."""


@dataclass(frozen=True)
class Question:
    """`id` as the file has it. `turns`: what the user says, one text a turn."""

    id: int | str
    category: str
    turns: tuple[str, ...]


def read_questions(source: str) -> list[Question]:
    """The questions of a file, or of the built-in set; UserError with file and line where one is not well formed."""
    path = asset_path("prompts", "builtin.jsonl") if source == BUILTIN else Path(source).expanduser()
    try:
        lines = path.read_text(encoding="utf-8-sig").split("\n")  # a U+2028 may stand inside JSON
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise UserError(
            f"a question file expected at {path}, found none to read ({reason}): check --questions"
        ) from error
    questions: list[Question] = []
    seen: set[int | str] = set()
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        question = _question(line, f"{path}:{number}")
        if question.id in seen:
            raise UserError(f"{path}:{number}: question_id {question.id!r} stands there twice: number the questions")
        seen.add(question.id)
        questions.append(question)
    if not questions:
        raise UserError(f"{path}: at least one question expected, found an empty file: check --questions")
    return questions


def select(questions: list[Question], limit: int | None) -> list[Question]:
    """At most `limit` questions, taken from the categories in turn so that few still speak for all; in file order."""
    if limit is None or limit >= len(questions):
        return questions
    if limit < 1:
        raise UserError(f"at least one question expected, found --limit {limit}: give a positive number")
    by_category: dict[str, list[int]] = defaultdict(list)
    for index, question in enumerate(questions):
        by_category[question.category].append(index)
    in_turn = sorted((place, indices[place]) for indices in by_category.values() for place in range(len(indices)))
    return [questions[index] for index in sorted(index for _, index in in_turn[:limit])]


def _question(line: str, where: str) -> Question:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{where}: one JSON object a line expected, found {_short(line)}: correct the line") from error
    if not isinstance(value, dict):
        raise UserError(f"{where}: a JSON object expected, found {_short(line)}: correct the line")
    number = _field(value, "question_id", where)
    if isinstance(number, bool) or not isinstance(number, int | str):
        raise UserError(f"{where}: question_id must be a number or a text, found {_short(number)}: correct it")
    category = _field(value, "category", where)
    if not isinstance(category, str) or not category.strip():
        raise UserError(f"{where}: category must be a text, found {_short(category)}: correct it")
    turns = _field(value, "turns", where)
    if not isinstance(turns, list) or not turns or not all(isinstance(turn, str) and turn.strip() for turn in turns):
        raise UserError(f"{where}: turns must be a list of texts, found {_short(turns)}: correct it")
    for turn in turns:
        try:
            turn.encode()
        except UnicodeEncodeError as error:
            raise UserError(f"{where}: text expected, found half a character in {_short(turn)}: correct it") from error
    return Question(number, category, tuple(turns))


def _field(value: dict[str, Any], name: str, where: str) -> Any:
    if name not in value:
        keys = ", ".join(map(str, value)) or "an empty object"
        raise UserError(f"{where}: the keys question_id, category and turns expected, found {_short(keys)}: add {name}")
    return value[name]


def _short(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    return repr(text if len(text) <= 40 else text[:40] + "...")
