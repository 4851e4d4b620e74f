"""The training-time test against the head of inference, and its attention against a naive recomputation."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from eagle_chat.core import masks
from eagle_chat.core.heads.base import DraftHead
from eagle_chat.core.target import Target
from eagle_chat.training.features import run_target
from eagle_chat.training.unroll import ATTENTION, shifted, unroll, unrolled_attention
from tests.tiny import make_head, make_target, prompts

STEPS = 4
CLOSE = {"atol": 1e-4, "rtol": 1e-4}
"""Steps feed on each other, and an eagle head's outputs have no norm: rounding grows along them."""
KINDS = [("eagle3", {}), ("eagle3", {"norm_output": True}), ("eagle", {})]


def outputs_of(
    kind: str, flags: dict[str, bool], length: int = 12
) -> tuple[Target, DraftHead, Tensor, Tensor, list[Tensor]]:
    """Target, head, tokens [2, T], fused features [2, T, H], and the outputs of every step."""
    target = make_target()
    head = make_head(kind, target, **flags)
    tokens = torch.tensor(prompts(2, length))
    with torch.no_grad(), unrolled_attention(head):
        batch = run_target(target, tokens, torch.zeros_like(tokens, dtype=torch.bool), head.spec.taps)
        hidden = head.fuse(batch.features)
        return target, head, tokens, hidden, list(unroll(head, tokens, hidden, STEPS))


@pytest.mark.parametrize(("kind", "flags"), KINDS)
@torch.no_grad()
def test_every_step_is_what_the_head_does_when_it_drafts(kind: str, flags: dict[str, bool]) -> None:
    """At inference: entries 0..t from real features, then a chain of drafted nodes fed with own outputs."""
    _, head, tokens, hidden, outputs = outputs_of(kind, flags)
    for row in range(2):
        for last in (0, 3, 6):
            cache = head.new_cache(32)
            count = last + 1
            output = head(
                tokens[row, 1 : count + 1], hidden[row, :count], torch.arange(count), masks.causal_matrix(count), cache
            )
            cache.commit(list(range(count)))
            torch.testing.assert_close(outputs[0][row, :count], output, **CLOSE)
            drafted = output[-1:]
            for step in range(1, STEPS):
                at = torch.tensor([last + step])
                drafted = head(tokens[row, last + 1 + step][None], drafted, at, None, cache)
                cache.commit([0])
                torch.testing.assert_close(outputs[step][row, last], drafted[0], **CLOSE)


@pytest.mark.parametrize(("kind", "flags"), KINDS)
@torch.no_grad()
def test_attention_equals_a_naive_mask_over_all_entries(kind: str, flags: dict[str, bool]) -> None:
    """All entries of all steps in one sequence, with a mask of (steps x T) squared written down entry by entry."""
    _, head, tokens, hidden, outputs = outputs_of(kind, flags)
    length = tokens.shape[1]
    visible = torch.zeros(STEPS * length, STEPS * length, dtype=torch.bool)
    for step in range(STEPS):
        for at in range(length):
            visible[step * length + at, : at + 1] = True
            for earlier in range(1, step + 1):
                visible[step * length + at, earlier * length + at] = True
    positions = torch.cat([torch.arange(length) + step for step in range(STEPS)])
    for row in range(2):
        fed = [hidden[row], *(output[row] for output in outputs[:-1])]
        embedded = [head.embed(shifted(tokens, 1 + step)[row]) for step in range(STEPS)]
        naive = head.run_layers(
            torch.cat(embedded)[None],
            torch.cat(fed)[None],
            attention_mask=masks.additive(visible, torch.float32),
            position_embeddings=head.rotary(hidden, position_ids=positions[None]),
            cache=None,
        )[0].view(STEPS, length, -1)
        for step in range(STEPS):
            torch.testing.assert_close(outputs[step][row], naive[step], **CLOSE)


@torch.no_grad()
def test_padding_on_the_right_changes_nothing() -> None:
    target, head, tokens, _, outputs = outputs_of("eagle3", {})
    wide = torch.cat((tokens, torch.zeros(2, 5, dtype=torch.long)), dim=1)
    batch = run_target(target, wide, torch.zeros_like(wide, dtype=torch.bool), head.spec.taps)
    with unrolled_attention(head):
        padded = list(unroll(head, wide, head.fuse(batch.features), STEPS))
    for step in range(STEPS):
        valid = tokens.shape[1] - 1 - step
        torch.testing.assert_close(padded[step][:, :valid], outputs[step][:, :valid], **CLOSE)


def test_the_attention_of_inference_comes_back() -> None:
    head = make_head("eagle3", make_target())
    with unrolled_attention(head):
        assert head.midlayer.self_attn.config._attn_implementation == ATTENTION
    assert head.midlayer.self_attn.config._attn_implementation == "sdpa"
