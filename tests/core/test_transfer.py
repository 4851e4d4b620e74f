"""The host waits for an accelerator once in a cycle: what is asked of numbers on the device is counted, on a CPU that
is taken for one."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterable
from typing import Any

import pytest
import torch
from torch import Tensor

from eagle_chat.core import drafting, growth_tensors, verification
from eagle_chat.core.captured import Steps
from eagle_chat.core.config import SamplingConfig, TreeConfig
from eagle_chat.core.engine import Engine
from eagle_chat.core.events import Committed, Drafted, Event
from eagle_chat.core.target import Target
from eagle_chat.core.tree import DraftTree, UnreadTree
from tests import tiny

LOOKS = ("tolist", "item", "__int__", "__float__", "__bool__", "__index__", "nonzero", "cpu", "numpy")
"""What makes the host wait for a number, a shape or an array."""
GREEDY, SAMPLED = SamplingConfig(max_new_tokens=40), SamplingConfig(0.9, seed=3, max_new_tokens=40)
TREES = [
    TreeConfig("dynamic", depth=4, top_k=4, total_tokens=16),
    TreeConfig("dynamic", depth=3, top_k=3, total_tokens=60),
    TreeConfig("chain", depth=3),
    TreeConfig("static"),
    tiny.PLAIN,
]
PROMPT = tiny.prompts(1, length=23)[0]


@pytest.fixture
def apart(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (drafting, verification):
        monkeypatch.setattr(module, "runs_apart", lambda device: True)


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    counted: Counter[str] = Counter()
    for name in LOOKS:
        real = getattr(Tensor, name)

        def counting(self: Tensor, *arguments: Any, real: Any = real, name: str = name) -> Any:
            counted[name] += 1
            return real(self, *arguments)

        monkeypatch.setattr(Tensor, name, counting)
    return counted


def engine_of(kind: str) -> Engine:
    """On the general path, as on an accelerator."""
    target = Target(tiny.make_model("llama"), "tiny", fast=False)
    head = tiny.make_head(kind, target, draft_vocab=60 if kind == "eagle3" else tiny.VOCAB)
    head.fast_path = lambda: None  # type: ignore[method-assign]
    return tiny.make_engine(target, head)


@pytest.mark.parametrize("tree", TREES, ids=lambda tree: f"{tree.policy}{tree.total_tokens or ''}")
@pytest.mark.parametrize("sampling", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
@pytest.mark.parametrize("kind", ["eagle", "eagle3"])
def test_a_cycle_waits_once(
    kind: str, sampling: SamplingConfig, tree: TreeConfig, apart: None, looks: Counter[str]
) -> None:
    engine = engine_of(kind)
    expected = tiny.answer(engine, PROMPT, sampling=sampling, tree=tiny.PLAIN)
    assert waits_once(engine.stream(PROMPT, sampling=sampling, tree=tree), looks) == expected


def waits_once(events: Iterable[Event], looks: Counter[str]) -> list[int]:
    """The answer's tokens; every cycle after the prefill must look once."""
    tokens: list[int] = []
    for event in events:
        if isinstance(event, Committed):
            tokens += event.token_ids
            if event.cycle > 0:
                assert looks == {"tolist": 1}, f"cycle {event.cycle}"
        looks.clear()
    return tokens


@pytest.mark.parametrize("tree", [*TREES[:3], tiny.PLAIN], ids=lambda tree: f"{tree.policy}{tree.total_tokens or ''}")
def test_a_cycle_of_fixed_steps_waits_once(tree: TreeConfig, apart: None, looks: Counter[str]) -> None:
    """As CUDA graphs run; once the steps are recorded, which an answer before has done."""
    target = Target(tiny.make_model("llama"), "tiny", fast=False, fixed_shapes=True)
    head = tiny.make_head("eagle3", target, draft_vocab=60)
    head.steps = Steps(wanted=True)
    head.fast_path = lambda: None  # type: ignore[method-assign]
    engine = tiny.make_engine(target, head)
    state = engine.new_state()
    expected = tiny.answer(engine, PROMPT, sampling=GREEDY, tree=tree, state=state)
    steps = dict(state.cache.steps)
    assert steps
    assert waits_once(engine.stream(PROMPT, sampling=GREEDY, tree=tree, state=state), looks) == expected
    assert state.cache.steps == steps


@pytest.mark.parametrize("sampling", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
@pytest.mark.parametrize("tree", TREES[:4], ids=lambda tree: f"{tree.policy}{tree.total_tokens or ''}")
@pytest.mark.parametrize("kind", ["eagle", "eagle3"])
def test_a_tree_on_the_device_is_the_tree(
    kind: str, tree: TreeConfig, sampling: SamplingConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A draft in tensors is the draft in lists; and what the target is given before the host has read the tree is what
    it would have been given after."""
    seen: list[UnreadTree] = []

    class Kept(UnreadTree):
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            seen.append(self)

    engine = engine_of(kind)
    drawn = list(engine.stream(PROMPT, sampling=sampling, tree=tree, trace=True))
    for module in (drafting, verification):
        monkeypatch.setattr(module, "runs_apart", lambda device: True)
    monkeypatch.setattr(growth_tensors, "UnreadTree", Kept)
    again = list(engine.stream(PROMPT, sampling=sampling, tree=tree, trace=True))
    nodes = [
        [node for event in events if isinstance(event, Drafted) for node in event.nodes] for events in (drawn, again)
    ]
    for one, other in zip(*nodes, strict=True):
        assert dataclasses.replace(one, q=0.0, value=0.0) == dataclasses.replace(other, q=0.0, value=0.0)
        assert (one.q, one.value) == pytest.approx((other.q, other.value), rel=1e-4, abs=1e-5)
    assert len(seen) > 5
    for one in seen:
        read = one.read()
        assert isinstance(read, DraftTree)
        assert len(one) == len(read)
        assert one.depth >= read.depth
        for found, expected in zip(one.inputs(), read.inputs(), strict=True):
            assert torch.equal(found, expected)
