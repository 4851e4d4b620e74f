"""Conversations from files: ShareGPT, UltraChat, messages, prompt and response; JSON, JSONL, folders, hub data sets."""

from __future__ import annotations

import gzip
import hashlib
import importlib.util
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from eagle_chat.core.chat import Message
from eagle_chat.core.errors import UserError, first_line

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
SUFFIXES = (".jsonl", ".json", ".jsonl.gz", ".json.gz")
LAYOUTS = "messages, conversations (ShareGPT), data (UltraChat), or prompt and response"


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


def read(sources: Iterable[str], split: str = "train") -> Iterator[Conversation]:
    """Every conversation of the sources, in order. Rows without a question and an answer are left out.

    UserError for a source that is not there, a file that cannot be read, or rows of no known layout.
    """
    for source in sources:
        found = False
        for row, where in _rows(source, split):
            found = True
            conversation = from_row(row, where)
            if conversation is not None:
                yield conversation
        if not found:
            raise UserError(f"conversations expected in {source}, found none: check the path")


def from_row(row: Any, where: str) -> Conversation | None:
    """The conversation of one row, cut before the first turn that is out of order; None where nothing is left."""
    turns = list(_turns(row, where))
    system = [{"role": "system", "content": turns.pop(0)[1]}] if turns and turns[0][0] == "system" else []
    kept: list[Message] = []
    for at, (role, content) in enumerate(turns):
        if role != ("user", "assistant")[at % 2] or not content.strip():
            break
        kept.append({"role": role, "content": content})
    complete = len(kept) == len(turns)
    if len(kept) % 2:
        kept.pop()
    if not kept:
        return None
    ended = bool(row.get("ended", True)) if complete else True
    return Conversation((*(Message(role="system", content=text["content"]) for text in system), *kept), ended)


def _turns(row: Any, where: str) -> Iterator[tuple[str, str]]:
    if isinstance(row, dict):
        for key in ("messages", "conversations"):
            if isinstance(row.get(key), list):
                yield from (_turn(item, where) for item in row[key])
                return
        if isinstance(row.get("data"), list):
            yield from (("user" if at % 2 == 0 else "assistant", str(text)) for at, text in enumerate(row["data"]))
            return
        if isinstance(row.get("prompt"), str) and isinstance(row.get("response"), str):
            yield from (("user", row["prompt"]), ("assistant", row["response"]))
            return
    found = ", ".join(row) if isinstance(row, dict) else type(row).__name__
    raise UserError(f"{where}: a conversation with {LAYOUTS} expected, found {found}: convert it first")


def _turn(item: Any, where: str) -> tuple[str, str]:
    role = item.get("role", item.get("from")) if isinstance(item, dict) else None
    text = item.get("content", item.get("value")) if isinstance(item, dict) else None
    if not isinstance(role, str) or not isinstance(text, str):
        raise UserError(f"{where}: turns with role and content (or from and value) expected, found {item!r}"[:300])
    return ROLES.get(role, role), text


def _rows(source: str, split: str) -> Iterator[tuple[Any, str]]:
    path = Path(source).expanduser()
    if path.is_dir():
        for file in data_files(path):
            yield from _file_rows(file)
    elif path.is_file():
        yield from _file_rows(path)
    elif source.count("/") == 1 and not source.startswith((".", "/", "~")) and not source.endswith(SUFFIXES):
        yield from ((row, source) for row in _hub_rows(source, split))
    else:
        raise UserError(f"a file, a folder or a hub data set (owner/name) expected, found none at {source}: check it")


def data_files(folder: Path) -> list[Path]:
    """The data files of a folder in order: its JSONL shards where it has any, otherwise its JSON files."""
    shards = sorted(path for path in folder.iterdir() if path.name.endswith((".jsonl", ".jsonl.gz")))
    return shards or sorted(path for path in folder.iterdir() if path.name.endswith((".json", ".json.gz")))


def _file_rows(path: Path) -> Iterator[tuple[Any, str]]:
    try:
        with _opened(path) as file:
            if path.name.removesuffix(".gz").endswith(".jsonl"):
                for number, line in enumerate(file, 1):
                    if line.strip():
                        yield json.loads(line), f"{path}:{number}"
                return
            yield from _json_rows(file.read(), path)
    except (OSError, ValueError) as error:
        raise UserError(f"{path} cannot be read as JSON ({error}): correct or leave it out") from error


def _opened(path: Path) -> TextIO:
    if path.suffix == ".gz":
        return gzip.open(path, "rt", encoding="utf-8-sig")
    return path.open(encoding="utf-8-sig")


def _json_rows(text: str, path: Path) -> Iterator[tuple[Any, str]]:
    """Rows of a JSON array; files named .json that hold one object a line are common, and read as such."""
    try:
        rows = json.loads(text)
    except ValueError:
        rows = [json.loads(line) for line in text.split("\n") if line.strip()]
    yield from ((row, f"{path}[{at}]") for at, row in enumerate(rows if isinstance(rows, list) else [rows]))


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
