"""Draft confidence against acceptance: the reason why a dynamic tree works (EAGLE-2, arXiv 2406.16858, section 3).

Confidence is the head's probability q of a drafted token after its parent. A token is judged where its parent was
accepted (or is the root) and it was sent to the target; it is accepted where the target chose it. If q is honest, a
share q of the tokens with confidence q is accepted. No noise is shared here: it sends a token of low q only where the
target is likely to draw it, and the share would say nothing of q.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from eagle_chat.bench.plan import Candidate
from eagle_chat.bench.prompts import Question
from eagle_chat.bench.runner import Asker, DoesNotFit, Stopped
from eagle_chat.core.config import SamplingConfig, TreeConfig
from eagle_chat.core.events import Drafted, Event, Verified
from eagle_chat.core.progress import Report

BINS = 10


@dataclass
class Bin:
    """Judged tokens whose confidence falls in one tenth."""

    count: int = 0
    accepted: int = 0
    confidence: float = 0.0
    """The sum of their confidences."""


@dataclass
class Calibration:
    """By depth, `BINS` equal bins of confidence."""

    depths: dict[int, list[Bin]] = field(default_factory=dict)
    _drafted: Drafted | None = None

    def add(self, event: Event) -> None:
        """Take the next event of a traced run."""
        if isinstance(event, Drafted):
            self._drafted = event
        elif isinstance(event, Verified) and self._drafted is not None:
            self._judge(self._drafted, event)
            self._drafted = None

    def _judge(self, drafted: Drafted, verified: Verified) -> None:
        status = {node.slot: node.status for node in verified.nodes}
        for node in drafted.nodes:
            if node.depth == 0 or node.slot < 0 or status[node.slot] == "unreached":
                continue
            bins = self.depths.setdefault(node.depth, [Bin() for _ in range(BINS)])
            chosen = bins[min(int(node.q * BINS), BINS - 1)]
            chosen.count += 1
            chosen.accepted += status[node.slot] == "accepted"
            chosen.confidence += node.q

    def table(self) -> list[dict[str, Any]]:
        """By depth: counts, and for each bin that holds something its mean confidence and its acceptance.

        `error` is the expected calibration error: |acceptance - confidence| of the bins, weighted by their counts.
        """
        return [_depth_row(depth, self.depths[depth]) for depth in sorted(self.depths)]


def _depth_row(depth: int, bins: list[Bin]) -> dict[str, Any]:
    judged = sum(one.count for one in bins)
    return {
        "depth": depth,
        "judged": judged,
        "accepted": sum(one.accepted for one in bins),
        "confidence": sum(one.confidence for one in bins) / judged,
        "error": sum(abs(one.accepted - one.confidence) for one in bins) / judged,
        "bins": [
            {
                "low": index / BINS,
                "high": (index + 1) / BINS,
                "count": one.count,
                "accepted": one.accepted,
                "confidence": one.confidence / one.count,
                "rate": one.accepted / one.count,
            }
            for index, one in enumerate(bins)
            if one.count
        ],
    }


def measure_calibration(
    asker: Asker,
    questions: Sequence[Question],
    sampling: SamplingConfig,
    temperatures: Sequence[float],
    tree: TreeConfig,
    report: Report,
) -> tuple[list[dict[str, Any]], bool]:
    """A table at each temperature, and whether a person stopped before the end.

    Above temperature 0 the target's own draw decides (the coupled rule): under rejection later children are judged
    by what earlier ones left over.
    """
    dynamic = dataclasses.replace(tree, policy="dynamic", paths=None, shared_noise=False)
    tables: list[dict[str, Any]] = []
    for temperature in temperatures:
        config = dataclasses.replace(sampling, temperature=temperature, verify="coupled")
        calibration, asked, stopped, shape = Calibration(), 0, False, {}
        listener = Asker(asker.engine, asker.system, asker.stop, calibration.add)
        try:
            for question in questions:
                what = f"calibration at temperature {temperature:g}: question {asked + 1} of {len(questions)}"
                report(what, asked / len(questions))
                conversation = listener.begin()
                with contextlib.suppress(DoesNotFit):
                    for turn in range(len(question.turns)):
                        answer = listener.ask(question, turn, Candidate("dynamic", dynamic, config), conversation)
                        shape = answer.started.tree
                    asked += 1
        except Stopped:
            stopped = True
        table = {"temperature": temperature, "tree": shape, "questions": asked}
        tables.append({**table, "depths": calibration.table()})
        if stopped:
            return tables, True
    return tables, False
