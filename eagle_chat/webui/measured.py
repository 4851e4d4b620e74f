"""What passes of the target cost on this machine, as far as the page's engines have measured it."""

from __future__ import annotations

import statistics
import time
import weakref
from collections.abc import Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from eagle_chat.core.config import SamplingConfig, TreeConfig
from eagle_chat.core.events import Committed, Event

if TYPE_CHECKING:
    from eagle_chat.core.engine import Engine
    from eagle_chat.core.state import DecodingState

STEPS = 6
"""Plain steps that are timed."""
AGAIN = 20.0
"""Seconds after which they are timed anew: other programs come and go, and the cycles beside them are of today."""


@dataclass(frozen=True)
class Measured:
    """`passes`: seconds of a target pass by its nodes. `plain`: seconds of a plain step by stage. Empty: not known."""

    passes: Mapping[int, float] = field(default_factory=dict)
    plain: Mapping[str, float] = field(default_factory=dict)


class Measurements:
    """What is known of each engine."""

    def __init__(self) -> None:
        self._plain: weakref.WeakKeyDictionary[Engine, dict[str, float]] = weakref.WeakKeyDictionary()
        self._when: weakref.WeakKeyDictionary[Engine, float] = weakref.WeakKeyDictionary()

    def of(self, engine: Engine | None) -> Measured:
        """What is known by now; nothing of an engine that is not there."""
        if engine is None:
            return Measured()
        table = engine.known_costs
        return Measured(table.verify if table is not None else {}, self._plain.get(engine, {}))

    def learn(self, engine: Engine, state: DecodingState) -> None:
        """Time the last tokens of an answer again, in plain steps, unless that was done just now. The state is left at
        what they gave, which the next turn compares with its own tokens."""
        fresh = time.monotonic() - self._when.get(engine, -AGAIN) < AGAIN
        if fresh or engine.head is None or len(state.tokens) <= STEPS + 2:
            return
        prompt = state.tokens[: -STEPS - 1]
        sampling, tree = SamplingConfig(max_new_tokens=STEPS + 1), TreeConfig(policy="none")
        with closing(engine.stream(prompt, sampling=sampling, tree=tree, state=state)) as events:
            self.note(engine, events)

    def note(self, engine: Engine, events: Iterable[Event]) -> None:
        """Keep the median step of a plain answer; nothing where it is too short for one."""
        steps = [event.seconds for event in events if isinstance(event, Committed) and event.cycle > 0]
        if len(steps) >= STEPS // 2:
            middle = statistics.median_low([sum(step.values()) for step in steps])
            self._plain[engine] = next(step for step in steps if sum(step.values()) == middle)
            self._when[engine] = time.monotonic()
