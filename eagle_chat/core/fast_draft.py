"""A draft of an `eagle3` head on a CPU, in a few compiled calls a level.

What is left to Python and torch between them is short: after a step of the target every instruction of theirs comes
from memory again, so that a level's bookkeeping once took three times as long as its arithmetic.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from eagle_chat.core.cache import TreeCache
from eagle_chat.core.fast_head import FastHead
from eagle_chat.core.fast_layers import FOLDED_ROWS, Norm
from eagle_chat.core.heads.drafter import Drafter
from eagle_chat.core.kernels import Kernels


class CompiledDrafter(Drafter):
    """A `Drafter` of a head whose layer is compiled and reads [norm(embedding), norm(hidden)]."""

    def __init__(self, head: Any, fast: FastHead, norms: tuple[Norm, Norm, Norm], table: Tensor, made: Kernels) -> None:
        """`norms`: of embeddings, of hidden inputs, of outputs. `table` [V, E]: the embeddings."""
        super().__init__(head)
        self._fast, self._norms, self._table, self._kernels = fast, norms, table, made
        self._normed_residual: bool = head.spec.norm_before_residual
        self._normed_output: bool = head.spec.norm_output
        self._is_plain_fuse = len(head.fc_norm) == 0

    @classmethod
    def of(cls, head: Any, fast: FastHead, norms: tuple[Norm, Norm, Norm]) -> CompiledDrafter | None:
        """None where the kernels do not know this head, its sizes or its embeddings."""
        table = head.table if head.embed_tokens is None else head.embed_tokens.weight.detach()
        made = fast.kernels
        if made is None or table is None or table.dtype not in (torch.float32, torch.bfloat16):
            return None
        return cls(head, fast, norms, table, made) if made.fits(table.shape[1]) else None

    def fuse(self, features: Tensor) -> Tensor:
        """See `Drafter`."""
        return self._fast.fc(features.float()) if self._is_plain_fuse else super().fuse(features)

    def run(
        self,
        tokens: list[int],
        hidden: Tensor,
        rows: list[int] | None,
        positions: list[int],
        among_new: Tensor | None,
        cache: TreeCache,
    ) -> Tensor:
        """See `Drafter`."""
        count = len(tokens)
        if count > FOLDED_ROWS or cache.addresses() is None or cache.filled + count > cache.capacity:
            return super().run(tokens, hidden, rows, positions, among_new, cache)
        numbers = torch.tensor([tokens, positions, range(count) if rows is None else rows])
        hidden = hidden.contiguous()
        size, width = self._table.shape[1], hidden.shape[1]
        both = torch.empty(count, size + width)
        for_embedding, for_hidden, for_output = self._norms
        gather = self._kernels.gather
        gather(self._table, numbers[0], both[:, :size], for_embedding.plain, for_embedding.epsilon)
        gather(hidden, numbers[2], both[:, size:], for_hidden.plain, for_hidden.epsilon)
        if self._normed_residual:
            residual = both[:, size:]
        else:
            residual = torch.empty(count, width)
            gather(hidden, numbers[2], residual)
        mask = None if among_new is None else _mask(among_new, cache)
        output = self._fast.run(both, residual, self._fast.rope.at(numbers[1], max(positions)), mask, cache)
        cache.stage(count)
        return for_output(output) if self._normed_output else output

    def logits(self, hidden: Tensor) -> Tensor:
        """See `Drafter`."""
        lm_head = self._fast.lm_head
        if lm_head is None:
            return super().logits(hidden)
        return lm_head(hidden if self._normed_output else self._norms[2](hidden))


def _mask(among_new: Tensor, cache: TreeCache) -> Tensor:
    """The additive mask [1, 1, M, L + S] of entries that all see the committed ones."""
    count, staged = among_new.shape
    mask = torch.zeros(1, 1, count, cache.length + staged)
    mask[0, 0, :, cache.length :].masked_fill_(~among_new, torch.finfo(torch.float32).min)
    return mask
