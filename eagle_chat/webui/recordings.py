"""Recordings on the page: those that come with the program, those that people bring, and those they take away."""

from __future__ import annotations

import functools
import itertools
from pathlib import Path
from typing import Any

from eagle_chat.core import recording
from eagle_chat.core.assets import asset_path
from eagle_chat.core.errors import UserError
from eagle_chat.core.recording import Run
from eagle_chat.webui import limits
from eagle_chat.webui.explorer import html_page
from eagle_chat.webui.live import page
from eagle_chat.webui.measured import Measured
from eagle_chat.webui.session import Session, unpack

_numbers = itertools.count(1)
FIRST = "demo"
"""The recording that the page begins with: small trees."""


@functools.cache
def bundled() -> dict[str, Path]:
    """The recordings that come with the program: what each shows, and its file."""
    found: dict[str, Path] = {}
    paths = asset_path("recordings").glob("*.jsonl")
    for path in sorted(paths, key=lambda path: (path.stem != FIRST, path.stem)):
        found[_title(recording.read(path)[0])] = path
    return found


def _title(run: Run) -> str:
    """A recording in a few words, such as 'What is a lighthouse? · dynamic tree of 8 nodes · temperature 0'."""
    question = run.question or "a recorded answer"
    if len(question) > 60:
        question = question[:57].rstrip() + "…"
    started = run.started
    if started is None:
        return question
    nodes = started.tree.get("total_tokens")
    size = f" of {nodes} nodes" if nodes and started.policy != "none" else ""
    kind = "no draft" if started.policy == "none" else f"{started.policy} {'' if started.policy == 'chain' else 'tree'}"
    return f"{question} · {kind.strip()}{size} · temperature {started.sampling.get('temperature', 0):g}"


def first() -> list[Run]:
    """What the page shows before anything was asked."""
    return open_bundled(next(iter(bundled())))


def open_bundled(name: str) -> list[Run]:
    """The runs of a bundled recording. UserError where there is none of that name."""
    if name not in bundled():
        raise UserError(f"one of the page's recordings expected, found {name!r}: choose one from the list")
    return recording.read(bundled()[name])


def open_upload(path: str | None) -> list[Run]:
    """The runs of a file that somebody sent. UserError in one line where it is not a recording, or too large a one."""
    if path is None:
        raise UserError("a file expected, found none: choose a recording (.jsonl)")
    file = Path(path)
    if file.stat().st_size > limits.UPLOAD:
        raise UserError(
            f"a recording of at most {limits.UPLOAD >> 20} MiB expected, found {file.stat().st_size >> 20} MiB: "
            "record fewer answers in a file"
        )
    try:
        text = file.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError:
        raise UserError(f"{file.name} must be a recording in UTF-8, found other bytes: choose another file") from None
    return recording.parse(text, file.name)


def saved(session: Session, kind: str, measured: Measured, at_rest: list[Run]) -> dict[str, Any]:
    """What is shown, as a file to be saved: name, media type, text. `kind`: "jsonl" or "html". `measured`: what is
    known of this machine; a recording that was opened may come from another one. `at_rest`: what is shown before
    anything was asked."""
    kept = session.runs()
    runs = kept or at_rest
    if not runs:
        raise UserError("a recorded answer expected, found none: ask something or open a recording first")
    return _file(runs, kind, measured if kept and session.opened is None else None)


def saved_comparison(session: Session, kind: str, measured: Measured) -> dict[str, Any]:
    """The same of the last comparison."""
    if session.compared is None:
        raise UserError("a comparison expected, found none: press Compare first")
    return _file(unpack(session.compared), kind, measured)


def _file(runs: list[Run], kind: str, measured: Measured | None) -> dict[str, Any]:
    if kind == "html":
        text, media = html_page(page(runs, measured)), "text/html"
    else:
        text, media = "".join(recording.lines(runs)), "application/jsonl"
    # The page takes notice of what differs only, and the same may be wanted twice.
    return {"name": f"eagle-chat.{kind}", "type": media, "text": text, "number": next(_numbers)}
