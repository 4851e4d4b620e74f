"""Attention masks and position ids of draft trees, as pure functions.

Everything derives from `parents`: one integer per node, `parents[0] = -1`, `parents[i] < i`. A mask is additive and
of the model's floating dtype: 0 where a query may look, the dtype's most negative number where it may not.
"""

from __future__ import annotations

import torch
from torch import Tensor


def depths(parents: list[int]) -> list[int]:
    """Depth of every node, the root's being 0. `parents` as in the module's text."""
    result: list[int] = []
    for parent in parents:
        result.append(0 if parent < 0 else result[parent] + 1)
    return result


def ancestor_matrix(parents: list[int]) -> Tensor:
    """Who sees whom inside the tree: bool [N, N], row i true at i and at every ancestor of i."""
    # Lists rather than tensors while it grows: for a few dozen nodes an operation on a row costs more than the row.
    seen: list[list[bool]] = []
    for node, parent in enumerate(parents):
        row = list(seen[parent]) if parent >= 0 else [False] * len(parents)
        row[node] = True
        seen.append(row)
    return torch.tensor(seen, dtype=torch.bool)


def causal_matrix(num_new: int) -> Tensor:
    """Who sees whom among tokens in a row: bool [M, M], lower triangle. The ancestor matrix of a chain."""
    return torch.ones(num_new, num_new, dtype=torch.bool).tril_()


def tree_visibility(
    among_new: Tensor,
    positions: Tensor,
    num_cached: int,
    window: int | None = None,
    chunked: bool = False,
) -> Tensor:
    """What each new token may attend to: bool [M, L + S] for L = `num_cached` tokens before S others.

    `among_new` [M, S]: visibility among the others, usually the M new ones themselves. `positions` [M]: position ids
    of the new tokens; the cached ones have 0..L-1. `window` W: a query at position p sees positions above p - W only
    (sliding-window attention), which counts positions, not places in the flattened tree. `chunked`: the positions are
    cut into blocks of W instead, and a query sees its own block only (Llama 4).
    """
    device = among_new.device
    cached = torch.ones(among_new.shape[0], num_cached, dtype=torch.bool, device=device)
    visible = torch.cat((cached, among_new), dim=1)  # [M, L + M]
    if window is not None:
        key_positions = torch.cat((torch.arange(num_cached, device=device), positions))  # [L + M]
        visible &= _within(positions, key_positions, window, chunked)
    return visible


def placed_visibility(
    among: Tensor, positions: Tensor, base: Tensor, capacity: int, window: int | None = None, chunked: bool = False
) -> Tensor:
    """`tree_visibility` over the whole of a cache whose lengths are values on the device: bool [M, capacity].

    `base` [1]: committed tokens, with positions 0..base-1, seen by all. `among` [M, S]: who sees the S places behind
    them; nobody sees what lies further. With a `window`, S is M and `positions` [M] are theirs.
    """
    places = torch.arange(capacity, device=among.device)
    staged = places - base  # [capacity], below 0 for committed ones
    inside = staged.clamp(0, among.shape[1] - 1)
    visible = (staged < 0) | (among.index_select(1, inside) & (staged < among.shape[1]))
    if window is None:
        return visible
    keys = torch.where(staged < 0, places, positions.index_select(0, inside.clamp(max=positions.shape[0] - 1)))
    return visible & _within(positions, keys, window, chunked)


def _within(positions: Tensor, keys: Tensor, window: int, chunked: bool) -> Tensor:
    """Which keys at positions [K] lie in the window, or the block, of queries at positions [M]: bool [M, K]."""
    if chunked:
        return positions[:, None] // window == keys[None, :] // window
    return positions[:, None] - keys[None, :] < window


def additive(visible: Tensor, dtype: torch.dtype, device: torch.device | str | None = None) -> Tensor:
    """The 4D mask [1, 1, M, L + M] that transformers adds to attention scores, from a bool [M, L + M]."""
    mask = torch.zeros(visible.shape, dtype=dtype, device=visible.device)
    mask.masked_fill_(~visible, torch.finfo(dtype).min)
    return mask[None, None].to(device) if device is not None else mask[None, None]


def draw(visible: Tensor) -> str:
    """The mask as rows of 0 and 1, for people and for tests."""
    return "\n".join(" ".join("1" if cell else "0" for cell in row) for row in visible.tolist())
