"""Greedy τ for many questions and trees at a tenth of the cost: the target's answers are worked out first.

    python bench/known_answers.py QUESTIONS.jsonl --draft HEAD [HEAD ...] [--limit 80] [--tokens 256]

Verification at temperature 0 asks the target only for its best token, and lossless decoding always comes to the same
answer. So the answers are written in batches, each is read once for its features, and then the engine itself runs,
with its own drafting, trees and walk, on a stand-in that says what the target is known to say. τ and acceptance
are those of live decoding up to rounding (`--check N` decodes N questions live, and both are printed); seconds mean
nothing.
Answers are kept in `--cache` for further heads.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import torch
from recorded import Recorded, replaying

from eagle_chat import SamplingConfig, TreeConfig, load_engine
from eagle_chat.core.engine import Engine
from eagle_chat.core.metrics import Metrics
from eagle_chat.training.decode import Request, continue_all
from eagle_chat.training.features import run_target

BATCH = 40
TREES = {
    "chain of 3": TreeConfig("chain", depth=3),
    "N=8, depth 3, top_k 3": TreeConfig("dynamic", depth=3, top_k=3, total_tokens=8),
    "N=16, depth 4, top_k 4": TreeConfig("dynamic", depth=4, top_k=4, total_tokens=16),
    "N=24, depth 5, top_k 6": TreeConfig("dynamic", depth=5, top_k=6, total_tokens=24),
    "N=60, depth 6, top_k 10": TreeConfig("dynamic", depth=6, top_k=10, total_tokens=60),
    "N=60, depth 8, top_k 10": TreeConfig("dynamic", depth=8, top_k=10, total_tokens=60),
    "N=60, depth 12, top_k 8": TreeConfig("dynamic", depth=12, top_k=8, total_tokens=60),
}


def answers(engine: Engine, prompts: list[list[int]], tokens: int) -> list[list[int]]:
    """The target's greedy answers, the stop token included where it came."""
    stops = engine.chat.stop_ids
    done: list[list[int]] = []
    order = sorted(range(len(prompts)), key=lambda at: len(prompts[at]))
    for start in range(0, len(order), BATCH):
        part = order[start : start + BATCH]
        requests = [Request(tuple(prompts[at]), str(at)) for at in part]
        found = continue_all(engine.target, requests, stops, tokens, seed=0)
        done += [[*one.tokens, min(stops)] if one.ended else list(one.tokens) for one in found]
    return [answer for _, answer in sorted(zip(order, done, strict=True))]


def measure(
    engine: Engine, prompts: list[list[int]], known: list[list[int]] | None, tree: TreeConfig, tokens: int
) -> Metrics:
    """τ over the questions: live, or with answers that are known."""
    metrics = Metrics()
    for at, prompt in enumerate(prompts):
        asked = engine if known is None else replaying(engine, read(engine, prompt, known[at]))
        for event in asked.stream(prompt, sampling=SamplingConfig(max_new_tokens=tokens), tree=tree):
            metrics.add(event)
    return metrics


def read(engine: Engine, prompt: list[int], answer: list[int]) -> Recorded:
    """The answer with the target's features of it."""
    assert engine.head is not None
    text = torch.tensor([*prompt, *answer])
    nothing = torch.zeros(1, len(text), dtype=torch.bool)
    found = run_target(engine.target, text[None], nothing, engine.head.spec.taps).features[0]
    return Recorded("", prompt, answer, found, seed=0)


def main() -> None:
    """Answer, then measure every head with every tree."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("questions", type=Path)
    parser.add_argument("--draft", nargs="+", required=True)
    parser.add_argument("--limit", type=int, default=80)
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--trees", nargs="+", type=int, default=list(range(len(TREES))))
    parser.add_argument("--cache", type=Path, default=None)
    parser.add_argument("--check", type=int, default=0)
    options = parser.parse_args()
    lines = [json.loads(line) for line in options.questions.read_text(encoding="utf-8").splitlines()][: options.limit]
    questions = [line["turns"][0] if "turns" in line else line["question"] for line in lines]
    known: list[list[int]] | None = None
    if options.cache and options.cache.is_file():
        known = json.loads(options.cache.read_text(encoding="utf-8"))
    for draft in options.draft:
        engine = load_engine(draft=draft, dtype="float32")
        prompts = [engine.chat.encode([{"role": "user", "content": question}]) for question in questions]
        if known is None:
            known = answers(engine, prompts, options.tokens)
            if options.cache:
                options.cache.write_text(json.dumps(known), encoding="utf-8")
        for label, tree in [list(TREES.items())[at] for at in options.trees]:
            found = measure(engine, prompts, known, tree, options.tokens)
            depths = "/".join(f"{share:.3f}" for share in found.accept_by_depth[: tree.depth])
            print(
                f"{draft}: {label}: τ {found.tau:.3f}, {len(found.token_ids):,} tokens, by depth {depths}", flush=True
            )
            if options.check:
                few = slice(options.check)
                live = measure(engine, prompts[few], None, tree, options.tokens)
                same = measure(engine, prompts[few], known[few], tree, options.tokens)
                print(f"  {options.check} questions: live τ {live.tau:.3f}, known answers τ {same.tau:.3f}", flush=True)


if __name__ == "__main__":
    main()
