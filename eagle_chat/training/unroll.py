"""The training-time test: a head fed with its own outputs, as when it drafts (arXiv 2503.01840, section 3.2).

Position t of step 0 is the head's entry t: the feature of token t, the embedding of token t+1, position id t. Step j
feeds the output of step j-1 at t with the embedding of token t+1+j at position id t+j, which is what a drafted node of
depth j does. So a query of step j at t sees the real entries up to t, and of steps 1..j the entries at t alone.

The head's own layers run, with the weights and the code of inference; only their attention is exchanged: scores
against the real entries, one block of T x T, and one product for each own entry on the diagonal.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import AttentionInterface
from transformers.models.llama.modeling_llama import LlamaAttention

from eagle_chat.core.heads.base import DraftHead

ATTENTION = "eagle_chat_unroll"


class Entries:
    """Keys and values of every step so far, by layer; stands where a cache stands at inference."""

    def __init__(self) -> None:
        self.layers: dict[int, list[tuple[Tensor, Tensor]]] = {}

    def update(self, keys: Tensor, values: Tensor, layer: int, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        """Take one step's keys and values [B, kv heads, T, dim]; they are given back as they are."""
        self.layers.setdefault(layer, []).append((keys, values))
        return keys, values


def unroll(head: DraftHead, tokens: Tensor, hidden: Tensor, steps: int) -> Iterator[Tensor]:
    """Outputs [B, T, H] of step 0, 1, ... of a head on `tokens` [B, T] and its fused features `hidden` [B, T, H].

    Output t of step j predicts token t+2+j. Past the end of the text the inputs are token 0 and mean nothing. Keep the
    head inside `unrolled_attention` meanwhile.
    """
    entries = Entries()
    positions = torch.arange(tokens.shape[1], device=tokens.device)
    for step in range(steps):
        cosines = head.rotary(hidden, position_ids=(positions + step)[None])
        hidden = head.run_layers(
            head.embed(shifted(tokens, 1 + step)),
            hidden,
            attention_mask=None,
            position_embeddings=cosines,
            cache=entries,
            entries=entries,
        )
        yield hidden


def shifted(tokens: Tensor, by: int) -> Tensor:
    """tokens[:, t + by] at t, [B, T]; 0 past the end."""
    return F.pad(tokens, (0, by))[:, by:]


@contextmanager
def unrolled_attention(head: DraftHead) -> Iterator[None]:
    """Inside, the head's layers attend as `unroll` needs it; afterwards as before."""
    AttentionInterface.register(ATTENTION, attend)
    configs = [module.config for module in head.modules() if isinstance(module, LlamaAttention)]
    before = [config._attn_implementation for config in configs]  # noqa: SLF001  no public access exists
    try:
        for config in configs:
            config._attn_implementation = ATTENTION  # noqa: SLF001
        yield
    finally:
        for config, name in zip(configs, before, strict=True):
            config._attn_implementation = name  # noqa: SLF001


def attend(
    module: Any, query: Tensor, key: Tensor, value: Tensor, _mask: None, *, entries: Entries, scaling: float, **__: Any
) -> tuple[Tensor, None]:
    """Attention of the newest step: queries [B, heads, T, dim] over its layer's entries, giving [B, T, heads, dim]."""
    (real_keys, real_values), *own = entries.layers[module.layer_idx]
    if not own:
        plain = F.scaled_dot_product_attention(query, key, value, is_causal=True, scale=scaling, enable_gqa=True)
        return plain.transpose(1, 2), None
    batch, heads, length, size = query.shape
    query = query.view(batch, key.shape[1], -1, length, size) * scaling  # [B, kv, group, T, dim]
    scores = query @ real_keys[:, :, None].transpose(-1, -2)  # [B, kv, group, T, T]
    future = torch.ones(length, length, dtype=torch.bool, device=query.device).triu_(1)
    scores = scores.masked_fill(future, -torch.inf)
    diagonal = torch.stack([(query * keys[:, :, None]).sum(-1) for keys, _ in own], dim=-1)  # [B, kv, group, T, j]
    weights = torch.cat((scores, diagonal.to(scores.dtype)), dim=-1).float().softmax(dim=-1).to(value.dtype)
    output = weights[..., :length] @ real_values[:, :, None]  # [B, kv, group, T, dim]
    for step, (_, values) in enumerate(own):
        output = output + weights[..., length + step, None] * values[:, :, None]
    return output.reshape(batch, heads, length, size).transpose(1, 2), None
