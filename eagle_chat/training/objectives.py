"""What a head is taught, and how well it would draft."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from eagle_chat.core.heads.base import DraftHead
from eagle_chat.training.features import Batch, Teacher
from eagle_chat.training.unroll import unroll, unrolled_attention

JUDGED, AGREED, REACHED, CHAINED = range(4)
"""Columns of the counts of a step: predictions judged; those that name the target's best token; predictions whose
earlier steps all did; those of them that do as well."""


@dataclass(frozen=True)
class Weights:
    """How the parts of the loss are weighed; see `TrainConfig`."""

    step_decay: float = 0.8
    regression: float = 1.0
    classification: float = 0.1
    scale_regression: bool = True
    noise: float = 0.1
    dropout: float = 0.0


class Objective(nn.Module):
    """Loss and counts of a head on a batch; the module that is trained, so that it can be wrapped for several
    processes."""

    def __init__(
        self, head: DraftHead, teacher: Teacher, weights: Weights, loss_teacher: Teacher | None = None
    ) -> None:
        """`teacher` knows the head's vocabulary. While an eagle head is trained, `loss_teacher` with a smaller one may
        stand in for it and for the LM head of the target, which is the same matrix."""
        super().__init__()
        self.head, self.weights = head, weights
        self._teacher, self._loss_teacher = teacher, loss_teacher

    def forward(self, batch: Batch, steps: int, noise: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        """The loss, and counts float64 [steps, 4]; see `JUDGED` and the others for the columns.

        With `noise` the inputs are disturbed by it, as in training. A batch in which nothing bears loss gives 0.
        """
        smaller = self._loss_teacher if self.training else None
        laws = _Laws(batch, smaller or self._teacher)
        with unrolled_attention(self.head):
            hidden = self.head.fuse(self._disturbed(batch.features.float(), noise))
            total = hidden.sum() * 0.0  # part of the graph also where nothing bears loss
            counts: list[Tensor] = []
            unbroken = torch.ones_like(batch.mask)  # [B, T]: every earlier step named the target's best token
            outputs = unroll(self.head, batch.tokens, _dropped(hidden, self.weights.dropout, noise), steps)
            for step, output in enumerate(outputs):
                loss, right, judged = self._step(batch, laws, step, output, smaller)
                total = total + self.weights.step_decay**step * loss
                counts.append(_count(judged, right, unbroken))
                unbroken = unbroken & right
        return total, torch.stack(counts)

    def _disturbed(self, features: Tensor, noise: torch.Generator | None) -> Tensor:
        """Uniform noise on an eagle head's features: at inference they are its own guesses (2401.15077, section 4)."""
        if noise is None or self.head.spec.architecture != "eagle" or self.weights.noise == 0.0:
            return features
        uniform = torch.rand(features.shape, generator=noise, device=features.device)
        return features + (2.0 * uniform - 1.0) * self.weights.noise

    def _step(
        self, batch: Batch, laws: _Laws, step: int, output: Tensor, smaller: Teacher | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Loss of one step; bool [B, T] of the positions judged, and of those that name the target's best token.

        Output t is held against the target's law of token t+2+step, which it gives at position t+1+step.
        """
        judged = F.pad(batch.mask[:, 2 + step :], (0, min(2 + step, batch.mask.shape[1])))  # [B, T]
        rows, at = judged.nonzero(as_tuple=True)
        right = torch.zeros_like(judged)
        if rows.numel() == 0:
            return output.sum() * 0.0, right, judged
        hidden = output[rows, at]  # [M, H]
        best = batch.best[rows, at + 1 + step]  # [M]
        logits = self.head.logits(hidden).float() if smaller is None else smaller.logits(hidden)  # [M, Vd]
        named = logits.detach().argmax(dim=-1)
        right[rows, at] = (self.head.target_ids(named) if smaller is None else smaller.target_ids(named)) == best
        loss = soft_cross_entropy(logits, laws.at(rows, at + 1 + step), (smaller or self._teacher).knows(best))
        if self.head.spec.architecture == "eagle":
            final = batch.final[rows, at + 1 + step].float()
            regression = smooth_l1(hidden, final, self.weights.scale_regression)
            loss = self.weights.classification * loss + self.weights.regression * regression
        return loss, right, judged


class _Laws:
    """The target's law over the draft vocabulary at every position that is asked for; each is worked out once, although
    every step of the unroll asks for nearly the same."""

    @torch.no_grad()
    def __init__(self, batch: Batch, teacher: Teacher) -> None:
        known = batch.best >= 0  # [B, T]
        self._laws = teacher.logits(batch.final[known]).softmax(dim=-1)  # [known, Vd]
        self._places = torch.zeros_like(batch.best)
        self._places[known] = torch.arange(self._laws.shape[0], device=batch.best.device)

    def at(self, rows: Tensor, positions: Tensor) -> Tensor:
        """Probabilities [M, Vd] at the positions [M] of rows [M]."""
        return self._laws[self._places[rows, positions]]


def soft_cross_entropy(logits: Tensor, law: Tensor, counted: Tensor) -> Tensor:
    """Mean over the rows in `counted` bool [M] of -sum p log q, p the `law` and q from `logits`, both [M, Vd]."""
    expected = (law * logits).sum(dim=-1)
    losses = logits.logsumexp(dim=-1) - expected  # [M]
    return (losses * counted).sum() / counted.sum().clamp(min=1)


def smooth_l1(predicted: Tensor, features: Tensor, scaled: bool) -> Tensor:
    """SmoothL1 between features [M, H]. `scaled`: in units of their root mean square, because some targets' final
    features are tens of times larger than others', and the step length should not depend on it."""
    if scaled:
        unit = features.pow(2).mean().sqrt().clamp(min=1e-6)
        predicted, features = predicted / unit, features / unit
    return F.smooth_l1_loss(predicted, features)


def _dropped(hidden: Tensor, share: float, noise: torch.Generator | None) -> Tensor:
    """Dropout with noise of our own, so that a resumed run draws the same."""
    if noise is None or share == 0.0:
        return hidden
    kept = torch.rand(hidden.shape, generator=noise, device=hidden.device) >= share
    return hidden * kept / (1.0 - share)


def _count(judged: Tensor, right: Tensor, unbroken: Tensor) -> Tensor:
    reached = judged & unbroken
    return torch.stack([judged.sum(), right.sum(), reached.sum(), (reached & right).sum()]).double()


@dataclass(frozen=True)
class Acceptance:
    """Offline acceptance by step. `by_step`: the target's best token named, whatever the steps before it did;
    `in_chain`: given that they all did, which is the n-α of a chain at temperature 0. `chain_tau`: tokens per cycle
    that a chain of so many steps would give from a random position."""

    by_step: tuple[float, ...]
    in_chain: tuple[float, ...]
    chain_tau: float
    judged: int


def acceptance(counts: Tensor) -> Acceptance:
    """The figures from counts [steps, 4]."""
    rows = counts.tolist()
    by_step = tuple(row[AGREED] / max(row[JUDGED], 1.0) for row in rows)
    in_chain = tuple(row[CHAINED] / max(row[REACHED], 1.0) for row in rows)
    tau, reached = 1.0, 1.0
    for share in in_chain:
        reached *= share
        tau += reached
    return Acceptance(by_step, in_chain, tau, int(rows[0][JUDGED]) if rows else 0)
