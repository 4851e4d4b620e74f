"""Trees chosen cycle by cycle, by what they are expected to give and what they cost on this machine.

A node's value is its chance to be accepted, so a cycle with a set of nodes is expected to give 1 + the sum of their
values in tokens. Its seconds come from the cost table. The head drafts level by level, and after each the policy asks
whether another one pays; then it keeps as many of the best nodes as pay. What a second is worth, see `pace`.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

from eagle_chat.core.calibration import Calibration
from eagle_chat.core.children import ChildRule, ranked
from eagle_chat.core.costs import CostTable
from eagle_chat.core.drafting import grow
from eagle_chat.core.growth import DraftInput
from eagle_chat.core.heads.base import DraftHead
from eagle_chat.core.pace import Pace
from eagle_chat.core.tree import DraftTree, UnreadTree


@dataclass(frozen=True)
class AutoTree:
    """At most `depth` levels with `top_k` children a node; how many, and how many nodes are kept, is chosen anew for
    each cycle."""

    depth: int
    top_k: int
    costs: CostTable
    name: str = "dynamic"
    samples_children: bool = False

    @property
    def max_nodes(self) -> int:
        """Most nodes sent to the target, root included."""
        return self.costs.most_nodes

    @property
    def max_staged(self) -> int:
        """Most entries that lie in the head's cache behind the prefix during a draft."""
        return self.top_k * (self.depth - 1)

    def draft(self, head: DraftHead, start: DraftInput, rule: ChildRule | None = None) -> DraftTree | UnreadTree:
        """Expand while it pays, keep what pays; perhaps the root alone."""
        pace, by_rank = start.pace or Pace(self.costs), (start.calibration or Calibration()).by_rank(self.top_k)
        growth = grow(head, start, ranked(rule))
        growth.add_all(self.top_k)
        seconds = self.costs.first
        levels = growth.values()
        while growth.depth < min(self.depth, start.room):
            rows = self._rows(levels, pace)
            if not self._pays(levels, rows, pace, by_rank):
                break
            growth.run_best(rows)
            growth.add_all(self.top_k)
            seconds += self.costs.level_seconds(rows)
            levels = growth.values()
        nodes, _ = self._best(list(itertools.chain(*levels)), pace)
        pace.plan(seconds + self.costs.verify_by_nodes[nodes])
        return growth.tree(kept=nodes - 1)

    def _rows(self, levels: list[list[float]], pace: Pace) -> int:
        """How many of the newest nodes could have children worth keeping: at most `top_k`."""
        price = pace.rate * self.costs.cheapest_node
        return sum(value > price for value in sorted(levels[-1])[-self.top_k :])

    def _pays(self, levels: list[list[float]], rows: int, pace: Pace, by_rank: list[float]) -> bool:
        """Whether another level is expected to give more than it costs. Its nodes' values are guessed from those of
        their parents and from how often children of their rank were chosen so far."""
        if rows == 0:
            return False
        known = list(itertools.chain(*levels))
        parents = sorted(levels[-1])[-rows:]
        guessed = [parent * chance for parent in parents for chance in by_rank]
        cost = pace.rate * self.costs.level_seconds(rows)
        return self._best(known + guessed, pace)[1] - cost > self._best(known, pace)[1]

    def _best(self, values: list[float], pace: Pace) -> tuple[int, float]:
        """The number of nodes, root included, that is worth most, and its worth: expected tokens less its price."""
        verify = self.costs.verify_by_nodes
        best, most, expected = 1, 1.0 - pace.rate * verify[1], 1.0
        for nodes, value in enumerate(sorted(values, reverse=True)[: self.max_nodes - 1], start=2):
            expected += value
            worth = expected - pace.rate * verify[nodes]
            if worth > most:
                best, most = nodes, worth
        return best, most
