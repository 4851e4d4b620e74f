"""n-α: how often the head is right with n of its own guesses before it (EAGLE, arXiv 2401.15077, section 4.2).

In chain mode, the draft token at depth n + 1 has n self-predicted inputs before it. It is judged where all tokens
before it were accepted; n-α is the share accepted.
"""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from eagle_chat.bench.plan import Candidate
from eagle_chat.bench.prompts import Question
from eagle_chat.bench.runner import Answer, Asker, DoesNotFit, Stopped
from eagle_chat.core.config import SamplingConfig, TreeConfig
from eagle_chat.core.progress import Report

CHAIN_DEPTH = 5
"""Enough for 0-α to 4-α, which the papers give."""
Z95 = 1.959964
"""The normal distribution's quantile for a two-sided interval of 95 %."""


@dataclass
class Tally:
    """By n: chains that had a token judged there, and those in which it was accepted."""

    judged: Counter[int] = dataclasses.field(default_factory=Counter)
    accepted: Counter[int] = dataclasses.field(default_factory=Counter)

    def add(self, answer: Answer) -> None:
        """Every cycle of one answer."""
        for event in answer.committed:
            for n, right in enumerate(event.levels):
                self.judged[n] += 1
                self.accepted[n] += right

    def rates(self) -> list[dict[str, Any]]:
        """n, counts, rate and its interval, for every n that was reached."""
        return [
            {
                "n": n,
                "judged": self.judged[n],
                "accepted": self.accepted[n],
                "rate": self.accepted[n] / self.judged[n],
                "interval": list(wilson(self.accepted[n], self.judged[n])),
            }
            for n in sorted(self.judged)
        ]


def wilson(successes: int, trials: int) -> tuple[float, float]:
    """Wilson's score interval of 95 % for a share (Wilson 1927); it stays inside 0 to 1 for small counts too."""
    share, scale = successes / trials, Z95 * Z95 / trials
    middle = (share + scale / 2) / (1 + scale)
    half = Z95 / (1 + scale) * math.sqrt(share * (1 - share) / trials + scale / (4 * trials))
    return max(0.0, middle - half), min(1.0, middle + half)


def measure_alpha(
    asker: Asker,
    questions: Sequence[Question],
    sampling: SamplingConfig,
    temperatures: Sequence[float],
    depth: int | None,
    report: Report,
) -> tuple[list[dict[str, Any]], bool]:
    """n-α at each temperature, and whether a person stopped before the end.

    An answer that was cut off is left out, like a round of the comparison.
    """
    depth = depth or CHAIN_DEPTH
    chain = TreeConfig(policy="chain", depth=depth)
    tables: list[dict[str, Any]] = []
    for temperature in temperatures:
        candidate = Candidate("chain", chain, dataclasses.replace(sampling, temperature=temperature))
        tally, asked, stopped = Tally(), 0, False
        try:
            for question in questions:
                what = f"n-alpha at temperature {temperature:g}: question {asked + 1} of {len(questions)}"
                report(what, asked / len(questions))
                conversation = asker.begin()
                try:
                    answers = [
                        asker.ask(question, turn, candidate, conversation) for turn in range(len(question.turns))
                    ]
                except DoesNotFit:
                    continue
                for answer in answers:
                    tally.add(answer)
                asked += 1
        except Stopped:
            stopped = True
        rule = "greedy" if candidate.sampling.greedy else candidate.sampling.verify
        table = {"temperature": temperature, "depth": depth, "verify": rule, "questions": asked}
        tables.append({**table, "alpha": tally.rates()})
        if stopped:
            return tables, True
    return tables, False
