"""A conversation as a file for others: Markdown, JSON, a page, or a recording that `replay` plays."""

from __future__ import annotations

import json
from pathlib import Path

from eagle_chat.cli.page import write_page
from eagle_chat.cli.text import clean
from eagle_chat.core import recording
from eagle_chat.core.conversation import Conversation
from eagle_chat.core.errors import UserError
from eagle_chat.core.files import write_atomic
from eagle_chat.core.metrics import Metrics

FORMATS = (".md", ".json", ".html", ".jsonl")


def export(conversation: Conversation, path: Path) -> None:
    """Write `conversation` in the format that the file's name ends in.

    A file that is there already is not written over: it may be anything.
    """
    path = path.expanduser()
    suffix = path.suffix.lower()
    if suffix not in FORMATS:
        raise UserError(f"a name that ends in {', '.join(FORMATS)} expected, found {path.name!r}: change the ending")
    if not conversation.turns:
        raise UserError("a conversation expected, found none yet: ask something first")
    if path.exists():
        raise UserError(f"a new file expected, found that {path} is there already: choose another name")
    if suffix == ".md":
        write_atomic(path, markdown(conversation))
    elif suffix == ".json":
        write_atomic(path, json.dumps(as_json(conversation), indent=1, ensure_ascii=True) + "\n")
    else:
        runs = [recording.Run(turn.question, turn.events) for turn in conversation.turns if turn.events]
        if not runs:
            raise UserError("recorded answers expected, found none: they are kept while /tree is on, or with --record")
        if suffix == ".html":
            write_page(path, runs)
        else:
            recording.write(path, runs)


def markdown(conversation: Conversation) -> str:
    """Questions as quotations, answers as they are (but for control characters), the figures under each."""
    parts = ["# Conversation"]
    if conversation.system is not None:
        parts.append(f"System message:\n\n{_quoted(conversation.system)}")
    for turn in conversation.turns:
        parts += [_quoted(turn.question), turn.answer]
        if turn.figures:
            parts.append(f"*{turn.target}: {turn.figures}*")
    return clean("\n\n".join(parts)) + "\n"


def _quoted(text: str) -> str:
    return "\n".join(f"> {line}".rstrip() for line in text.split("\n"))


def as_json(conversation: Conversation) -> dict[str, object]:
    """Messages in the usual form, and for each answer its figures."""
    answers = []
    for turn in conversation.turns:
        metrics = Metrics()
        for event in turn.events:
            metrics.add(event)
        known = metrics.summary() if turn.events else {"finish_reason": turn.finish_reason, "token_ids": turn.token_ids}
        answers.append({"question": turn.question, **known, "text": turn.answer, "target": turn.target})
    return {"messages": conversation.messages(), "answers": answers}
