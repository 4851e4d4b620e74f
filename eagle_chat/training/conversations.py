"""Conversations from files: ShareGPT, UltraChat, messages, prompt and response; JSON, JSONL, folders, hub data sets."""

from __future__ import annotations

import hashlib
import importlib.util
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from eagle_chat.core.chat import Message
from eagle_chat.core.errors import UserError, first_line
from eagle_chat.training.rows import SUFFIXES, data_files, file_rows, whole_text

ROLES = {
    "system": "system",
    "human": "user",
    "user": "user",
    "prompter": "user",
    "gpt": "assistant",
    "assistant": "assistant",
    "chatgpt": "assistant",
    "model": "assistant",
}
LAYOUTS = "messages, conversations (ShareGPT), data of strings (UltraChat), or prompt and response"


@dataclass(frozen=True)
class Conversation:
    """An optional system message, then user and assistant in turn. `ended` is false where the last answer was cut at
    a limit, so that its end marker was never written by anybody."""

    messages: tuple[Message, ...]
    ended: bool = True

    @property
    def question(self) -> str:
        """The first thing the user says; what a conversation is known by."""
        return next((message["content"] for message in self.messages if message["role"] == "user"), "")


def normalised(text: str) -> str:
    """Lower case letters and digits in words, for comparing questions."""
    return " ".join("".join(sign if sign.isalnum() else " " for sign in text.lower()).split())


def common_length(left: str, right: str) -> int:
    """Characters that two texts share in front."""
    return next((at for at, (a, b) in enumerate(zip(left, right, strict=False)) if a != b), min(len(left), len(right)))


def question_hash(conversation: Conversation) -> str:
    """A stable name for the question, whatever its case and punctuation."""
    return hashlib.sha256(normalised(conversation.question).encode()).hexdigest()


@dataclass
class Left:
    """What reading left out, by reason: whole conversations, and the ends of conversations."""

    refused: Counter[str] = field(default_factory=Counter)
    shortened: Counter[str] = field(default_factory=Counter)


def read(sources: Iterable[str], split: str = "train", left: Left | None = None) -> Iterator[Conversation]:
    """Every conversation of the sources, in order. `left` counts what is left out, such as rows without a question and
    an answer.

    UserError for a source that is not there, a file that cannot be read, or rows of no known layout.
    """
    for source in sources:
        found = False
        for row, where in _rows(source, split):
            found = True
            conversation = from_row(row, where, left)
            if conversation is not None:
                yield conversation
        if not found:
            raise UserError(f"conversations expected in {source}, found none: check the path")


def from_row(row: Any, where: str, left: Left | None = None) -> Conversation | None:
    """The conversation of one row, cut before the first turn that cannot be used; None where nothing is left."""
    left = Left() if left is None else left
    turns = list(_turns(row, where))
    system: list[Message] = []
    if turns and turns[0][0] == "system" and isinstance(turns[0][1], str):
        system = [Message(role="system", content=whole_text(turns.pop(0)[1]))]
    kept: list[Message] = []
    fault = None
    for role, content in turns:
        fault = _fault(role, content, "assistant" if len(kept) % 2 else "user")
        if fault is not None:
            break
        kept.append(Message(role=role, content=whole_text(content)))
    if len(kept) % 2:
        kept.pop()
    if not kept:
        left.refused[fault or "no answer"] += 1
        return None
    if fault is not None:
        left.shortened[fault] += 1
    return Conversation((*system, *kept), fault is not None or bool(row.get("ended", True)))


def with_system(conversation: Conversation, system: str | None) -> Conversation:
    """The conversation with this system message, where there is one and it has none of its own."""
    if system is None or conversation.messages[0]["role"] == "system":
        return conversation
    return Conversation((Message(role="system", content=system), *conversation.messages), conversation.ended)


def _fault(role: str, content: Any, expected: str) -> str | None:
    """Why a turn cannot be used, where a turn of the role `expected` is due; None where it can."""
    if role not in ROLES.values():
        return "unknown role"
    if not isinstance(content, str):
        return "turn that is not text"
    if role == "system":
        return "second system message"
    if role != expected:
        return "turn out of order"
    return None if content.strip() else "empty turn"


def _turns(row: Any, where: str) -> Iterator[tuple[str, Any]]:
    """Role and content of every turn; a content that is no text is for others to judge."""
    if isinstance(row, dict):
        for key in ("messages", "conversations"):
            if isinstance(row.get(key), list):
                yield from (_turn(item, where) for item in row[key])
                return
        texts = row.get("data")
        if isinstance(texts, list) and (not texts or any(isinstance(text, str) for text in texts)):
            yield from (("user" if at % 2 == 0 else "assistant", text) for at, text in enumerate(texts))
            return
        if isinstance(row.get("prompt"), str) and "response" in row:
            yield from (("user", row["prompt"]), ("assistant", row["response"]))
            return
    found = ", ".join(row) if isinstance(row, dict) else type(row).__name__
    raise UserError(f"{where}: a conversation with {LAYOUTS} expected, found {found}: convert it first")


def _turn(item: Any, where: str) -> tuple[str, Any]:
    role = item.get("role", item.get("from")) if isinstance(item, dict) else None
    if not isinstance(role, str):
        raise UserError(f"{where}: turns with role and content (or from and value) expected, found {item!r}"[:300])
    return ROLES.get(role, role), item.get("content", item.get("value"))


def _rows(source: str, split: str) -> Iterator[tuple[Any, str]]:
    path = Path(source).expanduser()
    if path.is_dir():
        for file in data_files(path):
            yield from file_rows(file)
    elif path.is_file():
        yield from file_rows(path)
    elif source.count("/") == 1 and not source.startswith((".", "/", "~")) and not source.endswith(SUFFIXES):
        yield from ((row, source) for row in _hub_rows(source, split))
    else:
        raise UserError(f"a file, a folder or a hub data set (owner/name) expected, found none at {source}: check it")


def _hub_rows(name: str, split: str) -> Iterator[Any]:
    if importlib.util.find_spec("datasets") is None:
        raise UserError(
            f"the package datasets expected for the hub data set {name}, found none: pip install 'eagle-chat[train]'"
        )
    import datasets

    try:
        yield from datasets.load_dataset(name, split=split, streaming=True)
    except (OSError, ValueError, datasets.exceptions.DatasetsError) as error:
        reason = first_line(error)
        raise UserError(f"the hub data set {name} could not be read ({reason}): check name, split, network") from error
