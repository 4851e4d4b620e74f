"""Tokens a second of answering many questions at once, against one by one.

python bench/batched_decoding.py QUESTIONS.jsonl --rows 32 --tokens 32 [--base smollm2]
"""

from __future__ import annotations

import argparse
import time

from eagle_chat.training.config import CorpusConfig
from eagle_chat.training.decode import Request, continue_all
from eagle_chat.training.filters import read_questions
from eagle_chat.training.prepare import load_target


def main() -> None:
    """Measure and print both rates, each after a warm-up, and their ratio."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("questions")
    parser.add_argument("--base", default="smollm2")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--rows", type=int, default=32)
    parser.add_argument("--alone", type=int, default=2, help="questions answered one by one")
    parser.add_argument("--tokens", type=int, default=32)
    given = parser.parse_args()
    target, chat = load_target(CorpusConfig(out="unused", base=given.base, device=given.device))
    questions = sorted(read_questions([given.questions]), key=len)[: given.rows]
    requests = [
        Request(tuple(chat.encode([{"role": "user", "content": text}])), text, 0.7 * (at % 2))
        for at, text in enumerate(questions)
    ]
    continue_all(target, requests[:1], (), 4, seed=0)

    def rate(groups: list[list[Request]]) -> float:
        start = time.perf_counter()
        answers = [continue_all(target, group, (), given.tokens, seed=0) for group in groups]
        return sum(len(one.tokens) for group in answers for one in group) / (time.perf_counter() - start)

    alone = rate([[request] for request in requests[: given.alone]])
    together = rate([requests])
    print(f"one by one {alone:.1f} tokens/s")
    print(f"{len(requests)} at once {together:.1f} tokens/s, {together / alone:.1f} times")


if __name__ == "__main__":
    main()
