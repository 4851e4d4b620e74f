"""Do sampled answers follow the target's own law?

Each drawn token is put into a group by its rank in the target's distribution after the same prefix. Whatever the rule
and the draft, its chance of a group must be the target's probability of that group. The groups' counts over all
tokens are held against the sums of these probabilities. The distributions differ from token to token, so the
covariance of the counts is summed up with them: Q = D^T V^-1 D, with D = counts - expected, is chi-square distributed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor

RANKS = (1, 2, 4, 8, 16, 32)
"""Last rank of each group; one more group holds the rest."""
LEAST_EXPECTED = 5.0
"""Groups with fewer expected draws are joined to the better-ranked one beside them (the usual bound)."""
ALARM = 1e-4
"""A p-value below this is a fault: one false alarm in ten thousand tests."""
STRAY_SHARE = 0.01
"""Draws of tokens that the target's warpers exclude, allowed outside float32, where rounding moves the border."""

LawVerdict = Literal["fits", "fault", "too few draws"]


class LawTest:
    """Counts draws by group."""

    def __init__(self, exact: bool) -> None:
        """`exact`: the same prefix always has the same distribution (float32), so that no draw may be impossible."""
        self._exact = exact
        size = len(RANKS) + 1
        self._observed = torch.zeros(size, dtype=torch.float64)
        self._expected = torch.zeros(size, dtype=torch.float64)
        self._covariance = torch.zeros(size, size, dtype=torch.float64)
        self.draws = 0
        self.impossible = 0

    def add(self, probabilities: Tensor, token: int) -> None:
        """One draw from a law over the vocabulary, [V]."""
        best = probabilities.double().topk(min(RANKS[-1], len(probabilities)))
        rank = (best.indices == token).nonzero()
        place = int(rank[0]) + 1 if len(rank) else RANKS[-1] + 1
        up_to = best.values.cumsum(0)
        bounds = torch.stack([up_to[min(last, len(up_to)) - 1] for last in RANKS])
        law = torch.cat((bounds[:1], bounds.diff(), 1.0 - bounds[-1:])).clamp_(min=0.0).cpu()
        self._expected += law
        self._covariance += law.diag() - torch.outer(law, law)
        self._observed[sum(place > last for last in RANKS)] += 1
        self.draws += 1
        self.impossible += float(probabilities[token]) == 0.0

    def result(self) -> dict[str, Any]:
        """Draws, groups, statistic, p-value and verdict, JSON-ready."""
        groups = _joined(self._expected.tolist())
        rows = torch.zeros(len(groups), len(self._expected), dtype=torch.float64)
        for row, members in enumerate(groups):
            rows[row, members] = 1.0
        statistic, p_value = self._test(rows)
        return {
            "draws": self.draws,
            "impossible": self.impossible,
            "groups": [
                {
                    "ranks": _name(members),
                    "expected": float(rows[row] @ self._expected),
                    "observed": int(rows[row] @ self._observed),
                }
                for row, members in enumerate(groups)
            ],
            "statistic": statistic,
            "degrees": len(groups) - 1,
            "p_value": p_value,
            "verdict": self._verdict(p_value),
        }

    def _test(self, rows: Tensor) -> tuple[float | None, float | None]:
        """Q and its p-value; None with fewer than two groups. `rows` [G, groups]: who belongs together."""
        degrees = len(rows) - 1
        if degrees < 1:
            return None, None
        free = rows[:-1]  # the last group's count follows from the others
        difference = free @ (self._observed - self._expected)
        covariance = free @ self._covariance @ free.T
        statistic = float(difference @ torch.linalg.pinv(covariance, hermitian=True) @ difference)
        # The chi-square distribution's upper tail is a regularised incomplete gamma function.
        shape, at = torch.tensor(degrees / 2, dtype=torch.float64), torch.tensor(statistic / 2, dtype=torch.float64)
        return statistic, float(torch.special.gammaincc(shape, at.clamp(min=0.0)))

    def _verdict(self, p_value: float | None) -> LawVerdict:
        allowed = 0.0 if self._exact else STRAY_SHARE * self.draws
        if self.impossible > allowed or (p_value is not None and p_value < ALARM):
            return "fault"
        return "too few draws" if p_value is None else "fits"


def _joined(expected: Sequence[float]) -> list[list[int]]:
    """Neighbouring groups put together from the worst rank up until each has enough expected draws."""
    groups: list[list[int]] = []
    waiting: list[int] = []
    for index in reversed(range(len(expected))):
        waiting.insert(0, index)
        if sum(expected[member] for member in waiting) >= LEAST_EXPECTED:
            groups.insert(0, waiting)
            waiting = []
    if waiting and groups:
        groups[0] = waiting + groups[0]
    elif waiting:
        groups = [waiting]
    return groups


def _name(members: Sequence[int]) -> str:
    first = 1 if members[0] == 0 else RANKS[members[0] - 1] + 1
    if members[-1] == len(RANKS):
        return f"{first}+"
    last = RANKS[members[-1]]
    return str(first) if first == last else f"{first}-{last}"
