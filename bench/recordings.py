"""Makes the recordings that come with the program: each one question, most answered with a draft and without.

Two answers are made in turns, a cycle of each, so that a slow moment of the machine hits both and the cost of a cycle
in plain steps (c) can be read off the file.

python bench/recordings.py demo|code|sampled [--out FILE] [--dtype float32]
"""

from __future__ import annotations

import argparse
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from eagle_chat import SamplingConfig, TreeConfig, load_engine
from eagle_chat.core import recording
from eagle_chat.core.assets import assets_root
from eagle_chat.core.engine import Engine
from eagle_chat.core.events import Committed, Event, Started
from eagle_chat.core.recording import Run


@dataclass(frozen=True)
class Plan:
    """What a recording shows. `beside`: with a plain answer beside the drafted one."""

    question: str
    tree: TreeConfig
    sampling: SamplingConfig
    beside: bool = True


PLANS = {
    # The tree of the embedded default, small enough to be followed node by node.
    "demo": Plan(
        "Write a Python function that reverses a string, and explain in one sentence how it works.",
        TreeConfig("dynamic", depth=3, top_k=3, total_tokens=8),
        SamplingConfig(seed=7, max_new_tokens=80),
        beside=False,
    ),
    # A tree as EAGLE-2 draws it: many nodes, most of which the target's one pass never has to reach.
    "code": Plan(
        "Write a Python function that returns the largest of three numbers.",
        TreeConfig("dynamic", depth=6, top_k=6, total_tokens=60),
        SamplingConfig(max_new_tokens=48),
    ),
    # Above temperature 0 the target's own draw decides, and it is the same with and without a draft.
    "sampled": Plan(
        "Write two sentences about a lighthouse in a storm.",
        TreeConfig("dynamic", depth=4, top_k=4, total_tokens=16),
        SamplingConfig(temperature=1.0, seed=11, max_new_tokens=48),
    ),
}


def record(engine: Engine, plan: Plan) -> list[Run]:
    """The runs, made in turns, once everything is warm."""
    messages = [{"role": "user", "content": plan.question}]
    trees = [plan.tree, TreeConfig("none")] if plan.beside else [plan.tree]
    for tree in trees:
        deque(engine.stream(messages, sampling=SamplingConfig(max_new_tokens=8), tree=tree), maxlen=0)
    runs = [Run(plan.question) for _ in trees]
    streams: list[Iterator[Event]] = [
        engine.stream(messages, sampling=plan.sampling, tree=tree, state=engine.new_state(), trace=tree is plan.tree)
        for tree in trees
    ]
    going = [True] * len(trees)
    while any(going):
        for index, stream in enumerate(streams):
            if going[index]:
                going[index] = advance(stream, runs[index])
    return runs


def advance(stream: Iterator[Event], run: Run) -> bool:
    """Take one cycle of a stream; False at its end."""
    for event in stream:
        # The prompt as the template writes it is long and tells nothing that the question does not.
        run.events.append(event if not isinstance(event, Started) else Started(**{**vars(event), "prompt": None}))
        if isinstance(event, Committed):
            return True
    return False


def main() -> None:
    """Write one of the recordings."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", choices=PLANS)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--dtype", default="float32", choices=("float32", "bfloat16"))
    options = parser.parse_args()
    engine = load_engine(base="smollm2", dtype=options.dtype)
    runs = record(engine, PLANS[options.name])
    path = options.out or assets_root() / "recordings" / f"{options.name}.jsonl"
    recording.write(path, runs)
    path.chmod(0o644)
    for run in runs:
        text = "".join(event.text for event in run.events if isinstance(event, Committed))
        print(f"{run.started.policy if run.started else ''}: {text!r}")
    print(f"{path}: {path.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
