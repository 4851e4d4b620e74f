from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from eagle_chat.core import recording
from eagle_chat.core.errors import UserError
from eagle_chat.core.events import Committed, Drafted, DraftNode, Event, Finished, Started, Verified, VerifiedNode
from eagle_chat.core.recording import Run

NODES = [
    DraftNode(0, -1, 0, 1, "a", 1.0, 0.0, 0, "kept", 0),
    DraftNode(1, 0, 1, 2, "b\u2028\ud83d", 0.5, -0.7, 0, "kept", 1),
]
JUDGED = [VerifiedNode(0, 1.0, "accepted", 2, "b"), VerifiedNode(1, 0.9, "accepted", 3, "c")]
EVENTS: list[Event] = [
    Started(3, 0, "t", "h", "dynamic", {}, {"seed": 1}, "cpu", "float32", {}),
    Committed(0, [1], ["target"], "a", 0, 0, {"prefill": 1.0}, pieces=["a"]),
    Drafted(1, NODES),
    Verified(1, JUDGED, [0, 1], 3, "c"),
    Committed(1, [2, 3], ["draft", "target"], "bc", 2, 1, {"draft": 0.1}, [True], ["b", "c"]),
    Finished("stop", "", 1, 3),
]


def text(*runs: Run) -> str:
    return "".join(recording.lines(runs))


def test_what_is_written_is_read(tmp_path: Path) -> None:
    runs = [Run("q \x1b[31m [b]\u2028", list(EVENTS)), Run(None, list(EVENTS))]
    path = tmp_path / "a.jsonl"
    recording.write(path, [*runs, Run("cut", EVENTS[:3])])
    assert recording.read(path) == runs
    assert path.stat().st_mode & 0o777 == 0o600
    assert not any(sign in path.read_text() for sign in "\x1b\u2028\ud83d")
    assert [item.name for item in tmp_path.iterdir()] == ["a.jsonl"]


def test_a_bare_run_and_a_byte_order_mark(tmp_path: Path) -> None:
    bare = "\n".join(text(Run(None, list(EVENTS))).splitlines()[1:])
    (tmp_path / "b").write_text("\ufeff" + bare.replace("\n", "\r\n"), encoding="utf-8")
    assert recording.read(tmp_path / "b") == [Run(None, list(EVENTS))]


def changed(line: int, **values: Any) -> str:
    lines = text(Run("q", list(EVENTS))).splitlines()
    lines[line] = json.dumps(json.loads(lines[line]) | values)
    return "\n".join(lines)


def slots(*numbers: int) -> list[dict[str, Any]]:
    return [{**dataclasses.asdict(node), "slot": slot} for node, slot in zip(NODES, numbers, strict=True)]


def child(place: int, parent: int, slot: int) -> dict[str, Any]:
    return dataclasses.asdict(dataclasses.replace(NODES[1], id=place, parent=parent, depth=2, slot=slot, text="c"))


def without(*numbers: int) -> str:
    lines = text(Run("q", list(EVENTS))).splitlines()
    return "\n".join(line for place, line in enumerate(lines) if place not in numbers)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", "a recorded answer expected, found none"),
        (text(), "a recorded answer expected, found none"),
        ("hello", "line 1: one JSON object a line expected"),
        ("[1]", "line 1: a JSON object expected, found a list"),
        ('{"type": "recording", "version": 9}', "line 1: format version 1 expected, found 9"),
        (changed(2, version="1"), "line 3: format version 1 expected, found '1'"),
        (changed(3, type="other"), "line 4: not an event"),
        (changed(3, cycle="x"), "line 4: not an event (committed.cycle"),
        (changed(3, token_ids=[1, 2]), "line 4: as many origins and pieces as tokens expected"),
        (changed(3, text="b"), "line 4: pieces that make up the text expected"),
        (changed(3, seconds={"prefill": float("nan")}), "line 4: a finite number expected, found NaN"),
        (
            changed(2, sampling={"temperature": 1}).replace('ture": 1', 'ture": 1e999'),
            "line 3: a finite number expected",
        ),
        (changed(3, cycle=-1), "line 4: a cycle from 0 on expected"),
        (changed(4, nodes=slots(1, 0)), "line 5: every slot once expected, the root's being 0"),
        (changed(4, nodes=[*slots(0, -1), child(2, 1, 1)]), "line 5: node 2: no kept node without its parent expected"),
        (changed(4, nodes=[]), "line 5: a draft tree that begins with its root expected"),
        (changed(5, path=[0, 7]), "line 6: a path from slot 0 through slots of the tree expected"),
        (changed(5, nodes=[]), "line 6: one verified node for each slot of the tree expected"),
        (changed(5, cycle=2), "line 6: the drafted tree of the same cycle in front expected"),
        (changed(1, text=None), "line 2: a question's text expected"),
        (without(2), "line 3: a started event expected, found 'committed'"),
        (without(7), "line 7: it ends in the middle of an answer"),
        (without(7) + "\n" + without(0), "a question before the answer in front of it has ended"),
        (without() + "\n" + without(), "line 9: a header in the middle"),
        (without() + "\n" + without(0, 1, 2), "line 9: "),
        ("[" * 100_000, "line 1: one JSON object a line expected"),
    ],
)
def test_strict_reading(content: str, said: str) -> None:
    with pytest.raises(UserError) as caught:
        recording.parse(content, "name")
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_tree_too_large_for_any_view_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recording, "LARGEST_TREE", 1)
    with pytest.raises(UserError, match="line 5: a tree of at most 1 nodes expected, found 2"):
        recording.parse(without())


def test_files_that_are_none(tmp_path: Path) -> None:
    (tmp_path / "bytes").write_bytes(b"\xff\xfe\x00")
    for name in ("absent", ".", "bytes"):
        with pytest.raises(UserError):
            recording.read(tmp_path / name)
