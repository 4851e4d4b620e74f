"""The few best of a long row of scores, without sorting the row.

A row of 50,000 is looked at once, in blocks; only the blocks with the highest maxima can hold the best, so only they
are searched. On a CPU our own `kernels` do it, and the softmax, in one go.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from eagle_chat.core.kernels import kernels

IMPOSSIBLE = -1e6
"""Stands for log 0 in values, which are added up and sorted and so must be finite."""
BLOCK = 64
"""Neighbouring scores whose maximum is taken first."""
LONG = 16384
"""Rows shorter than this are left to torch, whose one operation is then as fast as these six."""


def best(logits: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Ids and log-softmax of the `count` highest logits of each row [R, V], both [R, count] and best first."""
    compiled = kernels() if logits.device.type == "cpu" and logits.dtype is torch.float32 else None
    if compiled is not None and count <= BLOCK and compiled.fits(logits.shape[1]):
        found = compiled.best(logits, count)
        if found is not None:
            return found
    log_q, ids = top_k(logits.log_softmax(dim=-1), count)
    return ids, usable(log_q, logits.shape[1])


def usable(log_probs: Tensor, size: int) -> Tensor:
    """Without NaN, which cannot be ranked. Any law of `size` tokens may stand in: the target decides what is
    accepted."""
    return log_probs.clamp_(max=0.0).nan_to_num_(nan=-math.log(size), neginf=IMPOSSIBLE)


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
