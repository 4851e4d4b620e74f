"""Trees chosen cycle by cycle against a grid of fixed ones, by category of question.

python bench/auto_trees.py --costs FILE.json [--temperature 0] [--tokens 96] [--limit N] [--draft HEAD] [--record FILE]
python bench/auto_trees.py --measure FILE.json [--draft HEAD] [--threads N] [--dtype bfloat16]

The first form replays the built-in questions (see `recorded`) under every tree and gives tokens over the seconds that
the cost table says, so that other work on the machine does not matter. The second one measures such a table; with one
thread by processor time, which other work disturbs least.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path

import torch
from recorded import Recorded, recorded, replaying
from torch import Tensor

from eagle_chat import SamplingConfig, TreeConfig, load_engine
from eagle_chat.bench.prompts import read_questions, select
from eagle_chat.core.config import AUTO_NODES
from eagle_chat.core.cost_measuring import measure
from eagle_chat.core.costs import CostTable
from eagle_chat.core.engine import Engine
from eagle_chat.core.events import Committed
from eagle_chat.core.heads.base import DraftHead
from eagle_chat.core.heads.drafter import Drafter

AUTO = "auto"
GRID = {
    "chain 2": TreeConfig("chain", depth=2),
    "chain 3": TreeConfig("chain", depth=3),
    "4, depth 2": TreeConfig("dynamic", depth=2, top_k=2, total_tokens=4),
    "8, depth 3": TreeConfig("dynamic", depth=3, top_k=3, total_tokens=8),
    "8, depth 5": TreeConfig("dynamic", depth=5, top_k=3, total_tokens=8),
    "12, depth 4": TreeConfig("dynamic", depth=4, top_k=4, total_tokens=12),
    "16, depth 4": TreeConfig("dynamic", depth=4, top_k=4, total_tokens=16),
    "24, depth 6": TreeConfig("dynamic", depth=6, top_k=4, total_tokens=24),
    AUTO: TreeConfig("dynamic", total_tokens=AUTO_NODES),
}
CONTEXT = 128


class Counted:
    """A drafter that notes how many nodes were run for each level."""

    def __init__(self, drafter: Drafter, rows: list[int]) -> None:
        self.fuse, self.run = drafter.fuse, drafter.run
        self._drafter, self._rows = drafter, rows

    def best(self, hidden: Tensor, count: int) -> tuple[list[list[int]], list[list[float]]]:
        """See `Drafter`."""
        self._rows.append(hidden.shape[0])
        return self._drafter.best(hidden, count)

    def logits(self, hidden: Tensor) -> Tensor:
        """See `Drafter`."""
        self._rows.append(hidden.shape[0])
        return self._drafter.logits(hidden)


class Levels:
    """Listens to a head: how many nodes it ran for each level of the draft at hand."""

    def __init__(self, head: DraftHead) -> None:
        self.rows: list[int] = []
        drafter = head.drafter
        head.drafter = lambda: Counted(drafter(), self.rows)  # type: ignore[method-assign, assignment, return-value]

    def seconds(self, costs: CostTable) -> float:
        """What the draft cost by the table; the next one begins."""
        spent = sum(costs.level_seconds(rows) for rows in self.rows[1:]) + costs.first * bool(self.rows)
        self.rows.clear()
        return spent


def replay(
    engine: Engine, answer: Recorded, tree: TreeConfig, costs: CostTable, levels: Levels, temperature: float
) -> tuple[int, int, float]:
    """Tokens, cycles and seconds of one answer; the text must be the recorded one."""
    sampling = SamplingConfig(temperature=temperature, seed=answer.seed, max_new_tokens=len(answer.answer))
    tokens: list[int] = []
    cycles, seconds = 0, 0.0
    for event in replaying(engine, answer, lambda _: costs).stream(answer.prompt, sampling, tree):
        if isinstance(event, Committed):
            tokens += event.token_ids
            drafting = levels.seconds(costs)
            if event.cycle > 0:
                cycles, seconds = cycles + 1, seconds + drafting + costs.verify_by_nodes[event.num_nodes]
    assert tokens == answer.answer, "the draft changed the text"
    return len(tokens) - 1, cycles, seconds


def main() -> None:
    """Measure or replay, and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--measure", type=Path)
    parser.add_argument("--costs", type=Path)
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--tokens", type=int, default=96)
    parser.add_argument("--limit", type=int)
    parser.add_argument("--draft")
    parser.add_argument("--record", type=Path)
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--threads", type=int)
    options = parser.parse_args()
    if (options.measure is None) == (options.costs is None):
        parser.error("one of --measure and --costs expected")
    if options.threads:
        torch.set_num_threads(options.threads)
    engine = load_engine(dtype=options.dtype if options.measure else "float32", draft=options.draft)
    assert engine.head is not None
    if options.measure:
        table = measure(
            engine.target,
            engine.head,
            CONTEXT,
            clock=time.process_time if torch.get_num_threads() == 1 else time.perf_counter,
        )
        options.measure.write_text(json.dumps(table.as_json(), indent=1))
        print(table.note())
        return
    costs = CostTable.from_json(json.loads(options.costs.read_text()))
    assert costs is not None, f"a cost table expected in {options.costs}"
    questions = select(read_questions("builtin"), options.limit)
    with tempfile.TemporaryDirectory() as folder:
        path = options.record or Path(folder) / "answers.pt"
        answers = recorded(path, engine, questions, options.temperature, options.tokens)
    levels = Levels(engine.head)
    sums: dict[tuple[str, str], list[float]] = defaultdict(lambda: [0.0, 0.0, 0.0])
    for number, answer in enumerate(answers, start=1):
        for name, tree in GRID.items():
            for place, value in enumerate(replay(engine, answer, tree, costs, levels, options.temperature)):
                sums[answer.category, name][place] += value
                sums["all", name][place] += value
        print(f"question {number} of {len(answers)}", file=sys.stderr)
    plain = 1.0 / costs.verify[1]
    print(costs.note())
    print("speed-up over plain steps (tokens a cycle), the best fixed tree marked")
    for category in dict.fromkeys(category for category, _ in sums):
        rates = {name: sums[category, name][0] / sums[category, name][2] / plain for name in GRID}
        best = max((name for name in GRID if name != AUTO), key=rates.__getitem__)
        cells = (
            f"{n}{'*' * (n == best)} {rates[n]:.3f} ({sums[category, n][0] / sums[category, n][1]:.2f})" for n in GRID
        )
        print(f"{category:12} {rates[AUTO] / rates[best] - 1:+.1%}  " + "  ".join(cells))


if __name__ == "__main__":
    main()
