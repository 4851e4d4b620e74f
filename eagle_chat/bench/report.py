"""What was measured as one JSON-ready document. The card, the plot and the file are made from it alone."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from eagle_chat.bench.figures import run_figures
from eagle_chat.bench.prompts import Question
from eagle_chat.bench.runner import Measured

UNSPLIT = (
    "stages are not told apart exactly on this device (that would slow it down): c's total is exact, its split is not"
)
EXACT_DTYPE = "float32"
"""The number format in which a draft must not change a single greedy token."""


def document(
    machine: dict[str, Any],
    target: str,
    head: str | None,
    source: str,
    questions: Sequence[Question],
    measured: Measured | None,
    max_new_tokens: int,
    notes: Sequence[str] = (),
) -> dict[str, Any]:
    """`machine, target, head, questions, runs` and what belongs to them.

    `measured` None: the comparison was not asked for. A run appears only where at least one question was answered by
    all candidates.
    """
    answered = measured.questions if measured else []
    if not machine["device"].startswith("cpu"):
        notes = [*notes, UNSPLIT]
    runs = [run_figures(measured, index) for index in range(len(measured.candidates))] if measured and answered else []
    return {
        "machine": machine,
        "target": target,
        "head": head,
        "questions": {
            "source": source,
            "asked": len(questions),
            "answered": len(answered),
            "ids": [question.id for question in answered],
            "categories": list(dict.fromkeys(question.category for question in questions)),
            "max_new_tokens": max_new_tokens,
        },
        "runs": runs,
        "partial": bool(measured and measured.partial),
        "notes": list(dict.fromkeys([*notes, *(measured.notes if measured else [])])),
    }


def as_json(value: dict[str, Any]) -> str:
    """The document as text, readable for people too; refuses what JSON has no word for."""
    return json.dumps(value, indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def run_label(run: dict[str, Any]) -> str:
    """A short name for a run: its policy and how many nodes its tree has."""
    nodes = run["tree"].get("total_tokens")
    return run["policy"] if run["policy"] == "plain" else f"{run['policy']} {nodes}"


def unlike_plain(value: dict[str, Any]) -> list[str]:
    """Greedy runs in float32 whose tokens differ from plain decoding: there must be none."""
    if value["machine"]["dtype"] != EXACT_DTYPE:
        return []
    return [
        run_label(run)
        for run in value["runs"]
        if run["verify"] == "greedy" and run["same_text"]["equal"] != run["same_text"]["of"]
    ]
