"""Steps of fixed shape for a CUDA graph: a Llama, an EAGLE-3 head over it, a dynamic tree, and the walk down it.

What lasts from cycle to cycle lies in buffers made once; lengths, paths and trees are values on the device, never
shapes. So a whole cycle can be captured and replayed, and the host waits once, for the tokens it gave.
`tests/test_static_steps.py` holds these steps against transformers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from eagle_chat.core.fast_layers import attend, folded_mask


@dataclass(frozen=True)
class Shape:
    """Sizes of a Llama: `hidden` H, `wide` of the MLP, `heads` and `kv_heads` of size `head_dim`, `vocab` V."""

    hidden: int = 4096
    wide: int = 14336
    layers: int = 32
    heads: int = 32
    kv_heads: int = 8
    head_dim: int = 128
    vocab: int = 128256
    theta: float = 500000.0
    eps: float = 1e-5


LLAMA_8B = Shape()
SHARPNESS = 8.0
"""Standard deviation of a random head's logits: the likeliest of 32,000 tokens then has about half of the mass."""


@dataclass
class LayerWeights:
    """Of one decoder layer, q k v and gate up each in one matrix. `inputs`: norms of what the attention reads."""

    inputs: list[Tensor]
    qkv: Tensor
    out: Tensor
    mlp_norm: Tensor
    gate_up: Tensor
    down: Tensor


def random_layer(shape: Shape, width: int, num_inputs: int, like: Tensor) -> LayerWeights:
    """Random weights whose outputs stay of the order of 1. `width`: columns of q, k and v."""

    def matrix(rows: int, columns: int) -> Tensor:
        return torch.randn(rows, columns, device=like.device, dtype=like.dtype) / math.sqrt(columns)

    heads = (shape.heads + 2 * shape.kv_heads) * shape.head_dim
    ones = [torch.ones(shape.hidden, device=like.device, dtype=like.dtype) for _ in range(num_inputs + 1)]
    return LayerWeights(
        ones[:-1],
        matrix(heads, width),
        matrix(shape.hidden, shape.heads * shape.head_dim),
        ones[-1],
        matrix(2 * shape.wide, shape.hidden),
        matrix(shape.hidden, shape.wide),
    )


class Room:
    """Keys and values of `layers` layers, [layers, kv heads, capacity, head dim], and the committed `length` [1]."""

    def __init__(self, shape: Shape, layers: int, capacity: int, like: Tensor) -> None:
        size = (layers, shape.kv_heads, capacity, shape.head_dim)
        self.keys = torch.zeros(size, device=like.device, dtype=like.dtype)
        self.values = torch.zeros_like(self.keys)
        self.length = torch.zeros(1, dtype=torch.int64, device=like.device)
        self.places = torch.arange(capacity, device=like.device)

    def mask(self, seen: Tensor) -> Tensor:
        """bool [M, capacity]: the committed entries, and behind them what `seen` [M, S] says of S staged ones."""
        committed = (self.places < self.length).expand(seen.shape[0], -1)
        return committed.index_copy(1, self.length + self.places[: seen.shape[1]], seen)

    def commit(self, path: Tensor, count: Tensor) -> None:
        """Keep the staged entries `path` [n], of which `count` [1] are meant; what follows them is never read."""
        target = self.length + self.places[: path.shape[0]]
        for store in (self.keys, self.values):
            store.index_copy_(2, target, store.index_select(2, self.length + path))
        self.length += count


class Rope:
    """cos and sin of every position, [capacity, head dim], the first half of sin negated."""

    def __init__(self, shape: Shape, capacity: int, like: Tensor) -> None:
        half = torch.arange(0, shape.head_dim, 2, device=like.device) / shape.head_dim
        angles = torch.arange(capacity, device=like.device)[:, None] / shape.theta**half
        self.cos = torch.cat((angles.cos(), angles.cos()), dim=1).to(like.dtype)
        self.sin = torch.cat((-angles.sin(), angles.sin()), dim=1).to(like.dtype)

    def at(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Both [M, 1, head dim] at positions [M]."""
        return self.cos.index_select(0, positions)[:, None], self.sin.index_select(0, positions)[:, None]


def decoder_layer(
    shape: Shape, weights: LayerWeights, normed: Tensor, residual: Tensor, rope: Any, room: Room, layer: int,
    slots: Tensor, mask: Tensor,
) -> Tensor:  # fmt: skip
    """One layer over M rows [M, H], its keys and values written at `slots` [M] of the room."""
    count = normed.shape[0]
    qkv = F.linear(normed, weights.qkv).view(count, -1, shape.head_dim)
    rotated, values = qkv[:, : shape.heads + shape.kv_heads], qkv[:, shape.heads + shape.kv_heads :]
    rotated = rotated * rope[0] + rotated.roll(shape.head_dim // 2, dims=-1) * rope[1]
    keys_of, values_of = room.keys[layer], room.values[layer]
    keys_of.index_copy_(1, slots, rotated[:, shape.heads :].transpose(0, 1))
    values_of.index_copy_(1, slots, values.transpose(0, 1))
    group = shape.heads // shape.kv_heads
    folded = folded_mask(mask[None, None], group)
    attended = attend(rotated[:, : shape.heads], keys_of[None], values_of[None], folded, shape.head_dim**-0.5)
    hidden = residual + F.linear(attended, weights.out)
    gate, up = F.linear(norm(hidden, weights.mlp_norm, shape), weights.gate_up).chunk(2, dim=-1)
    return hidden + F.linear(F.silu(gate) * up, weights.down)


def norm(x: Tensor, weight: Tensor, shape: Shape) -> Tensor:
    """RMS norm."""
    return F.rms_norm(x, (x.shape[-1],), weight, shape.eps)


class StaticLlama:
    """The target. `embedding` and `lm_head` [V, H], `final` [H]."""

    def __init__(
        self, shape: Shape, embedding: Tensor, layers: Sequence[LayerWeights], final: Tensor, lm_head: Tensor,
        capacity: int,
    ) -> None:  # fmt: skip
        self.shape, self.embedding, self.layers, self.final, self.lm_head = shape, embedding, layers, final, lm_head
        self.room = Room(shape, len(layers), capacity, embedding)
        self.rope = Rope(shape, capacity, embedding)

    @classmethod
    def random(cls, shape: Shape, capacity: int, device: str, dtype: torch.dtype) -> StaticLlama:
        """With random weights."""
        like = torch.empty(0, device=device, dtype=dtype)
        embedding = torch.randn(shape.vocab, shape.hidden, device=device, dtype=dtype)
        lm_head = torch.randn(shape.vocab, shape.hidden, device=device, dtype=dtype) / math.sqrt(shape.hidden)
        layers = [random_layer(shape, shape.hidden, 1, like) for _ in range(shape.layers)]
        return cls(shape, embedding, layers, torch.ones_like(lm_head[0]), lm_head, capacity)

    @classmethod
    def of(cls, model: Any, capacity: int) -> StaticLlama:
        """With the weights of a LlamaForCausalLM."""
        config, inner = model.config, model.model
        shape = Shape(
            config.hidden_size, config.intermediate_size, config.num_hidden_layers, config.num_attention_heads,
            config.num_key_value_heads, config.head_dim, config.vocab_size, config.rope_parameters["rope_theta"],
            config.rms_norm_eps,
        )  # fmt: skip
        layers = []
        for layer in inner.layers:
            attention, mlp = layer.self_attn, layer.mlp
            qkv = torch.cat([attention.q_proj.weight, attention.k_proj.weight, attention.v_proj.weight])
            gate_up = torch.cat([mlp.gate_proj.weight, mlp.up_proj.weight])
            norms = layer.input_layernorm.weight, layer.post_attention_layernorm.weight
            layers.append(
                LayerWeights([norms[0]], qkv, attention.o_proj.weight, norms[1], gate_up, mlp.down_proj.weight)
            )
        return cls(shape, inner.embed_tokens.weight, layers, inner.norm.weight, model.lm_head.weight, capacity)

    def forward(self, tokens: Tensor, depths: Tensor, seen: Tensor, taps: Sequence[int]) -> tuple[Tensor, Tensor]:
        """M nodes staged behind the committed ones: logits [M, V] and the inputs of the layers `taps`, [M, 3 H]."""
        room = self.room
        mask, rope = room.mask(seen), self.rope.at(room.length + depths)
        slots = room.length + room.places[: tokens.shape[0]]
        hidden = F.embedding(tokens, self.embedding)
        features = []
        for index, weights in enumerate(self.layers):
            if index in taps:
                features.append(hidden)
            normed = norm(hidden, weights.inputs[0], self.shape)
            hidden = decoder_layer(self.shape, weights, normed, hidden, rope, room, index, slots, mask)
        logits = F.linear(norm(hidden, self.final, self.shape), self.lm_head)
        return logits, torch.cat(features, dim=-1)


class StaticHead:
    """An EAGLE-3 head with random weights: `fc` [H, 3 H], one layer, an LM head over the first Vd tokens.

    `SHARPNESS` makes its laws as decided as a trained head's, without which no tree would be deeper than two.
    """

    def __init__(self, target: StaticLlama, draft_vocab: int, capacity: int) -> None:
        shape, like = target.shape, target.embedding
        self.shape, self.target = shape, target
        self.fc = torch.randn(shape.hidden, 3 * shape.hidden, device=like.device, dtype=like.dtype)
        self.fc /= math.sqrt(3 * shape.hidden)
        self.layer = random_layer(shape, 2 * shape.hidden, 2, like)
        self.final = torch.ones_like(self.layer.mlp_norm)
        self.lm_head = torch.randn(draft_vocab, shape.hidden, device=like.device, dtype=like.dtype)
        self.lm_head *= SHARPNESS / math.sqrt(shape.hidden)
        self.room = Room(shape, 1, capacity, like)

    def forward(self, tokens: Tensor, hidden: Tensor, depths: Tensor, seen: Tensor) -> Tensor:
        """M entries staged behind S - M others: outputs [M, H]. `seen` bool [M, S]."""
        room, count = self.room, tokens.shape[0]
        rope = self.target.rope.at(room.length + depths)
        slots = room.length + room.places[seen.shape[1] - count : seen.shape[1]]
        embedded = F.embedding(tokens, self.target.embedding)
        parts = zip((embedded, hidden), self.layer.inputs, strict=True)
        both = torch.cat([norm(part, weight, self.shape) for part, weight in parts], dim=-1)
        return decoder_layer(self.shape, self.layer, both, hidden, rope, room, 0, slots, room.mask(seen))

    def log_probs(self, hidden: Tensor) -> Tensor:
        """[M, H] to [M, Vd]."""
        return F.linear(norm(hidden, self.final, self.shape), self.lm_head).float().log_softmax(dim=-1)
