"""What a head begins with."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from eagle_chat.core import masks
from eagle_chat.core.errors import HeadMismatchError
from eagle_chat.training.config import TrainConfig
from eagle_chat.training.initialise import new_head
from tests.tiny import VOCAB, make_target, prompts

IDS = torch.arange(0, VOCAB, 2)


def config(**changes: Any) -> TrainConfig:
    return TrainConfig(data=("a",), out="b", **changes)


@pytest.mark.parametrize("architecture", ["llama", "qwen3", "gemma3"])
@torch.no_grad()
def test_an_eagle_head_begins_with_its_input_feature(architecture: str) -> None:
    target = make_target(architecture)
    head, notes = new_head(config(head="eagle"), target, None)
    feature = torch.randn(5, target.hidden_size)
    output = head(torch.tensor([5, 6, 7, 8, 9]), feature, torch.arange(5), masks.causal_matrix(5), head.new_cache(8))
    torch.testing.assert_close(output, feature)
    assert notes == []


@torch.no_grad()
def test_an_eagle3_head_begins_with_the_targets_last_layer() -> None:
    """With the embedding's half of the attention silent it is the last layer on the highest tap, and its LM head."""
    target = make_target()
    head, notes = new_head(config(taps=(1, 4, 7)), target, IDS)
    assert notes == []
    for name in ("q_proj", "k_proj", "v_proj"):
        getattr(head.midlayer.self_attn, name).weight[:, : target.hidden_size] = 0.0
    tokens = torch.tensor(prompts(1, 9))
    output = target.model(input_ids=tokens, output_hidden_states=True)
    taps = torch.cat([output.hidden_states[tap] for tap in (1, 4, 7)], dim=-1)[0]  # the last layer reads number 7
    hidden = head(tokens[0], head.fuse(taps), torch.arange(9), masks.causal_matrix(9), head.new_cache(16))
    torch.testing.assert_close(head.logits(hidden), output.logits[0][:, IDS], atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("kind", ["eagle", "eagle3"])
def test_parts_that_do_not_fit_are_told_and_left_random(kind: str) -> None:
    target = make_target("mixtral")  # its layer's MLP is a set of experts
    head, notes = new_head(config(head=kind), target, None)
    assert any("mlp" in note and "at random" in note for note in notes)
    assert all(torch.isfinite(parameter).all() for parameter in head.parameters())


def test_random_heads_depend_on_the_seed() -> None:
    target = make_target()
    one, same, other = (new_head(config(start="random", seed=seed), target, IDS)[0] for seed in (1, 1, 2))
    assert torch.equal(one.fc.weight, same.fc.weight)
    assert not torch.equal(one.fc.weight, other.fc.weight)


def test_taps_that_do_not_fit_the_target() -> None:
    with pytest.raises(HeadMismatchError, match="three different taps"):
        new_head(config(taps=(1, 4, 9)), make_target(), None)


def test_the_target_in_half_precision_is_trained_on_in_float32() -> None:
    target = make_target()
    target.model.bfloat16()
    target.dtype = torch.bfloat16
    for kind in ("eagle", "eagle3"):
        head, _ = new_head(config(head=kind), target, None)
        assert head.embed(torch.tensor([1])).dtype == torch.float32
        assert head.logits(torch.randn(2, target.hidden_size)).dtype == torch.float32
