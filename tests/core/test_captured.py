"""Steps of fixed shape: every architecture gives the same answers with them, and what cannot have them goes without.

Here they run uncaptured, over the same padded buffers as the graphs of a CUDA device.
"""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch
from torch import Tensor

from eagle_chat.core import masks
from eagle_chat.core.captured import FixedStep, Steps, bucket
from eagle_chat.core.config import SamplingConfig, TreeConfig
from eagle_chat.core.events import Started
from eagle_chat.core.heads.base import DraftHead
from eagle_chat.core.target import Target
from tests import tiny, zoo

NUM_TOKENS = 16
GREEDY = SamplingConfig(max_new_tokens=NUM_TOKENS)
SAMPLED = SamplingConfig(0.8, seed=2, max_new_tokens=NUM_TOKENS)
TREE = TreeConfig("dynamic", depth=3, top_k=4, total_tokens=12)
TREES = [TREE, TreeConfig("chain", depth=3), TreeConfig("static"), tiny.PLAIN]
PROMPT = tiny.prompts(1, length=21)[0]
CPU = torch.device("cpu")


@functools.cache
def fixed(name: str, attention: str | None = None) -> Target:
    return Target(zoo.make_model(name, attention), name, fast=False, fixed_shapes=True)


def head_of(kind: str, target: Target) -> DraftHead:
    head = tiny.make_head(kind, target, draft_vocab=60 if kind == "eagle3" else tiny.VOCAB)
    head.steps = Steps(wanted=True)
    head.fast_path = lambda: None  # type: ignore[method-assign]
    return head


def check_used(state: Any, target: Target, head: DraftHead | None = None) -> None:
    assert target.steps.refused is None
    assert len(state.cache.steps) >= 1
    if head is not None:
        assert head.steps.refused is None
        assert len(state.head_cache.steps) >= 2, "one row and more"


@pytest.mark.parametrize("kind", ["eagle", "eagle3"])
@pytest.mark.parametrize(("name", "attention"), zoo.PAIRS)
def test_every_architecture_answers_as_without(name: str, attention: str, kind: str) -> None:
    expected = tiny.answer(tiny.make_engine(zoo.target(name, attention)), PROMPT, sampling=GREEDY, tree=tiny.PLAIN)
    target = fixed(name, attention)
    head = head_of(kind, target)
    engine = tiny.make_engine(target, head)
    state = engine.new_state()
    assert tiny.answer(engine, PROMPT, sampling=GREEDY, tree=TREE, state=state) == expected
    check_used(state, target, head)


@pytest.mark.parametrize("tree", TREES, ids=lambda tree: tree.policy)
@pytest.mark.parametrize("sampling", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
@pytest.mark.parametrize("name", ["llama", "mistral", "gemma3", "llama4"])
def test_every_tree_answers_as_without(name: str, sampling: SamplingConfig, tree: TreeConfig) -> None:
    plain = tiny.make_engine(zoo.target(name))
    expected = tiny.answer(plain, PROMPT, sampling=sampling, tree=tiny.PLAIN)
    target = fixed(name)
    engine = tiny.make_engine(target, head_of("eagle3", target))
    state = engine.new_state()
    assert tiny.answer(engine, PROMPT, sampling=sampling, tree=tree, state=state) == expected
    check_used(state, target)


def test_a_branch_taken_moves_up_and_a_longer_cache_is_recorded_anew() -> None:
    sampling = SamplingConfig(max_new_tokens=220)
    plain = tiny.make_engine(tiny.make_target())
    expected = tiny.answer(plain, PROMPT, sampling=sampling, tree=tiny.PLAIN)
    target = Target(tiny.make_model(), "tiny", fast=False, fixed_shapes=True)
    script = PROMPT + expected
    engine = tiny.make_engine(target, tiny.StubHead(target, script, lambda at: (0, 2, None)[at % 3]))
    state = engine.new_state()
    assert tiny.answer(engine, PROMPT, sampling=sampling, tree=TREE, state=state) == expected
    check_used(state, target)
    before = dict(state.cache.steps)
    state.cache.reserve(state.cache.capacity + 1)
    assert state.cache.steps == {}, "they were recorded over buffers that are gone"
    longer = [*script, 5, 9]
    right = tiny.answer(plain, longer, sampling=GREEDY, tree=tiny.PLAIN)
    assert tiny.answer(engine, longer, sampling=GREEDY, tree=TREE, state=state) == right
    assert before.keys() & state.cache.steps.keys()


def test_what_a_forward_left_broken_harms_nobody_after_it() -> None:
    """Attention over whole buffers multiplies what it masks by 0, and 0 times NaN is NaN."""
    target = fixed("llama")
    cache = target.new_cache(64)
    run = torch.inference_mode()(target.forward)
    run(torch.tensor(PROMPT), torch.arange(len(PROMPT)), masks.causal_matrix(len(PROMPT)), cache, last_only=True)
    cache.commit(list(range(len(PROMPT))))
    one = torch.tensor([5]), torch.tensor([len(PROMPT)]), masks.causal_matrix(1), cache
    right = run(*one).logits
    cache.truncate(len(PROMPT))
    with torch.inference_mode():
        for layer in cache.tree_layers:
            assert layer.keys is not None
            layer.keys[:, :, len(PROMPT) :] = torch.nan
        cache.make_finite(torch.arange(len(PROMPT), cache.capacity))
    torch.testing.assert_close(run(*one).logits, right)
    assert target.steps.refused is None


def masks_by_hand(among: Tensor, positions: Tensor, base: int, capacity: int, window: int | None, chunked: bool) -> Any:
    rows = []
    keys = [*range(base), *positions.tolist()]
    for row, position in enumerate(positions.tolist()):
        cells = []
        for place in range(capacity):
            seen = place < base or (place - base < among.shape[1] and bool(among[row, place - base]))
            if seen and window is not None:
                same = position // window == keys[place] // window
                seen = same if chunked else position - keys[place] < window
            cells.append(seen)
        rows.append(cells)
    return rows


@pytest.mark.parametrize(("window", "chunked"), [(None, False), (3, False), (4, True)])
def test_the_mask_over_a_whole_cache(window: int | None, chunked: bool) -> None:
    among = masks.ancestor_matrix([-1, 0, 0, 1, 2, 4])
    positions = torch.tensor([7, 8, 8, 9, 9, 10])
    found = masks.placed_visibility(among, positions, torch.tensor([7]), 16, window, chunked)
    assert found.tolist() == masks_by_hand(among, positions, 7, 16, window, chunked)
    ordinary = masks.tree_visibility(among, positions, 7, window, chunked)
    assert torch.equal(found[:, :13], ordinary)
    assert not found[:, 13:].any()


def test_rows_are_padded_to_powers_of_two() -> None:
    assert [bucket(count) for count in (1, 2, 3, 4, 5, 8, 9, 60, 64, 65)] == [1, 2, 4, 4, 8, 8, 16, 64, 64, 128]


def test_padding_is_zero_in_every_call() -> None:
    step = FixedStep(lambda a: (a.clone(),), [(4, 2)], [torch.ones(3, 2)], CPU)
    assert step([torch.full((3, 2), 7.0)])[0].tolist() == [[7.0, 7.0]] * 3 + [[0.0, 0.0]]
    assert step([torch.full((1, 2), 5.0)])[0].tolist() == [[5.0, 5.0]] + [[0.0, 0.0]] * 3
    assert step([torch.full((4, 2), 3.0)])[0].tolist() == [[3.0, 3.0]] * 4


def refusing(run: Any) -> tuple[Steps, Tensor, int]:
    """Steps that tried `run` twice beside an ordinary one; its result, and how often `run` was called."""
    steps, cache, calls = Steps(wanted=True), tiny.make_target().new_cache(8), []

    def counted(value: Tensor) -> tuple[Tensor, ...]:
        calls.append(value)
        return run(value)

    result = torch.empty(0)
    for _ in range(2):
        if steps.refused is None:
            result = steps.run(
                cache, (2,), counted, [(2, 3)], [torch.ones(2, 3)], lambda: (torch.ones(2, 3) * 2,), 2, CPU
            )[0]
    return steps, result, len(calls)


def test_a_step_that_gives_something_else_is_refused() -> None:
    steps, result, calls = refusing(lambda value: (value * 2.2,))
    assert steps.refused is not None
    assert "did not give" in steps.refused
    assert result.tolist() == [[2.0] * 3] * 2, "what the ordinary forward gave"
    assert calls == 1


def test_a_step_that_gives_nan_is_refused() -> None:
    steps, result, _ = refusing(lambda value: (value * torch.nan,))
    assert steps.refused is not None
    assert result.tolist() == [[2.0] * 3] * 2


def test_a_step_that_cannot_be_captured_is_refused_with_its_reason() -> None:
    def fails(value: Tensor) -> tuple[Tensor, ...]:
        raise RuntimeError("operation not permitted when stream is capturing\nmore lines")

    steps, result, calls = refusing(fails)
    assert steps.refused == "operation not permitted when stream is capturing"
    assert result.tolist() == [[2.0] * 3] * 2
    assert calls == 1


def test_people_are_told_what_goes_without() -> None:
    target = Target(zoo.make_model("llama"), "llama", fast=False, fixed_shapes=True)
    engine = tiny.make_engine(target)
    events = [next(iter(engine.stream(PROMPT, GREEDY, tiny.PLAIN)))]
    target.steps.refused = "a reason"
    events.append(next(iter(engine.stream(PROMPT, GREEDY, tiny.PLAIN))))
    notes = [event.notes for event in events if isinstance(event, Started)]
    assert notes == [[], ["the target runs without CUDA graphs, which is slower (a reason)"]]


def test_a_step_that_agrees_is_used() -> None:
    steps, result, calls = refusing(lambda value: (value * 2.0,))
    assert steps.refused is None
    assert calls == 2
    assert result.tolist() == [[2.0] * 3] * 2


def test_cpu_targets_and_prompts_go_without() -> None:
    target = tiny.make_target("gemma3")
    cache = target.new_cache(64)
    assert not target.steps.suit(4, cache, CPU)
    with torch.inference_mode():
        assert not fixed("llama").steps.suit(4, cache, CPU), "nothing was written there yet"


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["llama", "gemma3", "qwen3"])
def test_graphs_on_a_gpu_answer_as_ordinary_forwards(name: str) -> None:
    """The one test of this file that captures anything."""
    targets = [Target(zoo.make_model(name).to("cuda"), name, fixed_shapes=wanted) for wanted in (False, None)]
    expected = tiny.answer(tiny.make_engine(targets[0]), PROMPT, sampling=GREEDY, tree=tiny.PLAIN)
    engine = tiny.make_engine(targets[1], tiny.make_head("eagle3", targets[1]))
    state = engine.new_state()
    assert tiny.answer(engine, PROMPT, sampling=GREEDY, tree=TREE, state=state) == expected
    assert targets[1].steps.refused is None
    assert len(state.cache.steps) > 0
