"""The draft vocabulary: the tokens that answers use most."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import torch
from torch import Tensor

from eagle_chat.training.dataset import Sample


def token_counts(samples: Iterable[Sample], vocab_size: int) -> Tensor:
    """How often each target id occurs among the assistant tokens, int64 [V]."""
    counts = np.zeros(vocab_size, dtype=np.int64)
    for sample in samples:
        np.add.at(counts, sample.tokens[sample.mask], 1)
    return torch.from_numpy(counts)


def draft_vocabulary(counts: Tensor, size: int) -> Tensor | None:
    """Target ids of the `size` most frequent tokens, ascending, int64 [Vd]; None where that is the whole vocabulary.

    Of equally frequent tokens the lower id goes first, so the choice depends on the counts alone.
    """
    if size >= counts.shape[0]:
        return None
    order = counts.sort(descending=True, stable=True).indices
    return order[:size].sort().values


def covered(counts: Tensor, ids: Tensor | None) -> float:
    """The share of the counted tokens that the draft vocabulary holds."""
    total = int(counts.sum())
    return 1.0 if ids is None or total == 0 else int(counts[ids].sum()) / total
