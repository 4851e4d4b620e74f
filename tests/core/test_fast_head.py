"""The fast path of draft heads: what transformers' own layers give, for every variant, and never of stale weights."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from eagle_chat.core import fast_plan, masks
from eagle_chat.core.fast_linear import Plan
from eagle_chat.core.heads.base import DraftHead
from eagle_chat.core.kernels import kernels
from tests import tiny

VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "eagle": ("eagle", {}),
    "eagle3": ("eagle3", {}),
    "residual": ("eagle3", {"norm_before_residual": True}),
    "output": ("eagle3", {"norm_output": True}),
}


def run(head: DraftHead) -> list[Tensor]:
    """Outputs and logits of a prefix, then of staged entries in two levels that see part of each other."""
    cache = head.new_cache(16)
    generator = torch.Generator().manual_seed(5)
    features = torch.randn(9, head.spec.feature_size, generator=generator)
    results = [head(torch.arange(9) + 3, head.fuse(features), torch.arange(9), masks.causal_matrix(9), cache)]
    cache.commit(list(range(9)))
    first = torch.eye(3, dtype=torch.bool)
    results.append(head(torch.tensor([4, 5, 6]), results[0][:3], torch.full((3,), 9), first, cache))
    second = torch.cat((first[[0, 0, 2]], torch.eye(3, dtype=torch.bool)), dim=1)
    results.append(head(torch.tensor([7, 8, 9]), results[1], torch.full((3,), 10), second, cache))
    cache.truncate(9)
    results.append(head(torch.tensor([4]), results[0][:1], torch.tensor([9]), None, cache))
    return [*results, *(head.logits(result) for result in results)]


@pytest.mark.parametrize("size", [8, 64])
@pytest.mark.parametrize("name", VARIANTS)
def test_the_same_as_the_layers_of_transformers(name: str, size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Heads of 8 numbers layer by layer in torch, those of 64 compiled as a whole where this processor can."""
    if size == 64 and kernels() is not None:
        monkeypatch.setattr(fast_plan.Planner, "plan", lambda *_: Plan("panels", "panels"))
    kind, config = VARIANTS[name]
    config = config if size == 8 else config | {"head_dim": size}
    head = tiny.make_head(kind, tiny.make_target("llama"), **config)
    with torch.no_grad():
        assert head.fast_path() is None
        expected = run(head)
    with torch.inference_mode():
        fast = head.fast_path()
        assert fast is not None
        assert (fast.compiled is not None) == (size == 64 and kernels() is not None)
        found = run(head)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=5e-5 * max(1.0, float(other.abs().max())))


@pytest.mark.parametrize("kind", ["eagle", "eagle3"])
def test_new_weights_are_noticed(kind: str) -> None:
    target = tiny.make_target("llama")
    head, other = tiny.make_head(kind, target), tiny.make_head(kind, target, seed=9)
    with torch.inference_mode():
        before, expected = run(head)[1], run(other)[1]
    assert not torch.allclose(before, expected)
    head.load_state_dict(other.state_dict())
    with torch.inference_mode():
        torch.testing.assert_close(run(head)[1], expected)
    optimiser = torch.optim.SGD(head.parameters(), lr=1.0)
    run(head)[1].sum().backward()
    optimiser.step()
    with torch.no_grad():
        stepped = run(head)[1]
    with torch.inference_mode():
        torch.testing.assert_close(run(head)[1], stepped, rtol=1e-4, atol=1e-4)


def test_other_activations_run_on_the_general_path() -> None:
    head = tiny.make_head("eagle3", tiny.make_target("llama"), hidden_act="gelu")
    with torch.inference_mode():
        assert head.fast_path() is None
        run(head)


@pytest.mark.skipif(kernels() is None, reason="no kernels for this processor")
@pytest.mark.parametrize("kind", ["eagle", "eagle3"])
def test_a_rounded_head_is_the_head_with_rounded_weights(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not more and not less: compiled as a whole, against transformers' layers over what int8 can hold of them."""
    monkeypatch.setattr(fast_plan, "SMALL", -1)
    vocabulary = 96 if kind == "eagle3" else tiny.VOCAB  # in whole panels, where the head has an LM head
    head = tiny.make_head(kind, tiny.make_target("llama"), draft_vocab=vocabulary, head_dim=64)
    with torch.inference_mode():
        fast = head.fast_path()
        assert fast is not None
        assert fast.is_rounded
        assert fast.compiled is not None
        found = run(head)
    with torch.no_grad():
        for module in head.modules():
            if isinstance(module, torch.nn.Linear):
                scales = module.weight.abs().amax(dim=1, keepdim=True) / 127
                module.weight.copy_((module.weight / scales).round() * scales)
        expected = run(head)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=5e-5 * max(1.0, float(other.abs().max())))


@pytest.mark.parametrize("change", ["asked not to", "small", "not in whole panels"])
def test_what_is_not_rounded(change: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if change != "small":
        monkeypatch.setattr(fast_plan, "SMALL", -1)
    monkeypatch.setattr(fast_plan.Planner, "plan", lambda *_: Plan())
    head = tiny.make_head("eagle3", tiny.make_target("llama"), draft_vocab=97 if "whole" in change else 96)
    head.rounds = change != "asked not to"
    with torch.inference_mode():
        fast = head.fast_path()
        assert fast is not None
        assert not fast.is_rounded
