"""How fast an answer is going, and whether drafting has paid lately. Seconds are those of the cost table, not of a
clock, so that the same answer is drafted in the same way every time."""

from __future__ import annotations

from eagle_chat.core.costs import CostTable

MEMORY = 64
"""Cycles over which the rate is averaged, about."""
FIRST_GUESS = 1.3
"""Tokens a plain step's time that are expected before anything was seen, with the weight of `MEMORY` / 8 cycles."""
CREDIT = 4.0
"""Most tokens that drafting can be ahead of plain steps or behind: how long it takes to give up."""
SHORTEST_REST, LONGEST_REST = 4, 64
"""Plain steps after drafting was given up, doubled each time that it does not pay when tried again."""


class Pace:
    """Tokens a second so far, and the credit of drafting.

    The rate is the price of a second: a cycle is worth its tokens less the tokens that its time would have given at
    this rate. Choosing by that difference, and not by tokens over seconds of the single cycle, is what makes the
    tokens a second of the whole answer largest (the renewal-reward theorem; Dinkelbach's method for ratios).
    """

    def __init__(self, costs: CostTable) -> None:
        self.costs = costs
        self._plain = costs.verify[1]
        self._seconds = self._plain * MEMORY / 8
        self._tokens = FIRST_GUESS * MEMORY / 8
        self._planned: float | None = None
        self._credit = CREDIT / 2
        self._rest, self._resting = SHORTEST_REST, 0

    @property
    def rate(self) -> float:
        """Tokens a second."""
        return self._tokens / self._seconds

    @property
    def rests(self) -> bool:
        """Whether the next step is a plain one, because drafting did not pay."""
        return self._resting > 0

    def plan(self, seconds: float) -> None:
        """A draft was made: its cycle takes so many seconds."""
        self._planned = seconds

    def record(self, tokens: int) -> None:
        """A cycle has given so many tokens."""
        if self._planned is not None:
            self._judge(tokens - 1.0 - self.rate * (self._planned - self._plain))
        keep = 1.0 - 1.0 / MEMORY
        self._tokens = keep * self._tokens + tokens
        self._seconds = keep * self._seconds + (self._planned or self._plain)
        self._planned = None
        self._resting = max(self._resting - 1, 0)

    def _judge(self, gain: float) -> None:
        """A draft has given so many tokens more than a plain step and the time it took."""
        self._credit = min(self._credit + gain, CREDIT)
        if self._credit <= 0:
            # Given up. Nothing is left for the next attempt: it must pay at once to be followed by another.
            self._credit, self._resting = 0.0, self._rest + 1
            self._rest = min(2 * self._rest, LONGEST_REST)
        elif gain > 0:
            self._rest = SHORTEST_REST
