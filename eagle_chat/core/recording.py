"""Recordings: runs as JSON lines that any view can play again.

The first line is a header with the format's version. Then for each answer a `question` line and the events of the
run, from `started` to `finished`. The output of `generate --jsonl`, which has neither header nor question, is read too.
Reading is strict: what a view could stumble over is refused with the number of the line.
"""

from __future__ import annotations

import itertools
import json
import math
import os
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

from eagle_chat.core.errors import UserError
from eagle_chat.core.events import (
    FORMAT_VERSION,
    Committed,
    Drafted,
    Event,
    Finished,
    Started,
    Verified,
    from_json,
    to_json,
)
from eagle_chat.core.files import write_atomic

ADVICE = "give a file saved by the page, by --record or by generate --jsonl"
LARGEST_FILE = 512 * 1024 * 1024
"""Bytes; a longer file is not a recording of a chat."""
DEEPEST, LARGEST_TREE = 128, 100_000
"""Levels and nodes of a draft tree: views descend it by recursion, and hold all of it."""
_HEADER_KEYS = ("target", "head", "policy", "tree", "sampling", "device", "dtype", "versions")
# Lone surrogates cannot be encoded; a terminal that shows the file obeys the others. JSON reads the same either way.
_UNSAFE = re.compile("[\x7f-\x9f\ud800-\udfff\u2028\u2029]")


@dataclass
class Run:
    """One answer: the question as typed (None where unknown) and its events."""

    question: str | None = None
    events: list[Event] = field(default_factory=list)

    @property
    def started(self) -> Started | None:
        """The run's header."""
        first = self.events[0] if self.events else None
        return first if isinstance(first, Started) else None

    @property
    def complete(self) -> bool:
        """Whether the end is there."""
        return bool(self.events) and isinstance(self.events[-1], Finished)


def lines(runs: Iterable[Run]) -> Iterator[str]:
    """The lines of a recording, each with its end."""
    runs = list(runs)
    first = next((run.started for run in runs if run.started is not None), None)
    about = {} if first is None else {key: getattr(first, key) for key in _HEADER_KEYS}
    yield _line({"type": "recording", "version": FORMAT_VERSION, **about})
    for run in runs:
        if run.question is not None:
            yield _line({"type": "question", "text": run.question})
        yield from (_line(to_json(event)) for event in run.events)


def write(path: Path, runs: Iterable[Run]) -> None:
    """Write the complete ones of `runs` to `path`, whole or not at all."""
    write_atomic(path, "".join(lines(run for run in runs if run.complete)))


def check_writable(path: Path) -> None:
    """UserError where a recording could not or should not be written to `path`: better said before the first answer."""
    path = path.expanduser()
    folder = path.absolute().parent
    if (path.exists() and not path.is_file()) or not folder.is_dir() or not os.access(folder, os.W_OK):
        raise UserError(f"a file in a folder that can be written expected, found {path}: give another --record")
    if path.is_file() and path.stat().st_size:
        with path.open("rb") as file:
            if not file.readline(1000).startswith(b'{"type": "recording"'):
                raise UserError(f"{path} is there already and no recording: give another --record")


def read(path: Path) -> list[Run]:
    """The runs of a recording; UserError in one line where it is not one."""
    path = path.expanduser()
    try:
        if path.stat().st_size > LARGEST_FILE:
            raise UserError(f"a recording expected in {path}, found more than 512 MiB: give a smaller file")
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise UserError(f"a recording expected at {path}, found none to read ({error.strerror}): check the name") from (
            error
        )
    except UnicodeDecodeError:
        raise UserError(f"{path} must be a recording in UTF-8, found other bytes: give a file of --record") from None
    return parse(text, str(path))


def parse(text: str, name: str = "the recording") -> list[Run]:
    """The runs in the text of a recording; UserError naming the line where it is not one."""
    runs: list[Run] = []
    number = 0
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue

        def refuse(found: str, number: int = number) -> NoReturn:
            raise UserError(f"{name}, line {number}: {found}: {ADVICE}")

        _take(_value(line, refuse), runs, refuse)
    if not runs:
        raise UserError(f"{name}: a recorded answer expected, found none: {ADVICE}")
    if not runs[-1].complete:
        raise UserError(f"{name}, line {number}: it ends in the middle of an answer: give a complete recording")
    return runs


Refuse = Callable[[str], NoReturn]


def _value(line: str, refuse: Refuse) -> dict[str, Any]:
    def finite(text: str) -> float:
        number = float(text)
        if not math.isfinite(number):
            refuse(f"a finite number expected, found {text[:20]}")
        return number

    try:
        value = json.loads(line, parse_float=finite, parse_constant=finite)
    except (ValueError, RecursionError):
        refuse("one JSON object a line expected, found something else")
    if not isinstance(value, dict):
        refuse(f"a JSON object expected, found a {type(value).__name__}")
    return value


def _take(value: dict[str, Any], runs: list[Run], refuse: Refuse) -> None:
    """Add one line to the runs."""
    kind = value.get("type")
    if kind in ("recording", "started") and value.get("version") != FORMAT_VERSION:
        refuse(f"format version {FORMAT_VERSION} expected, found {value.get('version')!r}")
    if kind == "recording":
        if runs:
            refuse("a header in the middle")
    elif kind == "question":
        if not isinstance(value.get("text"), str):
            refuse("a question's text expected")
        if runs and not runs[-1].complete:
            refuse("a question before the answer in front of it has ended")
        runs.append(Run(value["text"]))
    else:
        _take_event(_event(value, refuse), runs, refuse)


def _event(value: dict[str, Any], refuse: Refuse) -> Event:
    from pydantic import ValidationError

    try:
        return from_json(value)
    except ValidationError as error:
        problem = error.errors()[0]
        where = ".".join(str(part) for part in problem["loc"])
        refuse(f"not an event ({where + ': ' if where else ''}{problem['msg']})")


def _take_event(event: Event, runs: list[Run], refuse: Refuse) -> None:
    if isinstance(event, Started) and (not runs or runs[-1].complete):
        runs.append(Run())
    run = runs[-1] if runs else Run()
    if isinstance(event, Started) != (not run.events):
        refuse(f"{'a started event' if not run.events else 'no second start'} expected, found {event.type!r}")
    if run.complete:
        refuse(f"{event.type!r} after the answer's end")
    fault = _fault(event, run.events[-1] if run.events else None)
    if fault:
        refuse(fault)
    run.events.append(event)


def _fault(event: Event, previous: Event | None) -> str | None:
    """What in the event does not fit together."""
    if getattr(event, "cycle", 0) < 0:
        return "a cycle from 0 on expected"
    if isinstance(event, Drafted):
        return _drafted_fault(event)
    if isinstance(event, Verified):
        return _verified_fault(event, previous)
    if isinstance(event, Committed):
        if len(event.origins) != len(event.token_ids) or len(event.pieces) not in (0, len(event.token_ids)):
            return "as many origins and pieces as tokens expected"
        if event.pieces and "".join(event.pieces) != event.text:
            return "pieces that make up the text expected"
    return None


def _drafted_fault(event: Drafted) -> str | None:
    if not event.nodes or event.nodes[0].parent != -1:
        return "a draft tree that begins with its root expected"
    if len(event.nodes) > LARGEST_TREE:
        return f"a tree of at most {LARGEST_TREE:,} nodes expected, found {len(event.nodes):,}"
    for place, node in enumerate(event.nodes):
        if node.id != place or (place and not 0 <= node.parent < place):
            return f"nodes in the order drafted expected, found {node.id} with parent {node.parent} at {place}"
        if node.depth > DEEPEST:
            return f"node {place}: a depth of at most {DEEPEST} expected"
        if place and node.depth != event.nodes[node.parent].depth + 1:
            return f"node {place}: a depth one below its parent's expected"
        if place and node.slot >= 0 > event.nodes[node.parent].slot:
            return f"node {place}: no kept node without its parent expected"
    slots = [node.slot for node in event.nodes if node.slot >= 0]
    every_once = len(set(slots)) == len(slots) and event.nodes[0].slot == 0
    return None if every_once else "every slot once expected, the root's being 0"


def _verified_fault(event: Verified, previous: Event | None) -> str | None:
    if not isinstance(previous, Drafted) or previous.cycle != event.cycle:
        return "the drafted tree of the same cycle in front expected"
    slots = {node.slot: node for node in previous.nodes if node.slot >= 0}
    if {node.slot for node in event.nodes} != set(slots):
        return "one verified node for each slot of the tree expected"
    way = [slots[slot] for slot in event.path if slot in slots]
    connected = all(child.parent == parent.id for parent, child in itertools.pairwise(way))
    if not way or event.path[0] != 0 or len(way) != len(event.path) or not connected:
        return "a path from slot 0 through slots of the tree expected"
    return None


def _line(value: dict[str, Any]) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return _UNSAFE.sub(lambda sign: f"\\u{ord(sign[0]):04x}", text) + "\n"
