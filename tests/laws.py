"""Whether drawn tokens follow the law they should follow."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Mapping

from scipy import stats

FITS, FAILS = 1e-3, 1e-9
"""A right law's p-value lies above the first, a deliberately wrong one's below the second. Seeds are fixed, so a test
that passes once passes always."""


def p_value(drawn: Iterable[Hashable], law: Mapping[Hashable, float]) -> float:
    """Chi-square test of draws against a law; 0 where something impossible was drawn."""
    counts = Counter(drawn)
    possible = [value for value, chance in law.items() if chance > 0]
    if set(counts) - set(possible):
        return 0.0
    scale = sum(counts.values()) / sum(law.values())
    expected = [law[value] * scale for value in possible]
    assert min(expected) > 5, "too few draws for a chi-square test"
    return float(stats.chisquare([counts[value] for value in possible], expected).pvalue)
