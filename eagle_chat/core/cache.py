"""The key/value cache of a model that verifies trees: preallocated, with one length for all layers.

A forward pass writes its keys and values behind the committed ones and changes nothing else: what it wrote is
*staged*. `commit` keeps one path of the staged tokens and moves it up; `truncate` forgets everything from a length
on. An exception or an interrupt between two of these leaves the committed part whole, because nothing below
`length` is ever written again.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache, CacheLayerMixin

GROWTH_STEP = 256
"""Capacity grows in multiples of this many tokens."""


class TreeCacheLayer(CacheLayerMixin):  # type: ignore[no-untyped-call]  # its class hook is untyped
    """Keys and values of one layer, [1, kv heads, capacity, head dim], of which the first `filled` are in use."""

    is_compileable = False
    is_sliding = False
    is_croppable = False

    def __init__(self, owner: TreeCache) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.owner = owner

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Allocate for the owner's capacity, with the shapes and dtype that the model brings."""
        self.keys = _empty_like(key_states, self.owner.capacity)
        self.values = _empty_like(value_states, self.owner.capacity)
        self.is_initialized = True

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Write M new tokens, [1, heads, M, dim], behind the filled ones; views of everything up to their end."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        assert self.keys is not None and self.values is not None
        start = self.owner.filled
        end = start + key_states.shape[-2]
        self.keys[:, :, start:end].copy_(key_states)
        self.values[:, :, start:end].copy_(value_states)
        return self.keys[:, :, :end], self.values[:, :, :end]

    def resize(self, capacity: int, filled: int) -> None:
        """Move to buffers of another capacity, keeping the first `filled` tokens."""
        if not self.is_initialized:
            return
        assert self.keys is not None and self.values is not None
        for name, old in (("keys", self.keys), ("values", self.values)):
            new = _empty_like(old, capacity)
            new[:, :, :filled].copy_(old[:, :, :filled])
            setattr(self, name, new)

    def keep(self, rows: Tensor, start: int) -> None:
        """Move the tokens at `rows` [k] to start..start+k-1. `rows` ascend and never lie before their new place."""
        assert self.keys is not None and self.values is not None
        rows = rows.to(self.keys.device)
        end = start + rows.shape[0]
        # index_select makes a copy first, so overlapping source and target rows are safe.
        self.keys[:, :, start:end] = self.keys.index_select(2, rows)
        self.values[:, :, start:end] = self.values.index_select(2, rows)

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """(key length, key offset) for transformers' own masks."""
        return self.owner.filled + query_length, 0

    def get_seq_length(self) -> int:
        """Tokens in use."""
        return self.owner.filled

    def get_max_length(self) -> int:
        """-1: no maximum of its own."""
        return -1

    def get_max_cache_shape(self) -> int:
        """`get_max_length` by its earlier name."""
        return -1


class TreeCache(Cache):
    """One `TreeCacheLayer` a decoder layer. `length`: committed tokens; `filled`: those and the staged ones."""

    def __init__(self, num_layers: int, capacity: int = GROWTH_STEP) -> None:
        self.length = 0
        self.filled = 0
        self.capacity = 0
        self.tree_layers = [TreeCacheLayer(self) for _ in range(num_layers)]
        super().__init__(layers=list(self.tree_layers))
        self.reserve(capacity)

    def reserve(self, num_tokens: int) -> None:
        """Make room for `num_tokens` in all. Never shrinks."""
        if num_tokens <= self.capacity:
            return
        capacity = -(-num_tokens // GROWTH_STEP) * GROWTH_STEP
        for layer in self.tree_layers:
            layer.resize(capacity, self.filled)
        self.capacity = capacity

    def stage(self, num_tokens: int) -> None:
        """Count the tokens of a finished forward pass as staged: later passes see them."""
        self.filled += num_tokens

    def commit(self, path: list[int]) -> None:
        """Keep the staged tokens `path` (offsets from `length`, ascending) and forget the other staged ones."""
        if path != list(range(len(path))):
            rows = torch.tensor(path) + self.length
            for layer in self.tree_layers:
                if layer.is_initialized:  # layers that share another's keys never see an update
                    layer.keep(rows, self.length)
        self.length += len(path)
        self.filled = self.length

    def truncate(self, length: int) -> None:
        """Forget every token from `length` on, staged ones included."""
        self.length = min(self.length, length)
        self.filled = self.length


def _empty_like(states: Tensor, capacity: int) -> Tensor:
    shape = (*states.shape[:2], capacity, states.shape[3])
    return torch.empty(shape, dtype=states.dtype, device=states.device)
