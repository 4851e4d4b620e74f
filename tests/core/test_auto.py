"""Trees chosen cycle by cycle, from a cost table that the test gives: nothing is timed here."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from eagle_chat.core.auto import AutoTree
from eagle_chat.core.cache import TreeCache
from eagle_chat.core.config import AUTO_NODES, SamplingConfig, TreeConfig
from eagle_chat.core.costs import CostTable
from eagle_chat.core.engine import Engine
from eagle_chat.core.events import Committed, Event
from eagle_chat.core.growth import DraftInput
from eagle_chat.core.pace import Pace
from eagle_chat.core.tree import DraftTree
from tests import tiny
from tests.markov import HEAD

CHEAP = CostTable({1: 10.0, 8: 10.1, 32: 10.4}, first=0.1, level={1: 0.1, 10: 0.2})
"""Nodes and levels cost next to nothing."""
STEEP = CostTable({1: 10.0, 4: 17.0, 8: 40.0}, first=0.1, level={1: 0.1, 10: 0.2})
"""Nodes are dear."""
SLOW_HEAD = CostTable({1: 10.0, 8: 10.1, 32: 10.4}, first=1.0, level={1: 6.0, 10: 6.5})
"""Levels are dear."""
RUINOUS = CostTable({1: 1.0, 2: 9.0, 8: 20.0}, first=5.0, level={1: 5.0, 10: 5.0})
"""Drafting cannot pay."""
AUTO = TreeConfig(total_tokens=AUTO_NODES)
TARGET = tiny.make_target()
PROMPT = tiny.prompts(1)[0]
PLAIN_TOKENS = tiny.answer(tiny.make_engine(TARGET), PROMPT, sampling=tiny.GREEDY64, tree=tiny.PLAIN)


def engine_with(costs: CostTable, stub: str | Callable[[int], int | None]) -> Engine:
    rank: Any = tiny.STUBS[stub] if isinstance(stub, str) else stub
    head = tiny.StubHead(TARGET, PROMPT + PLAIN_TOKENS, rank)
    return Engine(TARGET, tiny.TinyChat(), head, "stub", costs=lambda num_tokens: costs)  # type: ignore[arg-type]


def run(costs: CostTable, stub: str | Callable[[int], int | None], **tree: Any) -> list[Committed]:
    """The cycles of one greedy answer, which must be that of plain decoding."""
    config = TreeConfig(total_tokens=AUTO_NODES, **tree)
    events: list[Event] = list(engine_with(costs, stub).stream(PROMPT, tiny.GREEDY64, config))
    assert tiny.tokens_of(events) == PLAIN_TOKENS
    return [event for event in events if isinstance(event, Committed) and event.cycle > 0]


def seconds_a_token(costs: CostTable, cycles: list[Committed]) -> float:
    """By the cost table, the drafts left out."""
    return sum(costs.verify_by_nodes[cycle.num_nodes] for cycle in cycles) / sum(len(c.token_ids) for c in cycles)


def markov_draft(costs: CostTable, pace: Pace | None = None, **shape: Any) -> DraftTree:
    start = DraftInput(torch.tensor([[0]]), 0, 0, TreeCache(0), 9, pace)
    policy = AutoTree(**{"depth": 5, "top_k": 4, **shape}, costs=costs)
    with torch.inference_mode():
        return policy.draft(HEAD, start)  # type: ignore[arg-type]


def levels_of(tree: DraftTree) -> int:
    assert tree.drawn is not None
    depths = [0]
    for parent in tree.drawn.parents:
        depths.append(depths[parent] + 1)
    return max(depths)


def test_dear_nodes_make_small_trees_and_dear_levels_shallow_ones() -> None:
    cheap, steep, slow = (markov_draft(costs) for costs in (CHEAP, STEEP, SLOW_HEAD))
    assert len(cheap) > len(steep)
    assert levels_of(cheap) > levels_of(slow)
    assert levels_of(slow) == 1


def test_the_kept_nodes_are_worth_most_over_their_cost() -> None:
    """Against every other number of the same nodes, by the sum written out."""
    pace = Pace(STEEP)
    tree = markov_draft(STEEP, pace)
    assert tree.drawn is not None
    values = sorted(torch.tensor(tree.drawn.values).exp().tolist(), reverse=True)
    price = Pace(STEEP).rate

    def worth(nodes: int) -> float:
        return 1.0 + sum(values[: nodes - 1]) - price * STEEP.verify_by_nodes[nodes]

    assert worth(len(tree)) == max(worth(nodes) for nodes in range(1, STEEP.most_nodes + 1))
    assert 1 < len(tree) < STEEP.most_nodes


def test_a_sure_draft_gets_deep_trees() -> None:
    cycles = run(CHEAP, "oracle")
    later = cycles[len(cycles) // 2 : -1]
    assert min(len(cycle.token_ids) for cycle in later) >= 5
    shallow = run(CHEAP, "oracle", depth=2)
    assert max(len(cycle.token_ids) for cycle in shallow) == 3


def test_where_nothing_pays_steps_are_plain() -> None:
    cycles = run(RUINOUS, "oracle")
    assert {cycle.num_nodes for cycle in cycles} == {1}


def test_a_useless_draft_is_given_up_and_tried_again() -> None:
    """Most steps do not even ask the head."""
    engine = engine_with(SLOW_HEAD, "anti")
    drafts = []
    assert engine.head is not None
    original = engine.head.logits
    engine.head.logits = lambda hidden: drafts.append(1) or original(hidden)  # type: ignore[method-assign,func-returns-value]
    tokens = tiny.answer(engine, PROMPT, sampling=tiny.GREEDY64, tree=TreeConfig("dynamic", 1, total_tokens=-1))
    assert tokens == PLAIN_TOKENS
    assert 2 <= len(drafts) < 32, "of 64"


def test_drafting_comes_back_when_it_pays_again() -> None:
    """Right drafts after a long useless stretch are found by trying."""
    switch = len(PROMPT) + 20
    cycles = run(SLOW_HEAD, lambda at: 0 if at >= switch else None)
    place, by_place = len(PROMPT), []
    for cycle in cycles:
        by_place.append((place, len(cycle.token_ids)))
        place += len(cycle.token_ids)
    assert all(count == 1 for at, count in by_place if at < switch - 2)
    assert max(count for at, count in by_place if at >= switch) > 1


def test_it_learns_that_the_draft_is_better_than_it_says() -> None:
    """The stub gives its token 0.4 and is always right: later cycles trust it more."""
    cycles = run(STEEP, "oracle")
    early, late = cycles[:4], cycles[-6:-1]
    assert seconds_a_token(STEEP, late) < seconds_a_token(STEEP, early)


@pytest.mark.parametrize("costs", [CHEAP, STEEP, SLOW_HEAD, RUINOUS], ids=["cheap", "steep", "slow", "ruinous"])
@pytest.mark.parametrize("stub", ["oracle", "anti", "mix"])
def test_the_text_is_that_of_plain_decoding(costs: CostTable, stub: str) -> None:
    run(costs, stub)


@pytest.mark.parametrize(
    "sampling", [SamplingConfig(1.1, seed=2, max_new_tokens=40), SamplingConfig(max_new_tokens=40)]
)
@pytest.mark.parametrize("kind", ["eagle", "eagle3"])
def test_a_random_head_leaves_the_text_alone(kind: str, sampling: SamplingConfig) -> None:
    head = tiny.make_head(kind, TARGET)
    expected = tiny.answer(tiny.make_engine(TARGET), PROMPT, sampling=sampling, tree=tiny.PLAIN)
    for costs in (CHEAP, STEEP):
        engine = Engine(TARGET, tiny.TinyChat(), head, "tiny", costs=lambda num_tokens, costs=costs: costs)  # type: ignore[arg-type,misc]
        assert tiny.answer(engine, PROMPT, sampling=sampling, tree=AUTO) == expected


def test_the_same_costs_give_the_same_cycles() -> None:
    engine = engine_with(STEEP, "mix")
    runs = [
        [
            (event.num_nodes, event.accepted)
            for event in engine.stream(PROMPT, tiny.GREEDY64, AUTO)
            if isinstance(event, Committed)
        ]
        for _ in range(2)
    ]
    assert runs[0] == runs[1]


def test_a_second_turn_after_plain_steps() -> None:
    """Plain steps leave features for the head behind; a later draft and a later turn both go on from there."""
    engine = engine_with(STEEP, lambda at: None)
    state = engine.new_state()
    first = tiny.answer(engine, PROMPT, sampling=SamplingConfig(max_new_tokens=30), tree=AUTO, state=state)
    assert state.head_cache is not None
    assert state.pending is not None
    assert state.head_cache.length + state.pending.shape[0] == state.cache.length
    longer = [*PROMPT, *first, 5, 6]
    second = tiny.answer(engine, longer, sampling=SamplingConfig(max_new_tokens=20), tree=AUTO, state=state)
    plain = tiny.answer(tiny.make_engine(TARGET), longer, sampling=SamplingConfig(max_new_tokens=20), tree=tiny.PLAIN)
    assert second == plain


def test_a_chain_is_chosen_too() -> None:
    cycles = run(CHEAP, "oracle", policy="chain")
    assert max(len(cycle.token_ids) for cycle in cycles) > 3
    assert all(cycle.num_nodes == 1 + cycle.accepted for cycle in cycles[:-1])
