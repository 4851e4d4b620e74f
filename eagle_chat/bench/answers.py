"""Answers in the format that EAGLE's and Spec-Bench's evaluation scripts read: a file for each run, a line a question.

Their scripts take `new_tokens` over `wall_time` for the speed, `idxs` (the number of the last cycle, from 0) or
`decoding_steps` (the number of cycles) for tokens per cycle, and `accept_lengths` (tokens a cycle, bonus included).
As in theirs, `new_tokens` counts what the cycles gave, without the prefill's own token.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from eagle_chat.bench.runner import Answer


def answer_lines(answers: Sequence[Answer], model_id: str, timestamp: float) -> str:
    """One run's answers, a line a question. `timestamp`: seconds since 1970."""
    by_question: dict[int | str, list[Answer]] = {}
    for answer in answers:
        by_question.setdefault(answer.question.id, []).append(answer)
    lines = []
    for number, turns in by_question.items():
        value = {
            "question_id": number,
            "category": turns[0].question.category,
            "answer_id": f"{model_id}-{number}",
            "model_id": model_id,
            "choices": [_choice(turns)],
            "tstamp": timestamp,
        }
        lines.append(json.dumps(value, ensure_ascii=False) + "\n")
    return "".join(lines)


def _choice(turns: Sequence[Answer]) -> dict[str, Any]:
    cycles = [[len(event.token_ids) for event in answer.committed if event.cycle > 0] for answer in turns]
    return {
        "index": 0,
        "turns": [answer.text for answer in turns],
        "idxs": [len(of_turn) - 1 for of_turn in cycles],
        "decoding_steps": [len(of_turn) for of_turn in cycles],
        "new_tokens": [sum(of_turn) for of_turn in cycles],
        "wall_time": [answer.wall_seconds for answer in turns],
        "accept_lengths": [length for of_turn in cycles for length in of_turn],
    }


def answer_path(path: Path, label: str) -> Path:
    """Where the answers of one run go: their scripts want a file for each. "a.jsonl" -> "a-dynamic-8.jsonl"."""
    return path.with_name(f"{path.stem}-{label.replace(' ', '-')}{path.suffix or '.jsonl'}")
