from __future__ import annotations

import json
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from eagle_chat.core.events import (
    STAGES,
    Committed,
    Drafted,
    DraftNode,
    Event,
    Finished,
    FinishReason,
    Origin,
    Reported,
    Stage,
    Started,
    Status,
    Verified,
    VerifiedNode,
    from_json,
    to_json,
)

INT = st.integers(-1, 10**6)
FLOAT = st.floats(allow_nan=False, allow_infinity=False)
TEXT = st.text(max_size=12)
JSON = st.dictionaries(
    TEXT, st.recursive(st.none() | st.booleans() | INT | FLOAT | TEXT, lambda inner: st.lists(inner, max_size=3))
)

DRAFT_NODES = st.builds(DraftNode, INT, INT, INT, INT, TEXT, FLOAT, FLOAT, INT, st.sampled_from(get_args(Stage)), INT)
VERIFIED_NODES = st.builds(
    VerifiedNode, INT, FLOAT, st.sampled_from(get_args(Status)), st.none() | INT, st.none() | TEXT, st.none() | FLOAT
)
EVENTS: dict[str, st.SearchStrategy[Event]] = {
    "started": st.builds(
        Started,
        prompt_tokens=INT,
        reused_tokens=INT,
        target=TEXT,
        head=st.none() | TEXT,
        policy=TEXT,
        tree=JSON,
        sampling=JSON,
        device=TEXT,
        dtype=TEXT,
        versions=st.dictionaries(TEXT, TEXT),
        notes=st.lists(TEXT, max_size=3),
        prompt=st.none() | TEXT,
    ),
    "drafted": st.builds(Drafted, INT, st.lists(DRAFT_NODES, max_size=3)),
    "verified": st.builds(Verified, INT, st.lists(VERIFIED_NODES, max_size=3), st.lists(INT, max_size=4), INT, TEXT),
    "reported": st.builds(
        Reported,
        INT,
        st.none() | INT,
        INT,
        INT,
        INT,
        st.lists(INT, max_size=4),
        st.lists(INT, max_size=4),
        st.booleans(),
    ),
    "committed": st.builds(
        Committed,
        INT,
        st.lists(INT, max_size=4),
        st.lists(st.sampled_from(get_args(Origin)), max_size=4),
        TEXT,
        INT,
        INT,
        st.dictionaries(st.sampled_from(STAGES), FLOAT),
        st.lists(st.booleans(), max_size=4),
        st.lists(TEXT, max_size=4),
    ),
    "finished": st.builds(Finished, st.sampled_from(get_args(FinishReason)), TEXT, INT, INT, st.none() | TEXT),
}


def test_every_event_is_tested() -> None:
    assert {event.__name__.lower() for event in get_args(Event)} == set(EVENTS)


@pytest.mark.parametrize("kind", EVENTS)
@given(data=st.data())
def test_an_event_survives_json(kind: str, data: st.DataObject) -> None:
    event = data.draw(EVENTS[kind])
    line = json.dumps(to_json(event))
    again = from_json(json.loads(line))
    assert again == event
    assert type(again) is type(event)
    assert json.dumps(to_json(again)) == line
    assert to_json(event)["type"] == kind


FINISHED = {"type": "finished", "reason": "stop", "text": "", "cycles": 3, "output_tokens": 4}


def test_what_may_be_left_out_has_its_default() -> None:
    assert from_json(FINISHED) == Finished("stop", "", 3, 4, None)


@pytest.mark.parametrize(
    "change",
    [
        {"type": "rejoiced"},
        {"type": None},
        {"reason": "boredom"},
        {"cycles": "many"},
        {"text": 7},
        {"output_tokens": None},
    ],
)
def test_what_is_no_event_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        from_json({**FINISHED, **change})


@pytest.mark.parametrize("missing", FINISHED)
def test_an_event_that_lacks_something_is_refused(missing: str) -> None:
    with pytest.raises(ValidationError):
        from_json({key: value for key, value in FINISHED.items() if key != missing})


def test_a_tuple_would_come_back_as_a_list() -> None:
    """Why whoever makes events fills them with JSON's own kinds."""
    event = Started(1, 0, "t", None, "none", {"paths": ((0,),)}, {}, "cpu", "float32", {})
    assert from_json(json.loads(json.dumps(to_json(event)))) != event
