"""A conversation saved in a file and taken up again. Nothing here draws or loads a model."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eagle_chat.core.conversation import Conversation, Turn
from eagle_chat.core.errors import UserError
from eagle_chat.core.events import from_json, to_json
from eagle_chat.core.files import write_atomic

KIND = "eagle-chat conversation"
VERSION = 1


@dataclass(frozen=True)
class Saved:
    """What a file of a conversation holds. `options`: sampling and tree by the names of the options. `pending`: a
    question that was being answered when the file was written. `ended`: whether the program was left properly."""

    conversation: Conversation
    target: str
    options: dict[str, Any]
    pending: str | None = None
    ended: bool = False


def save(path: Path, saved: Saved, with_events: bool) -> None:
    """Write the file, whole or not at all, readable by its owner only."""
    turns = []
    for turn in saved.conversation.turns:
        events = [to_json(event) for event in turn.events] if with_events else []
        turns.append({**_fields(turn), "events": events})
    value = {
        "type": KIND,
        "version": VERSION,
        "target": saved.target,
        "options": saved.options,
        "system": saved.conversation.system,
        "pending": saved.pending,
        "ended": saved.ended,
        "turns": turns,
    }
    write_atomic(path, json.dumps(value, indent=None if with_events else 1, ensure_ascii=True) + "\n")


def _fields(turn: Turn) -> dict[str, Any]:
    return {item.name: getattr(turn, item.name) for item in dataclasses.fields(turn) if item.name != "events"}


def load(path: Path) -> Saved:
    """Read a file that `save` wrote; UserError in one line where it is none."""
    path = path.expanduser()
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(
            f"a saved conversation expected at {path}, found none to read ({error.strerror}): /load lists them"
        ) from error
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path} must be a saved conversation, found no JSON in it: /load lists them") from error
    return _checked(value, path)


def _checked(value: Any, path: Path) -> Saved:
    from pydantic import TypeAdapter, ValidationError

    if not isinstance(value, dict) or value.get("type") != KIND:
        raise UserError(f"{path} must be a saved conversation, found another kind of file: /load lists them")
    if value.get("version") != VERSION:
        raise UserError(
            f"{path}: version {VERSION} of the format expected, found {value.get('version')!r}: save it anew"
        )
    try:
        turns = []
        for item in TypeAdapter(list[dict[str, Any]]).validate_python(value.get("turns")):
            events = [from_json(event) for event in item.pop("events", [])]
            turn = TypeAdapter(Turn).validate_python(item)
            turns.append(dataclasses.replace(turn, events=events))
        system = TypeAdapter(str | None).validate_python(value.get("system"))
        pending = TypeAdapter(str | None).validate_python(value.get("pending"))
        options = TypeAdapter(dict[str, Any]).validate_python(value.get("options"))
    except (ValidationError, TypeError) as error:
        found = error.errors()[0]["msg"] if isinstance(error, ValidationError) else str(error)
        raise UserError(f"{path} is not a whole conversation: {found}: save it anew") from error
    target, ended = str(value.get("target", "")), value.get("ended") is True
    return Saved(Conversation(system, turns), target, options, pending, ended)
