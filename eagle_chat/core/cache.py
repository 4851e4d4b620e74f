"""The key/value cache of a model that verifies trees: preallocated, with one length for all layers.

A forward pass writes its keys and values behind the committed ones and changes nothing else: what it wrote is
*staged*. `commit` keeps one path of the staged tokens and moves it up; `truncate` forgets everything from a length
on. An exception or an interrupt between two of these leaves the committed part whole, because nothing below
`length` is ever written again.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from transformers.cache_utils import Cache, CacheLayerMixin

from eagle_chat.core.transfer import sent

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
        self.both: Tensor | None = None

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Take room for the owner's capacity, with the shapes and dtype that the model brings."""
        self.keys = self.owner.allocate(key_states)
        self.values = self.owner.allocate(value_states)
        self.both = self.owner.joined(self.keys, self.values)
        self.is_initialized = True

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Write M new tokens, [1, heads, M, dim], behind the filled ones; views of everything up to their end.

        Where the owner names `slots`, they go there, and the whole buffers come back."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        assert self.keys is not None and self.values is not None
        if self.owner.slots is not None:
            self.keys.index_copy_(2, self.owner.slots, key_states)
            self.values.index_copy_(2, self.owner.slots, value_states)
            return self.keys, self.values
        start = self.owner.filled
        end = start + key_states.shape[-2]
        self.keys[:, :, start:end].copy_(key_states)
        self.values[:, :, start:end].copy_(value_states)
        return self.keys[:, :, :end], self.values[:, :, :end]

    def append(self, states: Tensor) -> tuple[Tensor, Tensor]:
        """`update` for keys and values in one tensor [2, heads, M, dim]: one copy instead of two."""
        if not self.is_initialized:
            self.lazy_initialization(states[:1], states[1:])
        assert self.both is not None
        start = self.owner.filled
        end = start + states.shape[-2]
        self.both[:, :, start:end].copy_(states)
        filled = self.both[:, :, :end]
        return filled[:1], filled[1:]

    def move(self, filled: int, rows: Tensor | None = None) -> None:
        """Take new room for the owner's new capacity, keeping the first `filled` tokens, of some `rows` of a batch."""
        if not self.is_initialized:
            return
        assert self.keys is not None and self.values is not None
        old_keys, old_values = self.keys[:, :, :filled], self.values[:, :, :filled]
        if rows is not None:
            old_keys, old_values = (old.index_select(0, rows.to(old.device)) for old in (old_keys, old_values))
        self.lazy_initialization(old_keys, old_values)
        self.keys[:, :, :filled].copy_(old_keys)
        self.values[:, :, :filled].copy_(old_values)

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """(key length, key offset) for transformers' own masks."""
        return self.owner.filled + query_length, 0

    def get_seq_length(self) -> Any:
        """Tokens in use; or what `TreeCache.show_positions` put in its place."""
        return self.owner.filled if self.owner.shown is None else self.owner.shown

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
        self._moving = False
        self.shown: Tensor | None = None
        self.slots: Tensor | None = None
        """Where the forward under way writes its M tokens, int64 [M]; None: behind the filled ones."""
        self.steps: dict[tuple[object, ...], object] = {}
        """What `captured` recorded over these buffers."""
        # Keys and values of all layers of one shape lie in one tensor [count, 1, heads, capacity, dim], so that a
        # commit moves rows once and not once a layer. With the number of its entries given out.
        self._slabs: dict[tuple[object, ...], tuple[Tensor, int]] = {}
        self._addresses: npt.NDArray[np.int64] | None = None
        self.tree_layers = [TreeCacheLayer(self) for _ in range(num_layers)]
        super().__init__(layers=list(self.tree_layers))
        self.reserve(capacity)

    def reserve(self, num_tokens: int) -> None:
        """Make room for `num_tokens` in all. Never shrinks."""
        if num_tokens <= self.capacity:
            return
        # By half at least: what was captured over the old buffers is lost with them.
        num_tokens = max(num_tokens, self.capacity + self.capacity // 2)
        self.capacity = -(-num_tokens // GROWTH_STEP) * GROWTH_STEP
        self._move(None)

    def keep_rows(self, rows: Tensor) -> None:
        """Of a batch of conversations keep the rows [B] int64, and forget the others."""
        self._move(rows)

    def _move(self, rows: Tensor | None) -> None:
        self._moving = True
        self._slabs, self.steps, self.slots, self._addresses = {}, {}, None, None
        for layer in self.tree_layers:
            layer.move(self.filled, rows)
        self._moving = False

    def recover(self) -> None:
        """Forget everything if growing was interrupted half-way: the layers' buffers no longer agree then."""
        if self._moving:
            self.length, self.filled, self.capacity, self._slabs, self.steps = 0, 0, 0, {}, {}
            self._addresses = None
            for layer in self.tree_layers:
                layer.is_initialized = False
            self._moving = False

    def allocate(self, states: Tensor) -> Tensor:
        """A buffer [1, heads, capacity, dim] for states [1, heads, M, dim]. Of zeros: what is masked must be finite."""
        batch, heads, _, dim = states.shape
        kind = (batch, heads, dim, states.dtype, states.device)
        if kind not in self._slabs:
            shape = (2 * len(self.tree_layers), batch, heads, self.capacity, dim)
            self._slabs[kind] = (torch.zeros(shape, dtype=states.dtype, device=states.device), 0)
        slab, used = self._slabs[kind]
        self._slabs[kind] = (slab, used + 1)
        return slab[used]

    def addresses(self) -> npt.NDArray[np.int64] | None:
        """Where keys and values of each layer begin, [layers, 2]; None unless all have buffers, alike for both, of one
        conversation in float32 on the CPU."""
        if self._addresses is None:
            kinds = {(kind[0], kind[3], str(kind[4])) for kind in self._slabs}
            buffers = [layer.both for layer in self.tree_layers if layer.is_initialized and layer.both is not None]
            if kinds == {(1, torch.float32, "cpu")} and len(buffers) == len(self.tree_layers):
                self._addresses = np.array([[both[0].data_ptr(), both[1].data_ptr()] for both in buffers])
        return self._addresses

    def show_positions(self, positions: Tensor) -> None:
        """Before a forward of M tokens at `positions` [M], for models that take the positions of some queries to be
        `get_seq_length() + arange(M)`: make that sum the true positions, which those of a tree are not."""
        self.shown = positions - torch.arange(positions.shape[0], device=positions.device)

    def joined(self, keys: Tensor, values: Tensor) -> Tensor | None:
        """Two buffers [1, heads, capacity, dim] that were allocated one after the other, as one view [2, ...]; None
        where they lie in different slabs, because keys and values have different shapes."""
        if keys.shape != values.shape or keys.dtype != values.dtype:
            return None
        slab, used = self._slabs[(*keys.shape[:2], keys.shape[3], keys.dtype, keys.device)]
        return slab[used - 2 : used, 0]

    def make_finite(self, slots: Tensor) -> None:
        """Put 0 where a forward left NaN or infinity at `slots` [M]: attention over whole buffers multiplies what it
        masks by 0, which NaN survives."""
        for slab, _ in self._slabs.values():
            slab.index_copy_(3, slots, slab.index_select(3, slots).nan_to_num_(0.0, 0.0, 0.0))

    def stage(self, num_tokens: int) -> None:
        """Count the tokens of a finished forward pass as staged: later passes see them."""
        self.filled += num_tokens

    def commit(self, path: list[int]) -> None:
        """Keep the staged tokens `path` (offsets from `length`, ascending) and forget the other staged ones."""
        if path != list(range(len(path))):
            end, rows = self.length + len(path), torch.tensor(path) + self.length
            for slab, used in self._slabs.values():
                # index_select makes a copy first, so overlapping source and target rows are safe.
                slab[:used, :, :, self.length : end] = slab[:used].index_select(3, sent(rows, slab.device))
        self.length += len(path)
        self.filled = self.length

    def truncate(self, length: int) -> None:
        """Forget every token from `length` on, staged ones included."""
        self.length = min(self.length, length)
        self.filled = self.length
