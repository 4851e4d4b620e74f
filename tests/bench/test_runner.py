from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from eagle_chat.bench.runner import Asker, check_length, measure, pooled
from eagle_chat.core.config import SamplingConfig
from eagle_chat.core.errors import EagleChatError, UserError
from tests.bench.parts import QUESTIONS, ScriptedEngine, candidate, tiny_engine
from tests.tiny import answer

PLAIN, CHAIN, DYNAMIC = candidate("plain"), candidate("chain"), candidate("dynamic")


def test_candidates_take_turns_and_the_order_rotates() -> None:
    engine: Any = ScriptedEngine()
    measured = measure([Asker(engine)], [PLAIN, CHAIN, DYNAMIC], QUESTIONS[:2])
    warm_up, asked = engine.asked[:3], engine.asked[3:]
    assert [policy for policy, _, _ in warm_up] == ["none", "chain", "dynamic"]
    assert [(policy, length) for policy, _, length in asked] == [
        ("none", 1), ("chain", 1), ("dynamic", 1),  # question 1, turn 1
        ("chain", 3), ("dynamic", 3), ("none", 3),  # question 1, turn 2: after question and answer
        ("chain", 1), ("dynamic", 1), ("none", 1),  # question 2
    ]  # fmt: skip
    assert [[(a.question.id, a.turn) for a in answers] for answers in measured.answers] == [
        [(1, 0), (1, 1), (2, 0)]
    ] * 3
    assert not measured.partial


def test_each_head_answers_with_its_own_engine() -> None:
    engines: list[Any] = [ScriptedEngine(), ScriptedEngine()]
    second = dataclasses.replace(CHAIN, head=1)
    measured = measure([Asker(engine) for engine in engines], [PLAIN, CHAIN, second], QUESTIONS[1:2])
    assert [[policy for policy, _, _ in engine.asked] for engine in engines] == [
        ["none", "chain", "none", "chain"],  # warm-up, then the question
        ["chain", "chain"],
    ]
    assert [len(answers) for answers in measured.answers] == [1, 1, 1]


def test_temperatures_are_groups_of_neighbours() -> None:
    engine: Any = ScriptedEngine()
    warm = [candidate("plain", 1.0), candidate("chain", 1.0)]
    measure([Asker(engine)], [PLAIN, CHAIN, *warm], [QUESTIONS[1]])
    assert [temperature for _, temperature, _ in engine.asked[4:]] == [0.0, 0.0, 1.0, 1.0]


def test_stopping_keeps_finished_rounds_only() -> None:
    engine: Any = ScriptedEngine()
    asker = Asker(engine, stop=lambda: len(engine.asked) >= 2 + 4 + 2)  # in the last answer to question 2
    measured = measure([asker], [PLAIN, DYNAMIC], QUESTIONS)
    assert measured.partial
    assert [question.id for question in measured.questions] == [1]
    assert [len(answers) for answers in measured.answers] == [2, 2]


def test_an_engine_that_gives_up_is_an_error() -> None:
    engine: Any = ScriptedEngine()
    engine.reason = "error"
    with pytest.raises(EagleChatError, match="it broke"):
        measure([Asker(engine)], [PLAIN], QUESTIONS)


def test_a_question_that_does_not_fit_is_left_out_and_named() -> None:
    """Also where only its second turn does not; the first that fits warms up."""
    engine: Any = ScriptedEngine()
    engine.too_long = {"and then?", "one two"}
    measured = measure([Asker(engine)], [PLAIN, DYNAMIC], QUESTIONS)
    assert [question.id for question in measured.questions] == ["x3"]
    assert [len(answers) for answers in measured.answers] == [1, 1]
    assert measured.notes == [
        "question 1 was left out: the 10 tokens before its answer 2 leave no room for one",
        "question 2 was left out: the 10 tokens before its answer 1 leave no room for one",
    ]
    assert not measured.partial
    engine.too_long |= {"hello there", "abc"}
    with pytest.raises(UserError, match="fits the context expected, found none in 3"):
        measure([Asker(engine)], [PLAIN, DYNAMIC], QUESTIONS)


def test_an_error_in_a_later_round_keeps_the_finished_ones() -> None:
    engine: Any = ScriptedEngine()
    engine.broken = {"hello there"}
    measured = measure([Asker(engine)], [PLAIN, DYNAMIC], QUESTIONS)
    assert [question.id for question in measured.questions] == [1, 2]
    assert measured.partial
    assert "out of memory" in str(measured.failure)
    engine.broken = {"abc"}
    with pytest.raises(RuntimeError, match="out of memory"):
        measure([Asker(engine)], [PLAIN, DYNAMIC], QUESTIONS)


def test_answers_too_short_to_measure_are_refused() -> None:
    check_length(SamplingConfig(max_new_tokens=2))
    with pytest.raises(UserError, match="found a limit of 1: change --max-new-tokens"):
        check_length(SamplingConfig(max_new_tokens=1))


def test_real_answers_are_those_of_the_engine_and_states_are_reused() -> None:
    engine = tiny_engine()
    measured = measure([Asker(engine, system="be brief")], [PLAIN, DYNAMIC], QUESTIONS[:1])
    plain, drafted = measured.answers
    said = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "abc"}]
    assert plain[0].token_ids == answer(engine, engine.chat.encode(said), sampling=PLAIN.sampling, tree=PLAIN.tree)
    assert [one.token_ids for one in plain] == [one.token_ids for one in drafted]
    assert plain[0].started.reused_tokens == 0
    assert min(plain[1].started.reused_tokens, drafted[1].started.reused_tokens) > 0
    assert plain[0].text == engine.chat.decode(plain[0].token_ids)
    assert plain[0].wall_seconds >= sum(pooled(plain[:1]).seconds.values())
    assert (plain[0].peak_memory or 0) > 2**20


def test_who_watches_sees_trees_and_nobody_else_pays_for_them() -> None:
    engine = tiny_engine()
    kinds: list[str] = []
    asker = Asker(engine, watch=lambda event: kinds.append(event.type))
    asker.ask(QUESTIONS[1], 0, DYNAMIC, asker.begin())
    assert {"started", "drafted", "verified", "committed", "finished"} == set(kinds)
