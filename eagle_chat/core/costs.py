"""What drafting and verifying cost, as a table: seconds by number of nodes or rows, of a target with its head."""

from __future__ import annotations

import bisect
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any


@dataclass(frozen=True)
class CostTable:
    """Seconds, by measured size. `verify`: a forward of the target by nodes; 1 is a plain step. `first`: what a draft
    costs up to its first level. `level`: a further level, by nodes that the head runs."""

    verify: dict[int, float]
    first: float
    level: dict[int, float]

    @property
    def most_nodes(self) -> int:
        """The largest tree that was measured."""
        return max(self.verify)

    @cached_property
    def verify_by_nodes(self) -> list[float]:
        """Entry N: seconds for N nodes, N up to `most_nodes`; never falling, because measurements scatter."""
        seconds = [0.0]
        for nodes in range(1, self.most_nodes + 1):
            seconds.append(max(seconds[-1], _between(self.verify, nodes)))
        return seconds

    @cached_property
    def cheapest_node(self) -> float:
        """The least seconds that a node costs beside others, over all sizes of a tree."""
        seconds = self.verify_by_nodes
        costs = [(seconds[nodes] - seconds[1]) / (nodes - 1) for nodes in range(2, len(seconds))]
        return min(costs, default=0.0)

    def level_seconds(self, rows: int) -> float:
        """A further level for which the head runs so many nodes."""
        return _between(self.level, rows)

    def note(self) -> str:
        """The figures in a sentence for people."""
        steps = ", ".join(f"{nodes}: {1e3 * seconds:.1f}" for nodes, seconds in self.verify.items())
        level = 1e3 * self.level_seconds(4)
        return f"chosen by measurement, cycle by cycle: ms by nodes verified {steps}; a draft level {level:.1f} ms"

    def as_json(self) -> dict[str, Any]:
        """The table as JSON-ready values."""
        return {"verify": _named(self.verify), "first": self.first, "level": _named(self.level)}

    @classmethod
    def from_json(cls, value: Any) -> CostTable | None:
        """The table that `as_json` described; None where the value is none (a damaged memory)."""
        try:
            verify, level = _numbered(value["verify"]), _numbered(value["level"])
            table = cls(verify, float(value["first"]), level)
        except (TypeError, ValueError, KeyError, AttributeError):
            return None
        return table if 1 in verify and level and min(*verify.values(), *level.values(), table.first) > 0 else None


CostsOf = Callable[[int], CostTable]
"""The cost table for a context of so many tokens."""


def _named(values: dict[int, float]) -> dict[str, float]:
    return {str(size): seconds for size, seconds in values.items()}


def _numbered(values: dict[str, Any]) -> dict[int, float]:
    return {int(size): float(seconds) for size, seconds in values.items()}


def _between(measured: dict[int, float], size: int) -> float:
    """Linear between the measured sizes, level outside them."""
    sizes = sorted(measured)
    right = bisect.bisect_left(sizes, size)
    if right == len(sizes) or right == 0:
        return measured[sizes[min(right, len(sizes) - 1)]]
    low, high = sizes[right - 1], sizes[right]
    share = (size - low) / (high - low)
    return measured[low] + share * (measured[high] - measured[low])
