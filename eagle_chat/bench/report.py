"""What was measured as one JSON-ready document. The card, the plot and the file are made from it alone."""

from __future__ import annotations

import json
import string
from collections.abc import Sequence
from typing import Any

from eagle_chat.bench.figures import run_figures
from eagle_chat.bench.prompts import Question
from eagle_chat.bench.runner import Measured

UNSPLIT = (
    "stages are not told apart exactly on this device (that would slow it down): c's total is exact, its split is not"
)
SEVERAL_HEADS = "all heads are in memory at once: peak memory is that of the whole process"
MOST_HEADS = len(string.ascii_uppercase)
EXACT_DTYPE = "float32"
"""The number format in which a draft must not change a single greedy token."""


def document(
    machine: dict[str, Any],
    target: str,
    heads: Sequence[str],
    source: str,
    questions: Sequence[Question],
    measured: Measured | None,
    max_new_tokens: int,
    notes: Sequence[str] = (),
    lengths: Sequence[int] = (),
) -> dict[str, Any]:
    """`machine, target, head, questions, runs` and what belongs to them; of several heads `head` is the first.

    `measured` None: the comparison was not asked for. `lengths`: those that the prompts were made to have. A run
    appears only where at least one question was answered by all candidates.
    """
    answered = measured.questions if measured else []
    if not machine["device"].startswith("cpu"):
        notes = [*notes, UNSPLIT]
    if len(heads) > 1:
        notes = [*notes, SEVERAL_HEADS]
    runs = [_run(measured, index, heads) for index in range(len(measured.candidates))] if measured and answered else []
    return {
        "machine": machine,
        "target": target,
        "head": heads[0] if heads else None,
        "heads": list(heads),
        "questions": {
            "source": source,
            "asked": len(questions),
            "answered": len(answered),
            "ids": [question.id for question in answered],
            "categories": list(dict.fromkeys(question.category for question in questions)),
            "max_new_tokens": max_new_tokens,
            "lengths": list(lengths),
        },
        "runs": runs,
        "partial": bool(measured and measured.partial),
        "notes": list(dict.fromkeys([*notes, *(measured.notes if measured else [])])),
    }


def as_json(value: dict[str, Any]) -> str:
    """The document as text, readable for people too; refuses what JSON has no word for."""
    return json.dumps(value, indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def _run(measured: Measured, index: int, heads: Sequence[str]) -> dict[str, Any]:
    """The run's figures with a short name for it: its policy, how many nodes its tree has, and the head's letter."""
    run, candidate = run_figures(measured, index), measured.candidates[index]
    if candidate.plain:
        return {"label": candidate.policy, "head": None, **run}
    label = f"{candidate.policy} {run['tree'].get('total_tokens')}"
    letter = head_letters(heads)[candidate.head] if heads else ""
    return {"label": f"{letter} {label}".strip(), "head": heads[candidate.head] if heads else None, **run}


def head_letters(heads: Sequence[str]) -> list[str]:
    """A letter for each of several heads, for tables; a single head needs none."""
    return list(string.ascii_uppercase[: len(heads)]) if len(heads) > 1 else [""] * len(heads)


def unlike_plain(value: dict[str, Any]) -> list[str]:
    """Greedy runs in float32 whose tokens differ from plain decoding: there must be none."""
    if value["machine"]["dtype"] != EXACT_DTYPE:
        return []
    return [
        run["label"]
        for run in value["runs"]
        if run["verify"] == "greedy" and run["same_text"]["equal"] != run["same_text"]["of"]
    ]
