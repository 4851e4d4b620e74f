"""The noise that the target draws with, computed once for each position although drafts ask for it too."""

from __future__ import annotations

import torch
from torch import Tensor

from eagle_chat.core import sampling
from eagle_chat.core.sampling import Stream


class TargetNoise:
    """Gumbel noise of one answer by absolute position, float64 [V].

    A draft looks at the positions of its levels, and the next cycle comes back to most of them. So an answer computes
    about as much noise with a draft as without.
    """

    def __init__(self, seed: int, size: int, device: torch.device) -> None:
        self._seed, self._size, self._device = seed, size, device
        self._known: dict[int, Tensor] = {}

    def __call__(self, position: int) -> Tensor:
        """The noise of the token at `position`; the same numbers as `sampling.gumbel` gives."""
        if position not in self._known:
            self._known[position] = sampling.gumbel(self._seed, Stream.TARGET, position, self._size, self._device)
        return self._known[position]

    def forget_before(self, position: int) -> None:
        """Free what no later step can ask for."""
        for known in [known for known in self._known if known < position]:
            del self._known[known]
