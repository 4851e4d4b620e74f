"""The engine against figures that two other programs reached with the same head, target and questions.

    python bench/reference.py QUESTIONS.jsonl [--dtype bfloat16] [--limit 10] [--tokens 160]

Questions: first turns of every eighth line, cut to 600 characters, greedy. The figures of the others are in the
shipped head's `figures.json`.
"""

from __future__ import annotations

import argparse
import json
import time
from collections import Counter
from pathlib import Path

from eagle_chat import SamplingConfig, TreeConfig, load_engine
from eagle_chat.core.events import Committed

TREES = {
    "8 nodes, depth 3, top_k 3": TreeConfig("dynamic", depth=3, top_k=3, total_tokens=8),
    "chain of 3": TreeConfig("chain", depth=3),
    "16 nodes, depth 4, top_k 4": TreeConfig("dynamic", depth=4, top_k=4, total_tokens=16),
}


def main() -> None:
    """Run every tree over the questions and print τ and acceptance by depth."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("questions", type=Path)
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--limit", type=int, default=10)
    parser.add_argument("--tokens", type=int, default=160)
    parser.add_argument("--trees", type=int, nargs="+", default=list(range(len(TREES))), help="which of the trees")
    parser.add_argument("--ignore-stop", action="store_true", help="go on past the end of the answer")
    options = parser.parse_args()
    lines = [json.loads(line) for line in options.questions.read_text(encoding="utf-8").splitlines()]
    questions = [line["turns"][0][:600] for line in lines[0:80:8]][: options.limit]
    engine = load_engine(dtype=options.dtype)
    for label, tree in [list(TREES.items())[index] for index in options.trees]:
        start = time.perf_counter()
        by_depth: Counter[int] = Counter()
        per_question = []
        for question in questions:
            sampling = SamplingConfig(max_new_tokens=options.tokens, ignore_stop_ids=options.ignore_stop)
            events = engine.stream([{"role": "user", "content": question}], sampling=sampling, tree=tree)
            cycles = [event for event in events if isinstance(event, Committed) and event.cycle > 0]
            by_depth.update(depth for event in cycles for depth, accepted in enumerate(event.levels, 1) if accepted)
            per_question.append((len(cycles), sum(len(event.token_ids) for event in cycles)))
        totals = [sum(column) for column in zip(*per_question, strict=True)]
        later = [sum(column) for column in zip(*per_question[1:], strict=True)] or totals
        print(
            f"{options.dtype}, {label}: τ {totals[1] / totals[0]:.3f} ({later[1] / later[0]:.3f} without the first "
            f"question), {totals[0]} cycles, {totals[1]} tokens, accepted by depth {dict(sorted(by_depth.items()))}, "
            f"{time.perf_counter() - start:.0f} s",
            flush=True,
        )


if __name__ == "__main__":
    main()
