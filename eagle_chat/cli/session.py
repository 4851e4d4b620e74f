"""A conversation as it is kept, changed, saved and taken up again. Nothing here draws or loads a model."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from eagle_chat.core.chat import Message
from eagle_chat.core.errors import UserError
from eagle_chat.core.events import Event, FinishReason, from_json, to_json
from eagle_chat.core.files import write_atomic

KIND = "eagle-chat conversation"
VERSION = 1


@dataclass
class Turn:
    """A question and what became of it. `finish_reason` None: never answered. `target`: who answered."""

    question: str
    answer: str = ""
    token_ids: list[int] = field(default_factory=list)
    finish_reason: FinishReason | None = None
    target: str = ""
    seed: int = 0
    figures: str = ""
    events: list[Event] = field(default_factory=list)

    @property
    def answered(self) -> bool:
        """Whether there is an answer that the next question can build on."""
        return bool(self.answer) or self.finish_reason == "stop"


@dataclass
class Conversation:
    """The turns so far and the system message in front of them."""

    system: str | None = None
    turns: list[Turn] = field(default_factory=list)

    def messages(self, question: str | None = None) -> list[Message]:
        """What the engine is asked; `question` comes last."""
        messages: list[Message] = []
        if self.system is not None:
            messages.append({"role": "system", "content": self.system})
        for turn in self.turns:
            messages.append({"role": "user", "content": turn.question})
            messages.append({"role": "assistant", "content": turn.answer})
        if question is not None:
            messages.append({"role": "user", "content": question})
        return messages

    def before_last(self) -> Conversation:
        """The conversation without its last turn."""
        return Conversation(self.system, self.turns[:-1])

    @property
    def last(self) -> Turn | None:
        """The newest turn."""
        return self.turns[-1] if self.turns else None


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
