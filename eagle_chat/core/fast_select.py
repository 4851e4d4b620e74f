"""The few best of a long row of scores, without sorting the row.

A row of 50,000 is looked at once, in blocks; only the blocks with the highest maxima can hold the best, so only they
are searched.
"""

from __future__ import annotations

import torch
from torch import Tensor

BLOCK = 64
"""Neighbouring scores whose maximum is taken first."""
LONG = 16384
"""Rows shorter than this are left to torch, whose one operation is then as fast as these six."""


def top_k(scores: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Values and indices, both [R, count] and best first, of the highest scores [R, V]. NaN counts as highest, as it
    does for torch."""
    rows, size = scores.shape
    if count > BLOCK or size < LONG:
        best = scores.topk(count, dim=-1)
        return best.values, best.indices
    whole = size - size % BLOCK
    blocks = scores[:, :whole].view(rows, -1, BLOCK)
    # The best `count` lie in at most `count` blocks, and those have the highest maxima.
    chosen = blocks.amax(dim=-1).topk(min(count, blocks.shape[1]), dim=-1).indices  # [R, B]
    places = (chosen[:, :, None] * BLOCK + torch.arange(BLOCK, device=scores.device)).flatten(1)  # [R, B * BLOCK]
    if whole < size:  # what does not fill a block is searched in any case
        rest = torch.arange(whole, size, device=scores.device).expand(rows, -1)
        places = torch.cat((places, rest), dim=1)
    best = scores.gather(1, places).topk(count, dim=-1)
    return best.values, places.gather(1, best.indices)
