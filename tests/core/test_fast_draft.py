"""A compiled draft of an `eagle3` head: what its forward and logits give, in every variant; what kernels do not know
is left to these."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from eagle_chat.core import fast_plan, masks
from eagle_chat.core.cache import TreeCache
from eagle_chat.core.fast_draft import CompiledDrafter
from eagle_chat.core.fast_linear import Plan
from eagle_chat.core.heads.base import DraftHead
from eagle_chat.core.heads.drafter import Drafter
from eagle_chat.core.kernels import kernels
from tests import tiny

pytestmark = pytest.mark.skipif(kernels() is None, reason="no kernels for this processor")
VARIANTS: dict[str, dict[str, Any]] = {
    "eagle3": {},
    "residual": {"norm_before_residual": True},
    "output": {"norm_output": True},
}
PREFIX, VOCABULARY = 9, 64
FAR = 1200
"""A position whose angles are not in the first table."""


@pytest.fixture(autouse=True)
def in_panels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever this machine is fastest with."""
    monkeypatch.setattr(fast_plan.Planner, "plan", lambda *_: Plan("panels", "panels"))


def make(dtype: torch.dtype = torch.float32, vocabulary: int = VOCABULARY, **config: Any) -> DraftHead:
    target = tiny.make_target("llama")
    if dtype is not torch.float32:
        target.model.to(dtype)
    head = tiny.make_head("eagle3", target, draft_vocab=vocabulary, head_dim=64, **config)
    return head.to(dtype)


def filled(head: DraftHead) -> TreeCache:
    """A cache with a committed prefix."""
    cache = head.new_cache(4 * FAR)
    features = torch.randn(PREFIX, head.spec.feature_size, generator=torch.Generator().manual_seed(5))
    head(torch.arange(PREFIX) + 3, head.fuse(features), torch.arange(PREFIX), masks.causal_matrix(PREFIX), cache)
    cache.commit(list(range(PREFIX)))
    return cache


def outputs(drafter: Drafter, cache: TreeCache, start: int) -> list[Tensor]:
    """Of two committed tokens, and of staged entries in two levels that see part of each other, and a lone one."""
    features = torch.randn(2, drafter._head.spec.feature_size, generator=torch.Generator().manual_seed(6))
    fed = drafter.run([5, 9], drafter.fuse(features), None, [start, start + 1], masks.causal_matrix(2), cache)
    cache.commit([0, 1])
    at = start + 2
    eye = torch.eye(3, dtype=torch.bool)
    first = drafter.run([4, 5, 6], fed, [1, 1, 1], [at] * 3, eye, cache)
    seen = torch.cat((eye[[2, 0]], torch.eye(2, dtype=torch.bool)), dim=1)
    second = drafter.run([7, 8], first, [2, 0], [at + 1] * 2, seen, cache)
    cache.truncate(PREFIX + 2)
    alone = drafter.run([11], fed, [1], [at], None, cache)
    cache.truncate(PREFIX)
    results = [fed, first, second, alone]
    return [*results, *(drafter.logits(result) for result in results)]


@pytest.mark.parametrize("start", [PREFIX, FAR])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", VARIANTS)
@torch.inference_mode()
def test_the_same_as_the_heads_own_forward(name: str, dtype: torch.dtype, start: int) -> None:
    head = make(dtype, **VARIANTS[name])
    drafter = head.drafter()
    assert isinstance(drafter, CompiledDrafter)
    found = outputs(drafter, filled(head), start)
    expected = outputs(Drafter(head), filled(head), start)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4 * max(1.0, float(other.abs().max())))


@torch.inference_mode()
def test_the_best_are_those_of_the_logits_as_target_ids() -> None:
    head = make(vocabulary=VOCABULARY)
    drafter, hidden = head.drafter(), torch.randn(3, head.spec.hidden_size)
    assert isinstance(drafter, CompiledDrafter)
    assert head.draft_ids is not None
    for count in (1, 4, VOCABULARY):
        tokens, log_q = drafter.best(hidden, count)
        ranked = head.logits(hidden).log_softmax(dim=-1).sort(descending=True)
        assert tokens == head.draft_ids[ranked.indices[:, :count]].tolist()
        torch.testing.assert_close(torch.tensor(log_q), ranked.values[:, :count], rtol=1e-4, atol=1e-5)


@torch.inference_mode()
def test_a_broken_row_still_has_children() -> None:
    head = make()
    hidden = torch.full((2, head.spec.hidden_size), torch.nan)
    tokens, log_q = head.drafter().best(hidden, 4)
    assert [len(set(row)) for row in tokens] == [4, 4]
    assert all(-1e7 < value <= 0.0 for row in log_q for value in row)


@torch.inference_mode()
def test_many_rows_and_a_new_cache_take_the_general_way() -> None:
    head = make()
    drafter, rows = head.drafter(), 70
    assert isinstance(drafter, CompiledDrafter)
    hidden = torch.randn(rows, head.spec.hidden_size)
    results = []
    for one in (drafter, Drafter(head)):
        cache = head.new_cache(128)  # without buffers yet
        long = one.run(list(range(rows)), hidden, None, list(range(rows)), masks.causal_matrix(rows), cache)
        cache.commit(list(range(rows)))
        results.append((long, one.run([3], hidden, [2], [rows], None, cache)))
    for found, expected in zip(*results, strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


def test_the_drafter_is_kept_until_the_weights_change() -> None:
    head, other = make(), make(seed=9)
    with torch.inference_mode():
        before = head.drafter()
        assert head.drafter() is before
    head.load_state_dict(other.state_dict())
    with torch.inference_mode():
        after = head.drafter()
        assert after is not before
        hidden = torch.randn(1, head.spec.hidden_size)
        torch.testing.assert_close(after.logits(hidden), other.drafter().logits(hidden))


@pytest.mark.parametrize("change", ["vocabulary", "embeddings"])
@torch.inference_mode()
def test_what_the_kernels_do_not_know_is_left_to_others(change: str) -> None:
    head = make(vocabulary=61 if change == "vocabulary" else VOCABULARY)
    if change == "embeddings":
        head.table = None
    assert type(head.drafter()) is Drafter
