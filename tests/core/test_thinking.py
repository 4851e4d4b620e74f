"""The reasoning of models that think, told apart from their answer."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eagle_chat.cli.thinking import hiding
from eagle_chat.core.events import Committed, Event, Finished
from eagle_chat.core.thinking import ThinkingFilter, ends_inside, split

TEXTS = [
    ("plain answer", False, None, "plain answer"),
    ("<think>\nwhy\n</think>\n\nbecause", False, "why", "because"),
    ("why\n</think>\n\nbecause", True, "why", "because"),
    ("<think>\n\n</think>\n\nbecause", False, "", "because"),
    ("a < b, <thin, </think", False, None, "a < b, <thin, </think"),
    ("<think>a</think>b <think>c</think>", False, "a", "b <think>c</think>"),
    ("\n <think>x</think> y", False, "x", "y"),
    ("  indented", False, None, "indented"),
]


@pytest.mark.parametrize(("text", "opened", "thought", "answer"), TEXTS)
def test_a_whole_text_is_split(text: str, opened: bool, thought: str | None, answer: str) -> None:
    found = split(text)
    assert found[0] == thought
    assert found[1].lstrip() == answer


@pytest.mark.parametrize(("text", "opened", "thought", "answer"), TEXTS)
@given(data=st.data())
def test_pieces_show_the_answer_alone(
    text: str, opened: bool, thought: str | None, answer: str, data: st.DataObject
) -> None:
    """Wherever the pieces are cut, also inside the marks."""
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=6)))
    pieces = [text[start:end] for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    reasoning = ThinkingFilter(opened)
    assert "".join([*map(reasoning.feed, pieces), reasoning.flush()]) == answer


@pytest.mark.parametrize(("text", "opened"), [("<think>never ends </thi", False), ("never ends", True), ("<thi", True)])
def test_reasoning_that_never_ends_shows_nothing(text: str, opened: bool) -> None:
    reasoning = ThinkingFilter(opened)
    assert "".join([*map(reasoning.feed, text), reasoning.flush()]) == ""


def test_the_beginning_of_a_mark_that_is_none_is_shown_at_the_end() -> None:
    reasoning = ThinkingFilter()
    assert reasoning.feed("<thi") == ""
    assert reasoning.flush() == "<thi"


def test_whether_a_text_ends_inside() -> None:
    assert ends_inside("<think>a")
    assert not ends_inside("<think>a</think>b")
    assert not ends_inside("b")


def test_events_are_shown_without_it_and_stay_whole_themselves() -> None:
    shown: list[Event] = []
    take = hiding(shown.append, opened=False)
    pieces = [["<think>"], ["wh", "y</th"], ["ink>\n\n", "be"], ["cause"]]
    events: list[Event] = [
        Committed(cycle, list(range(len(part))), ["target"] * len(part), "".join(part), 1, 0, {}, pieces=part)
        for cycle, part in enumerate(pieces)
    ]
    events.append(Finished("stop", " of it", 4, 6))
    for event in events:
        take(event)
    assert [event.text for event in shown if isinstance(event, Committed)] == ["", "", "be", "cause"]
    assert [event.pieces for event in shown if isinstance(event, Committed)] == [[""], ["", ""], ["", "be"], ["cause"]]
    assert isinstance(shown[-1], Finished)
    assert shown[-1].text == " of it"
    assert "".join(event.text for event in events if isinstance(event, Committed)) == "<think>why</think>\n\nbecause"
