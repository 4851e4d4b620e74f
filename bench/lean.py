"""What the engine costs beyond the forwards of target and head. Every figure is a ratio measured in one run.

python bench/lean.py [--dtype bfloat16] [--cycles 40] [--contexts 200 4000]
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import time
from collections import Counter
from typing import Any

import torch

from eagle_chat import SamplingConfig, TreeConfig, load_engine
from eagle_chat.core.engine import Engine
from eagle_chat.core.events import Committed
from eagle_chat.core.target import cache_keyword

TREE = TreeConfig("dynamic", depth=4, top_k=4, total_tokens=16)
PLAIN = TreeConfig("none")


def prompt_of(engine: Engine, length: int) -> list[int]:
    """A prompt of real text, repeated to `length` tokens."""
    text = "The sea was calm that morning, and the two of them talked about the harbour, the boats and the weather. "
    return list(itertools.islice(itertools.cycle(engine.chat.tokenizer(text)["input_ids"]), length))


def plain_step_ratio(engine: Engine, context: int, pairs: int) -> tuple[float, float]:
    """Median ratio of a plain step to the model's bare forward of one token on the same cache; bare seconds."""
    state = engine.new_state()
    sampling = SamplingConfig(max_new_tokens=pairs + 8, ignore_stop_ids=True)
    stream = engine.stream(prompt_of(engine, context), sampling=sampling, tree=PLAIN, state=state)
    for _ in range(6):
        next(stream)
    keyword = cache_keyword(engine.target.model.forward)
    ratios, bare_seconds = [], []
    for _ in range(pairs):
        start = time.perf_counter()
        next(stream)
        step = time.perf_counter() - start
        token, position = torch.tensor([state.tokens[-1:]]), torch.tensor([[len(state.tokens) - 1]])
        with torch.inference_mode():
            start = time.perf_counter()
            engine.target.model(input_ids=token, position_ids=position, **{keyword: state.cache})
            bare = time.perf_counter() - start
        ratios.append(step / bare)
        bare_seconds.append(bare)
    return statistics.median(ratios), statistics.median(bare_seconds)


class Timer:
    """Adds up the seconds spent inside the wrapped calls."""

    def __init__(self) -> None:
        self.seconds: Counter[str] = Counter()

    def wrap(self, owner: Any, name: str, label: str) -> None:
        """Replace the method by one that is timed."""
        call = getattr(owner, name)

        def timed(*args: Any, **kwargs: Any) -> Any:
            start = time.perf_counter()
            result = call(*args, **kwargs)
            self.seconds[label] += time.perf_counter() - start
            return result

        setattr(owner, name, timed)


def cycle_split(engine: Engine, timer: Timer, context: int, cycles: int) -> dict[str, float]:
    """Medians over the cycles, in seconds: the whole cycle, target forward, head forwards, and the rest."""
    sampling = SamplingConfig(max_new_tokens=1000, ignore_stop_ids=True)
    stream = engine.stream(prompt_of(engine, context), sampling=sampling, tree=TREE)
    rows: list[dict[str, float]] = []
    start, before = time.perf_counter(), Counter(timer.seconds)
    for event in stream:
        whole = time.perf_counter() - start
        if isinstance(event, Committed) and event.cycle > 3:
            spent = timer.seconds - before
            rows.append({"cycle": whole, **spent, "rest": whole - sum(spent.values())})
        if len(rows) == cycles:
            break
        start, before = time.perf_counter(), Counter(timer.seconds)
    return {name: statistics.median(row[name] for row in rows) for name in ("cycle", "target", "head", "rest")}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--cycles", type=int, default=40)
    parser.add_argument("--contexts", type=int, nargs="+", default=[200, 4000])
    options = parser.parse_args()
    engine = load_engine(dtype=options.dtype)
    about = engine.describe()
    print(f"{about['target']}, {about['dtype']}, {about['device']}, {torch.get_num_threads()} threads, tree {TREE}")
    for context in options.contexts:
        ratio, bare = plain_step_ratio(engine, context, options.cycles)
        print(f"context {context}: plain step / bare forward = {ratio:.3f} (bare {bare * 1e3:.1f} ms)", flush=True)
    timer = Timer()
    timer.wrap(engine.target, "forward", "target")
    assert engine.head is not None
    with torch.inference_mode():
        kind = type(engine.head.drafter())
    for name in ("run", "fuse", "best"):
        timer.wrap(kind, name, "head")
    for context in options.contexts:
        split = cycle_split(engine, timer, context, options.cycles)
        shares = ", ".join(f"{name} {1e3 * split[name]:.2f} ms" for name in split)
        print(f"context {context}: {shares}; rest {split['rest'] / split['cycle']:.1%} of the cycle", flush=True)


if __name__ == "__main__":
    main()
