"""Answers -> figures: τ, tokens/s, c and what it consists of, speed-up with its interval.

All times are those of the decode phase, prefill apart. The two sides of every comparison come from the same
interleaved run: for each question a candidate's answer has a plain one as partner.
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from eagle_chat.bench.plan import Candidate
from eagle_chat.bench.runner import Answer, Measured, pooled
from eagle_chat.core.events import STAGES
from eagle_chat.core.metrics import Metrics

RESAMPLES = 2000
LEVEL = 0.95
"""Share of the bootstrap's medians that the interval of a speed-up holds."""
FEWEST = 6
"""Questions below which no interval of the median has that level: even the least and the greatest value enclose it only
with probability 1 - 2^(1 - n)."""


def bootstrap(values: Sequence[float], seed: int = 0) -> tuple[float, float] | None:
    """Percentile interval of the median, resampling questions (Efron 1979); None for fewer than `FEWEST` values."""
    if len(values) < FEWEST:
        return None
    generator = random.Random(seed)
    medians = sorted(statistics.median(generator.choices(values, k=len(values))) for _ in range(RESAMPLES))
    outside = round(RESAMPLES * (1.0 - LEVEL) / 2)
    return medians[outside], medians[-1 - outside]


def speed_by_question(answers: Sequence[Answer]) -> dict[int | str, float]:
    """Tokens per second of the decode phase over all turns of each question; without those that had no such phase."""
    by_question: dict[int | str, list[Answer]] = {}
    for answer in answers:
        by_question.setdefault(answer.question.id, []).append(answer)
    speeds = {key: pooled(of_one).tokens_per_second for key, of_one in by_question.items()}
    return {key: speed for key, speed in speeds.items() if speed is not None}


def speedups(answers: Sequence[Answer], plain: Sequence[Answer]) -> list[float]:
    """For each question: the candidate's tokens/s over plain decoding's."""
    own, base = speed_by_question(answers), speed_by_question(plain)
    return [speed / base[key] for key, speed in own.items() if key in base]


def step_costs(metrics: Metrics, plain: Metrics) -> dict[str, float] | None:
    """c = cycle time / plain step time - 1, and its parts by stage, which add up to it.

    A part is what the stage takes more per cycle than it takes in a plain step, in plain steps. None where one of
    the two has no decoding cycle.
    """
    if not metrics.cycles or not plain.cycles:
        return None
    own, base = metrics.seconds, plain.seconds
    step = sum(base[stage] for stage in STAGES) / plain.cycles
    if step <= 0.0:
        return None
    parts = {stage: (own[stage] / metrics.cycles - base[stage] / plain.cycles) / step for stage in STAGES}
    return {"total": sum(parts.values()), **parts}


@dataclass(frozen=True)
class Compared:
    """Answers of one candidate, and those of plain decoding to the same questions."""

    answers: Sequence[Answer]
    plain: Sequence[Answer]
    seed: int
    rule: str

    def figures(self) -> dict[str, Any]:
        """The figures that exist both overall and for a category, as JSON-ready values; None for what cannot be told.

        `speedup`: median over questions of candidate/plain, with its interval. `step_seconds`: mean of a cycle.
        """
        metrics, plain = pooled(self.answers), pooled(self.plain)
        pairs = speedups(self.answers, self.plain)
        interval = bootstrap(pairs, self.seed)
        spent = sum(metrics.seconds[stage] for stage in STAGES)
        return {
            "tau": metrics.tau,
            "tokens_per_second": metrics.tokens_per_second,
            "speedup": statistics.median(pairs) if pairs else None,
            "speedup_interval": list(interval) if interval else None,
            "c": step_costs(metrics, plain),
            "questions": len({answer.question.id for answer in self.answers}),
            "tokens": len(metrics.token_ids),
            "cycles": metrics.cycles,
            "step_seconds": spent / metrics.cycles if metrics.cycles else None,
            "prefill": self._prefill(metrics),
        }

    def _prefill(self, metrics: Metrics) -> dict[str, float]:
        """Tokens that had to be run before the answers (what a conversation already held is not), and their time."""
        tokens = sum(answer.started.prompt_tokens - answer.started.reused_tokens for answer in self.answers)
        return {"tokens": tokens, "seconds": metrics.seconds["prefill"]}

    def same_text(self) -> dict[str, Any] | None:
        """How many answers have the tokens of their plain partner, and the first question where one has not.

        None under the rejection rule, which promises the same law and not the same draw.
        """
        if self.rule == "rejection":
            return None
        pairs = list(zip(self.answers, self.plain, strict=True))
        different = [mine.question.id for mine, base in pairs if mine.token_ids != base.token_ids]
        return {
            "equal": len(pairs) - len(different),
            "of": len(pairs),
            "first_different": different[0] if different else None,
        }

    def of_category(self, category: str) -> Compared:
        """Only the questions of one category."""
        chosen = [answer for answer in self.answers if answer.question.category == category]
        base = [answer for answer in self.plain if answer.question.category == category]
        return Compared(chosen, base, self.seed, self.rule)


def run_figures(measured: Measured, index: int) -> dict[str, Any]:
    """One run of the report: a candidate by its tree and temperature, with all that was measured of it."""
    candidate, answers = measured.candidates[index], measured.answers[index]
    rule = "greedy" if candidate.sampling.greedy else candidate.sampling.verify
    plain = measured.answers[partner(measured.candidates, candidate)]
    compared = Compared(answers, plain, candidate.sampling.seed, rule)
    overall = compared.figures()
    leading = ("tau", "tokens_per_second", "speedup", "speedup_interval", "c")
    metrics = pooled(answers)
    memory = [answer.peak_memory for answer in answers if answer.peak_memory is not None]
    categories = dict.fromkeys(question.category for question in measured.questions)
    return {
        "policy": candidate.policy,
        "tree": answers[0].started.tree,
        "temperature": candidate.sampling.temperature,
        **{name: overall.pop(name) for name in leading},
        "accept_lengths": metrics.summary()["accept_lengths"],
        "by_category": {category: compared.of_category(category).figures() for category in categories},
        **overall,
        "accept_by_depth": metrics.accept_by_depth,
        "seconds": metrics.seconds,
        "seed": candidate.sampling.seed,
        "verify": rule,
        "same_text": compared.same_text(),
        "peak_memory_bytes": max(memory, default=None),
    }


def partner(candidates: Sequence[Candidate], candidate: Candidate) -> int:
    """Where the plain decoding of the same temperature stands."""
    return next(
        index
        for index, other in enumerate(candidates)
        if other.plain and other.sampling.temperature == candidate.sampling.temperature
    )
