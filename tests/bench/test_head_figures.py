"""n-α and calibration against values that are known beforehand."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from eagle_chat.bench.alpha import CHAIN_DEPTH, Tally, measure_alpha, wilson
from eagle_chat.bench.calibration import Calibration, measure_calibration
from eagle_chat.bench.prompts import Question
from eagle_chat.bench.runner import Asker
from eagle_chat.core.config import SamplingConfig, TreeConfig
from eagle_chat.core.events import Drafted, DraftNode, Verified, VerifiedNode
from tests.bench.parts import QUESTIONS, cycle, scripted, stub_engine, tiny_engine
from tests.tiny import VOCAB

QUESTION = Question(1, "c", ("tell me",))
SAMPLING = SamplingConfig(max_new_tokens=40)


def quiet(*_: object) -> None:
    """Progress is not looked at."""


def alpha_of(kind: str) -> dict[int, float]:
    engine = stub_engine(kind, "tell me")
    (table,), partial = measure_alpha(Asker(engine), [QUESTION], SAMPLING, (0.0,), 3, quiet)
    assert not partial
    assert (table["temperature"], table["depth"], table["questions"]) == (0.0, 3, 1)
    return {row["n"]: row["rate"] for row in table["alpha"]}


def test_alpha_of_a_draft_that_is_always_or_never_right() -> None:
    assert alpha_of("oracle") == {0: 1.0, 1: 1.0, 2: 1.0}
    assert alpha_of("anti") == {0: 0.0}


def test_alpha_of_a_draft_that_is_right_at_odd_positions() -> None:
    """A cycle with a right first token commits two and ends where the next guess is right again: 0-α is 1 from then
    on, 1-α is 0; before, one cycle may begin at an even position."""
    rates = alpha_of("mix")
    assert rates[0] >= 0.9
    assert rates[1] == 0.0
    assert 2 not in rates  # nothing is judged behind a token that was refused


def test_tally_counts_levels() -> None:
    tally = Tally()
    tally.add(
        scripted(QUESTIONS[0], cycle(1, [1, 2, 3], (0,) * 5, [True, True, False]), cycle(2, [4], (0,) * 5, [False]))
    )
    assert [(row["n"], row["accepted"], row["judged"]) for row in tally.rates()] == [(0, 1, 2), (1, 1, 1), (2, 0, 1)]


def test_alpha_without_a_depth_measures_what_the_papers_give() -> None:
    engine = stub_engine("oracle", "tell me")
    (table,), _ = measure_alpha(Asker(engine), [QUESTION], SAMPLING, (0.0,), None, quiet)
    assert [row["n"] for row in table["alpha"]] == list(range(CHAIN_DEPTH))


def test_wilson_interval() -> None:
    assert wilson(5, 10) == pytest.approx((0.2366, 0.7634), abs=1e-4)  # a textbook value
    assert wilson(0, 4)[0] == 0.0
    assert wilson(4, 4)[1] == pytest.approx(1.0)


def drafted_node(slot: int, parent: int, depth: int, q: float) -> DraftNode:
    return DraftNode(slot if slot >= 0 else 99, parent, depth, 7, "", q, 0.0, 0, "kept", slot)


def test_calibration_of_a_tree_by_hand() -> None:
    nodes = [
        drafted_node(0, -1, 0, 1.0),
        drafted_node(1, 0, 1, 0.62),
        drafted_node(2, 0, 1, 0.31),
        drafted_node(3, 1, 2, 1.0),
        drafted_node(4, 2, 2, 0.5),
        drafted_node(-1, 0, 1, 0.05),
    ]
    statuses: list[Any] = ["accepted", "accepted", "rejected", "accepted", "unreached"]
    calibration = Calibration()
    for number in (1, 2):
        calibration.add(Drafted(number, nodes))
        calibration.add(
            Verified(number, [VerifiedNode(slot, 0.0, s) for slot, s in enumerate(statuses)], [0, 1, 3], 5, "")
        )
    one, two = calibration.table()
    assert (one["depth"], one["judged"], one["accepted"]) == (1, 4, 2)
    assert [(row["low"], row["count"], row["accepted"]) for row in one["bins"]] == [(0.3, 2, 0), (0.6, 2, 2)]
    assert one["confidence"] == pytest.approx((0.62 + 0.31) / 2)
    assert one["error"] == pytest.approx((0.38 + 0.31) / 2)
    assert two["bins"] == [{"low": 0.9, "high": 1.0, "count": 2, "accepted": 2, "confidence": 1.0, "rate": 1.0}]


def test_calibration_of_a_draft_with_known_confidence() -> None:
    """The stub's best child has the same q everywhere, and it is always right."""
    logits = torch.full((VOCAB,), -20.0)
    logits[:8] = -0.5 * torch.arange(8)
    q = logits.softmax(dim=-1)
    engine = stub_engine("oracle", "tell me")
    tree = TreeConfig("dynamic", depth=2, top_k=2, total_tokens=6)
    (table,), _ = measure_calibration(Asker(engine), [QUESTION], SAMPLING, (0.0,), tree, quiet)
    first = table["depths"][0]
    low, high = first["bins"]
    assert low["rate"] == 0.0
    assert high["rate"] == 1.0
    assert high["confidence"] == pytest.approx(float(q[0]), abs=1e-5)
    assert low["confidence"] == pytest.approx(float(q[1]), abs=1e-5)
    assert first["error"] == pytest.approx((1 - float(q[0]) + float(q[1])) / 2, abs=1e-5)
    assert table["tree"]["total_tokens"] == 6


def test_calibration_shares_no_noise() -> None:
    """Above temperature 0 a token of low confidence would be sent only where the target is likely to draw it."""
    engine = tiny_engine()
    seen: list[TreeConfig] = []
    stream = engine.stream

    def watched(*arguments: Any, **options: Any) -> Any:
        seen.append(options["tree"])
        return stream(*arguments, **options)

    engine.stream = watched
    measure_calibration(Asker(engine), [QUESTION], SAMPLING, (1.0,), TreeConfig(), quiet)
    assert {tree.shared_noise for tree in seen} == {False}


def test_stopping_gives_what_there_is() -> None:
    engine = stub_engine("oracle", "tell me")
    asker = Asker(engine, stop=lambda: True)
    tables, partial = measure_alpha(asker, [QUESTION], SAMPLING, (0.0, 1.0), 3, quiet)
    assert partial
    assert len(tables) == 1
    assert tables[0]["questions"] == 0
    tables, partial = measure_calibration(asker, [QUESTION], SAMPLING, (0.0,), TreeConfig(), quiet)
    assert partial
    assert tables[0]["depths"] == []
