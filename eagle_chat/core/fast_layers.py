"""One decoder layer of the Llama kind in as few operations as torch allows, for a handful of rows on a CPU.

The mathematics is transformers' own, in another order of the same sums: q, k and v are one product, gate and up are
one, residuals are added inside the products, and the query heads that share a key head are rows of one attention.
Whatever the dtype of the weights, everything between them is float32.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from eagle_chat.core.cache import TreeCacheLayer
from eagle_chat.core.fast_linear import Matrix
from eagle_chat.core.kernels import Kernels, kernels

ANGLES = 1024
"""Positions whose angles are computed at first."""
FOLDED_ROWS = 64
"""Up to this many rows the heads of a group become query rows; with more, the folded mask would grow too large."""


def usable(size: int) -> Kernels | None:
    """The compiled kernels, where they take rows of so many numbers."""
    compiled = kernels()
    return compiled if compiled is not None and compiled.fits(size) else None


def gated(both: Tensor) -> Tensor:
    """silu(g) u of rows [g, u], [M, 2 F] to [M, F]."""
    compiled = usable(both.shape[1] // 2)
    if compiled is not None:
        return compiled.gated(both)
    gate, up = both.chunk(2, dim=-1)
    return F.silu(gate).mul_(up)


class Norm:
    """RMS norm of float32 numbers over the last dimension: x w / sqrt(mean(x^2) + eps)."""

    def __init__(self, module: Any) -> None:
        weight: Tensor = module.weight.detach()
        size = weight.shape[0]
        self._kernels = usable(size)
        self.plain, self.epsilon = weight.float().contiguous(), float(module.variance_epsilon)
        # sqrt(mean + eps) = hypot(|x|, sqrt(n eps)) / sqrt(n): the norm of a vector is one operation, a mean is three.
        self._weight = weight.float() * math.sqrt(size)
        self._epsilon = torch.tensor(math.sqrt(size * module.variance_epsilon))

    def __call__(self, x: Tensor) -> Tensor:
        """[..., n] to [..., n]."""
        if self._kernels is not None:
            return self._kernels.norm(x, self.plain, self.epsilon)
        length = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
        return torch.div(x, length.hypot_(self._epsilon)).mul_(self._weight)


@dataclass(frozen=True)
class Rotation:
    """RoPE of M rows: `cos` and `sin` [P, head dim], the first half of `sin` negated, of which row i takes
    `positions[i]`, int64 [M]; `kernels` where they fit."""

    cos: Tensor
    sin: Tensor
    positions: Tensor
    kernels: Kernels | None

    def apply_(self, x: Tensor, heads: int) -> None:
        """Rotate the first `heads` heads of [M, all heads, head dim] in place; x is contiguous."""
        if self.kernels is not None:
            self.kernels.rotate(x, heads, self.cos, self.sin, self.positions)
            return
        chosen = x[:, :heads]
        cos, sin = (table.index_select(0, self.positions)[:, None] for table in (self.cos, self.sin))
        turned = chosen.roll(x.shape[-1] // 2, dims=-1).mul_(sin)
        torch.addcmul(turned, chosen, cos, out=chosen)


class Rope:
    """The rotations of a model, by its rotary embedding in transformers. Where an angle depends on its position alone,
    all of them are kept in a table: what makes them is a dozen operations in every forward otherwise."""

    def __init__(self, rotary: Any) -> None:
        self._rotary = rotary
        kind = str(getattr(rotary, "rope_type", "dynamic"))
        self._keeps = "dynamic" not in kind and kind != "longrope"  # these change with the longest position so far
        self._table: Rotation | None = None

    def at(self, positions: Tensor, highest: int | None = None) -> Rotation:
        """RoPE of M rows at `positions` int64 [M], of which `highest` is the highest."""
        if not self._keeps:
            made = self._made(positions)
            return Rotation(made.cos, made.sin, torch.arange(positions.shape[0]), made.kernels)
        reach = (int(positions.max()) if highest is None else highest) + 1
        table = self._table
        if table is None or table.cos.shape[0] < reach:
            table = self._table = self._made(torch.arange(max(2 * reach, ANGLES)))
        return Rotation(table.cos, table.sin, positions.contiguous(), table.kernels)

    def _made(self, positions: Tensor) -> Rotation:
        cos, sin = self._rotary(torch.empty(0), position_ids=positions[None])  # float32, as what is turned
        half = sin.shape[-1] // 2
        sin = torch.cat((-sin[0, :, :half], sin[0, :, half:]), dim=-1)
        return Rotation(cos[0].contiguous(), sin, positions, usable(half))


def folded_mask(mask: Tensor | None, group: int) -> Tensor | None:
    """The mask [1, 1, M, L] for `attend`: repeated for the heads of a group where they will be rows."""
    if mask is None or not 1 < mask.shape[2] <= FOLDED_ROWS:
        return mask
    return mask.repeat(1, 1, group, 1)


def attend(queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None, scale: float) -> Tensor:
    """Attention of queries [M, heads, D] over keys and values [1, kv heads, L, D], with a mask by `folded_mask`.

    Returns [M, heads * D].
    """
    num_rows, num_heads, size = queries.shape
    shared = keys.shape[1]
    group = num_heads // shared
    if num_rows > FOLDED_ROWS:
        output = F.scaled_dot_product_attention(
            queries.transpose(0, 1)[None], keys, values, attn_mask=mask, scale=scale, enable_gqa=True
        )
        return output[0].transpose(0, 1).reshape(num_rows, num_heads * size)
    # [M, kv heads, group, D] -> [1, kv heads, group * M, D]: each key is read once for all that share it.
    folded = queries.view(num_rows, shared, group, size).permute(1, 2, 0, 3).reshape(1, shared, group * num_rows, size)
    output = F.scaled_dot_product_attention(folded, keys, values, attn_mask=mask, scale=scale)
    return output.view(shared, group, num_rows, size).permute(2, 0, 1, 3).reshape(num_rows, num_heads * size)


class FastLayer:
    """A decoder layer. `norms`: before attention (None: the caller does it) and before the MLP. `head_norms`: of
    queries and keys (Qwen3), or none."""

    def __init__(
        self,
        attention: Any,
        matrices: Sequence[Matrix],
        norms: tuple[Norm | None, Norm],
        head_norms: tuple[Norm, Norm] | None = None,
    ) -> None:
        self.matrices = tuple(matrices)
        self._qkv, self._out, self._gate_up, self._down = matrices
        self._input_norm, self._mlp_norm = norms
        self._head_norms = head_norms
        config = attention.config
        self.head_dim: int = attention.head_dim
        self.num_heads: int = config.num_attention_heads
        self.num_kv_heads: int = config.num_key_value_heads
        self.scale: float = attention.scaling
        self.hidden_size: int = self._out.shape[0]
        self.inner_size: int = self._down.shape[1]

    @property
    def has_head_norms(self) -> bool:
        """Whether queries and keys are normed."""
        return self._head_norms is not None

    @property
    def norm_weights(self) -> tuple[Tensor | None, Tensor]:
        """Of the norm before attention, where the layer has it, and before the MLP; float32 [H]."""
        return None if self._input_norm is None else self._input_norm.plain, self._mlp_norm.plain

    @property
    def epsilon(self) -> float:
        """Of both norms."""
        return self._mlp_norm.epsilon

    @property
    def extra_bytes(self) -> int:
        """Memory of second copies."""
        return sum(matrix.extra_bytes for matrix in (self._qkv, self._out, self._gate_up, self._down))

    @property
    def group(self) -> int:
        """Query heads for each key head."""
        return self.num_heads // self.num_kv_heads

    def __call__(self, x: Tensor, rotation: Rotation, cache: TreeCacheLayer, mask: Tensor | None) -> Tensor:
        """Hidden states [M, H] to [M, H]; their keys and values are staged in `cache`."""
        return self.run(self.normed(x), x, rotation, cache, mask)

    def normed(self, x: Tensor) -> Tensor:
        """The attention's input of hidden states."""
        return x if self._input_norm is None else self._input_norm(x)

    def run(
        self, normed: Tensor, residual: Tensor, rotation: Rotation, cache: TreeCacheLayer, mask: Tensor | None
    ) -> Tensor:
        """The same where the attention's input [M, any] and the residual [M, H] are not norm(x) and x."""
        num_rows, heads, kv_heads = normed.shape[0], self.num_heads, self.num_kv_heads
        qkv = self._qkv(normed).view(num_rows, heads + 2 * kv_heads, self.head_dim)
        if self._head_norms is not None:
            qkv[:, :heads] = self._head_norms[0](qkv[:, :heads])
            qkv[:, heads : heads + kv_heads] = self._head_norms[1](qkv[:, heads : heads + kv_heads])
        rotation.apply_(qkv, heads + kv_heads)
        # [M, 2 * kv heads, D] -> [2, kv heads, M, D]
        new = qkv[:, heads:].view(num_rows, 2, kv_heads, self.head_dim).permute(1, 2, 0, 3)
        keys, values = cache.append(new)
        attended = attend(qkv[:, :heads], keys, values, mask, self.scale)
        hidden = self._out.add(attended, residual)
        return self._down.add(gated(self._gate_up(self._mlp_norm(hidden))), hidden)
