"""A draft of an `eagle3` head on a CPU, in a few compiled calls a level.

What is left to Python and torch between them is short: after a step of the target every instruction of theirs comes
from memory again, so that a level's bookkeeping once took three times as long as its arithmetic.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from eagle_chat.core import fast_select
from eagle_chat.core.cache import TreeCache
from eagle_chat.core.fast_compiled import STATES, CompiledLayers, bits
from eagle_chat.core.fast_head import FastHead
from eagle_chat.core.fast_layers import Norm
from eagle_chat.core.fast_linear import Matrix, Panels
from eagle_chat.core.heads.drafter import Drafter
from eagle_chat.core.kernel_machine import CHOICE, INPUTS
from eagle_chat.core.kernels import DTYPES

OF_INPUTS = [INPUTS.index(name) for name in ("tokens", "places", "hidden")]
OF_CHOICE = [CHOICE.index(name) for name in ("hidden", "normed", "logits", "ids", "values", "rows", "count", "threads")]
"""Those of the arguments that change from call to call."""


class CompiledDrafter(Drafter):
    """A `Drafter` of a head whose layer is compiled and reads [norm(embedding), norm(hidden)]."""

    def __init__(self, head: Any, fast: FastHead, layers: CompiledLayers, table: Tensor, norms: Sequence[Norm]) -> None:
        """`norms`: of embeddings, of hidden inputs, of outputs. `table` [V, E]: the embeddings."""
        super().__init__(head)
        self._fast, self._layers, self._table, self._norms = fast, layers, table, norms  # which are pointed to
        self._is_plain_fuse = len(head.fc_norm) == 0
        self._output_norm = norms[2] if head.spec.norm_output else None
        lm_head = _panels(fast.lm_head)
        assert lm_head is not None
        for_embedding, for_hidden, for_output = (norm.plain.data_ptr() for norm in norms)
        self._inputs = _arguments(
            INPUTS,
            table=table.data_ptr(),
            embedding_norm=for_embedding,
            hidden_norm=for_hidden,
            residual_norm=for_hidden if head.spec.norm_before_residual else 0,
            form=int(table.dtype is torch.bfloat16),
            embedding_size=table.shape[1],
            hidden_size=head.spec.hidden_size,
            epsilon=bits(norms[0].epsilon),
        )
        self._choice = _arguments(
            CHOICE,
            norm=0 if head.spec.norm_output else for_output,
            weight=lm_head.data_ptr(),
            form=list(DTYPES).index(lm_head.dtype),
            hidden_size=head.spec.hidden_size,
            size=head.spec.draft_vocab_size,
            epsilon=bits(norms[2].epsilon),
        )
        self._draft_ids: list[int] | None = None if head.draft_ids is None else head.draft_ids.tolist()

    @classmethod
    def of(cls, head: Any, fast: FastHead, norms: Sequence[Norm]) -> CompiledDrafter | None:
        """None where the kernels do not know this head, its sizes or its embeddings."""
        table = head.table if head.embed_tokens is None else head.embed_tokens.weight.detach()
        layers = fast.compiled
        if layers is None or table is None or table.dtype not in (torch.float32, torch.bfloat16):
            return None
        fits = layers.kernels.fits(table.shape[1]) and layers.kernels.fits(head.spec.draft_vocab_size)
        return cls(head, fast, layers, table, norms) if fits and _panels(fast.lm_head) is not None else None

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
        if not self._layers.takes(count, cache):
            return super().run(tokens, hidden, rows, positions, among_new, cache)
        numbers = np.array([tokens, range(count) if rows is None else rows, positions])
        mask = None if among_new is None else _mask(among_new, cache)
        rotation = self._fast.rope.at(torch.from_numpy(numbers[2]), max(positions))
        frame = self._layers.frame(count, rotation, [mask], cache)
        assert frame is not None, "the mask was made for this cache"
        hidden = hidden.float().contiguous()
        width = hidden.shape[1]
        states, both = torch.empty(2, count, width), torch.empty(count, self._table.shape[1] + width)
        frame.call[:STATES] = states.data_ptr(), both.data_ptr()
        inputs, start = self._inputs.copy(), numbers.ctypes.data
        inputs[OF_INPUTS] = start, start + 8 * count, hidden.data_ptr()
        self._layers.kernels.level(inputs.ctypes.data, frame.call_address, frame.layers_address)
        cache.stage(count)
        return states[1] if self._output_norm is None else self._output_norm(states[1])

    def logits(self, hidden: Tensor) -> Tensor:
        """See `Drafter`."""
        nothing = torch.empty(0)
        return self._choose(hidden, 0, nothing, nothing)[0]

    def best(self, hidden: Tensor, count: int) -> tuple[list[list[int]], list[list[float]]]:
        """See `Drafter`."""
        rows = hidden.shape[0]
        ids, values = torch.empty(rows, count, dtype=torch.int64), torch.empty(rows, count)
        if count > fast_select.BLOCK or not self._choose(hidden, count, ids, values)[1]:
            return super().best(hidden, count)  # NaN or infinity is in the way
        names, draft_ids = ids.tolist(), self._draft_ids
        tokens = names if draft_ids is None else [[draft_ids[name] for name in row] for row in names]
        return tokens, values.tolist()

    def _choose(self, hidden: Tensor, count: int, ids: Tensor, values: Tensor) -> tuple[Tensor, bool]:
        """Logits [M, Vd]; with a `count`, the best into `ids` and `values` [M, count], and whether to use them."""
        rows, hidden = hidden.shape[0], hidden.float().contiguous()
        choice = self._choice.copy()
        normed, logits = torch.empty_like(hidden), torch.empty(rows, self._head.spec.draft_vocab_size)
        choice[OF_CHOICE] = (
            *(tensor.data_ptr() for tensor in (hidden, normed, logits, ids, values)),
            rows,
            count,
            torch.get_num_threads(),
        )
        return logits, bool(self._layers.kernels.choose(choice.ctypes.data))


def _arguments(names: Sequence[str], **values: int) -> npt.NDArray[np.int64]:
    """These numbers in the places of their names, 0 in all others."""
    return np.array([values.get(name, 0) for name in names])


def _panels(lm_head: Matrix | None) -> Tensor | None:
    """The panels in which an LM head lies for any number of rows; None where it does not."""
    form = None if lm_head is None else lm_head.many
    whole = lm_head is not None and lm_head.one is form and isinstance(form, Panels) and form.bias is None
    return form.panels if whole and isinstance(form, Panels) else None


def _mask(among_new: Tensor, cache: TreeCache) -> Tensor:
    """The additive mask [1, 1, M, L + S] of entries that all see the committed ones."""
    count, staged = among_new.shape
    mask = torch.zeros(1, 1, count, cache.length + staged)
    mask[0, 0, :, cache.length :].masked_fill_(~among_new, torch.finfo(torch.float32).min)
    return mask
