"""Tokens a cycle above temperature 0, with and without the target's noise in the draft.

python bench/shared_noise.py [--temperature 1] [--tokens 96] [--limit N] [--draft HEAD] [--record FILE] [--check N]
                             [--questions FILE]

The questions (built-in ones, if no file is given) are answered once by the target (float32) and replayed for every
tree, see `recorded`. Intervals are bootstrapped over questions. `--check` runs so many questions through the whole
engine and compares cycle by cycle.
"""

from __future__ import annotations

import argparse
import dataclasses
import random
import sys
import tempfile
from pathlib import Path

from recorded import Recorded, recorded, replaying

from eagle_chat import SamplingConfig, TreeConfig, load_engine
from eagle_chat.bench.prompts import read_questions, select
from eagle_chat.core.engine import Engine
from eagle_chat.core.events import Committed

TREES = {
    "chain of 3": TreeConfig("chain", depth=3),
    "N=8": TreeConfig("dynamic", depth=3, top_k=3, total_tokens=8),
    "N=16": TreeConfig("dynamic", depth=4, top_k=4, total_tokens=16),
    "N=60": TreeConfig("dynamic", depth=6, top_k=10, total_tokens=60),
}
RESAMPLES = 2000

Counts = list[tuple[int, int]]
"""By question: tokens and cycles."""


def cycles(engine: Engine, answer: Recorded, tree: TreeConfig, sampling: SamplingConfig) -> list[int]:
    """Tokens of each decoding cycle; the text must be the recorded one."""
    events = [event for event in engine.stream(answer.prompt, sampling, tree) if isinstance(event, Committed)]
    assert [token for event in events for token in event.token_ids] == answer.answer, "the draft changed the text"
    return [len(event.token_ids) for event in events if event.cycle > 0]


def sampling_of(answer: Recorded, temperature: float) -> SamplingConfig:
    """As it was drawn."""
    return SamplingConfig(temperature=temperature, seed=answer.seed, max_new_tokens=len(answer.answer))


def tau(counts: Counts) -> float:
    """Tokens a cycle."""
    return sum(tokens for tokens, _ in counts) / sum(number for _, number in counts)


def interval(with_noise: Counts, without: Counts) -> tuple[float, float]:
    """The middle 95 % of the gain of τ, over questions drawn again."""
    draws = random.Random(0)
    gains = []
    for _ in range(RESAMPLES):
        rows = draws.choices(range(len(without)), k=len(without))
        gains.append(tau([with_noise[row] for row in rows]) / tau([without[row] for row in rows]) - 1)
    gains.sort()
    return gains[int(0.025 * RESAMPLES)], gains[int(0.975 * RESAMPLES)]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--temperature", type=float, default=1.0)
    parser.add_argument("--tokens", type=int, default=96)
    parser.add_argument("--limit", type=int)
    parser.add_argument("--draft")
    parser.add_argument("--record", type=Path)
    parser.add_argument("--questions", default="builtin")
    parser.add_argument("--check", type=int, default=0)
    parser.add_argument("--trees", nargs="+", choices=list(TREES), default=list(TREES))
    options = parser.parse_args()
    engine = load_engine(dtype="float32", draft=options.draft)
    questions = select(read_questions(options.questions), options.limit)
    with tempfile.TemporaryDirectory() as folder:
        path = options.record or Path(folder) / "answers.pt"
        answers = recorded(path, engine, questions, options.temperature, options.tokens)
    drawn = sum(len(answer.answer) for answer in answers)
    print(
        f"{engine.describe()['target']}, head {engine.head_name}, T {options.temperature:g}, {drawn} tokens", flush=True
    )
    for name in options.trees:
        counts: dict[bool, Counts] = {True: [], False: []}
        for number, answer in enumerate(answers):
            for shared, rows in counts.items():
                asked = dataclasses.replace(TREES[name], shared_noise=shared)
                sampling = sampling_of(answer, options.temperature)
                done = cycles(replaying(engine, answer), answer, asked, sampling)
                if number < options.check:
                    assert done == cycles(engine, answer, asked, sampling), "the replay is not what the engine does"
                rows.append((sum(done), len(done)))
            print(f"{name}: question {number + 1} of {len(answers)}", file=sys.stderr)
        low, high = interval(counts[True], counts[False])
        gain = tau(counts[True]) / tau(counts[False]) - 1
        print(
            f"{name:10}  tau without {tau(counts[False]):.3f}  with {tau(counts[True]):.3f}  "
            f"gain {gain:+.1%} ({low:+.1%} to {high:+.1%})",
            flush=True,
        )


if __name__ == "__main__":
    main()
