"""How often the target really chose what the draft gave a chance: corrects node values while an answer goes on."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from eagle_chat.core.transfer import sent
from eagle_chat.core.tree import DraftTree
from eagle_chat.core.verification import Acceptance

WIDTH = 0.35
"""Width of a class of chances, in nats."""
CLASSES = 16
BY_RANK = (0.45, 0.12, 0.06, 0.04, 0.03, 0.02, 0.02, 0.01, 0.01, 0.01)
"""How often the child of each rank is taken to be chosen before anything was seen."""
PRIOR = 4.0
"""Hits that a class is taken to have had as predicted before anything was seen."""


class Calibration:
    """Classes of predicted chances, with what came of them.

    A class holds chances of about the same size; its factor is hits over predicted hits, both counted from `PRIOR`, so
    that nothing changes before something was seen. Judged is every drafted child, kept or not, of every node whose
    target token is known.
    """

    def __init__(self) -> None:
        self._hits = [PRIOR] * CLASSES
        self._predicted = [PRIOR] * CLASSES
        self._logs: list[float] = []
        self._factors: Tensor | None = None
        self._judged = [PRIOR] * len(BY_RANK)
        self._chosen = [PRIOR * share for share in BY_RANK]

    def adjust(self, chances: Tensor) -> Tensor:
        """Log-chances after recalibration, same shape; never above 0, so that no child outweighs its parent."""
        if self._factors is None or self._factors.device != chances.device:
            self._factors = sent(torch.tensor(self._ratios()), chances.device)
        classes = (chances * (-1.0 / WIDTH)).clamp_(0, CLASSES - 1).long()
        return (chances + self._factors[classes]).clamp_(max=0.0)

    def adjusted(self, chances: list[float]) -> list[float]:
        """`adjust` for a list."""
        ratios = self._ratios()
        return [min(chance + ratios[_class(chance)], 0.0) for chance in chances]

    def _ratios(self) -> list[float]:
        """By class, the log of hits over predicted hits."""
        if not self._logs:
            self._logs = [math.log(hit / predicted) for hit, predicted in zip(self._hits, self._predicted, strict=True)]
        return self._logs

    def by_rank(self, count: int) -> list[float]:
        """How often the first `count` children of a node were chosen, each."""
        shares = [chosen / judged for chosen, judged in zip(self._chosen, self._judged, strict=True)]
        return [*shares, *[shares[-1]] * (count - len(shares))][:count]

    def observe(self, tree: DraftTree, acceptance: Acceptance) -> None:
        """Learn from one verified tree."""
        drawn = tree.drawn
        if drawn is None:
            return
        slots = [0, *drawn.slots]
        for token, parent, chance, rank in zip(drawn.tokens, drawn.parents, drawn.chances, drawn.ranks, strict=True):
            choice = acceptance.choices.get(slots[parent])
            if choice is not None:
                kind = _class(chance)
                self._hits[kind] += token == choice
                self._predicted[kind] += math.exp(chance)
                if rank < len(BY_RANK):
                    self._judged[rank] += 1.0
                    self._chosen[rank] += token == choice
        self._factors, self._logs = None, []


def _class(chance: float) -> int:
    return min(max(int(chance * (-1.0 / WIDTH)), 0), CLASSES - 1)
