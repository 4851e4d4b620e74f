"""What `verify` found, as a JSON-ready document and as a card for people."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from eagle_chat.bench.card import heading, make_table, shown
from eagle_chat.bench.parity import WORST, Check, Findings

MOST_DIFFERENCES = 12
"""Differences that the card lists; the file has them all."""


def parity_document(
    machine: dict[str, Any], target: str, head: str | None, findings: Findings, notes: Sequence[str] = ()
) -> dict[str, Any]:
    """Per prompt (question and turn) the worst verdict with its position and gap, then every check; and the laws."""
    prompts: dict[tuple[int | str, int], list[Check]] = {}
    for check in findings.checks:
        prompts.setdefault((check.question.id, check.turn), []).append(check)
    counts = Counter(check.verdict for check in findings.checks)
    return {
        "machine": machine,
        "target": target,
        "head": head,
        "summary": {verdict: counts[verdict] for verdict in WORST},  # type: ignore[index]  # the three verdicts
        "prompts": [_prompt(checks) for checks in prompts.values()],
        "laws": [
            {"rule": rule, "policy": policy, "temperature": temperature, **test.result()}
            for (rule, policy, temperature), test in findings.laws.items()
        ],
        "partial": findings.partial,
        "notes": list(dict.fromkeys([*notes, *findings.notes])),
    }


def _prompt(checks: Sequence[Check]) -> dict[str, Any]:
    worst = max(checks, key=lambda check: WORST.index(check.verdict))
    return {
        "question_id": worst.question.id,
        "category": worst.question.category,
        "turn": worst.turn,
        "verdict": worst.verdict,
        "position": worst.position,
        "gap_ulps": worst.gap_ulps,
        "checks": [_check(check) for check in checks],
    }


def _check(check: Check) -> dict[str, Any]:
    names = ("policy", "tree", "temperature", "rule", "verdict", "position", "expected", "found")
    return {name: getattr(check, name) for name in (*names, "gap", "gap_ulps", "tolerance_ulps")}


def parity_card(value: dict[str, Any], token_text: Callable[[int], str], ascii_only: bool = False) -> Group:
    """The document of `verify` for people. `token_text`: a token as text."""
    parts: list[RenderableType] = [heading(value), Text(), _equality_table(value, ascii_only)]
    differences = [
        (prompt, check) for prompt in value["prompts"] for check in prompt["checks"] if check["verdict"] != "equal"
    ]
    if differences:
        parts.append(_difference_table(differences[:MOST_DIFFERENCES], token_text, ascii_only))
        left = len(differences) - MOST_DIFFERENCES
        parts += [Text(f"and {left} more (--json has them all)")] if left > 0 else []
    if value["laws"]:
        parts.append(_law_table(value["laws"], ascii_only))
    parts += [shown(f"note: {note}") for note in value["notes"]]
    parts.append(Text(verdict_line(value)))
    return Group(*parts)


def verdict_line(value: dict[str, Any]) -> str:
    """The result in one sentence."""
    summary, laws = value["summary"], value["laws"]
    checked = sum(summary.values())
    wrong_laws = sum(law["verdict"] == "fault" for law in laws)
    begun = "PARTIAL (stopped early): " if value["partial"] else ""
    if summary["fault"] or wrong_laws:
        return (
            f"{begun}FAULT: {summary['fault']} of {checked} answers differ beyond rounding, "
            f"{wrong_laws} of {len(laws)} laws do not fit"
        )
    if not checked and not laws:
        return f"{begun}NOTHING WAS CHECKED"
    ties = f", {summary['tie']} part at a numerical tie" if summary["tie"] else ""
    fits = sum(law["verdict"] == "fits" for law in laws)
    law_words = f"; {fits} of {len(laws)} laws tested fit" if laws else ""
    return f"{begun}LOSSLESS here: {summary['equal']} of {checked} answers equal{ties}{law_words}"


def _equality_table(value: dict[str, Any], ascii_only: bool) -> RenderableType:
    counts: dict[tuple[str, str, float], Counter[str]] = {}
    for prompt in value["prompts"]:
        for check in prompt["checks"]:
            key = (check["policy"], check["rule"], check["temperature"])
            counts.setdefault(key, Counter())[check["verdict"]] += 1
    rows = [
        (
            policy,
            "the target alone" if policy == "plain" else "plain",
            f"{rule} T={temperature:g}",
            *(found[verdict] for verdict in WORST),
        )
        for (policy, rule, temperature), found in counts.items()
    ]
    return make_table("Same tokens", ("answers of", "against", "rule", *WORST), rows, ascii_only)


def _difference_table(
    differences: Sequence[tuple[dict[str, Any], dict[str, Any]]], token_text: Callable[[int], str], ascii_only: bool
) -> RenderableType:
    rows = []
    for prompt, check in differences:
        tokens = ["(end)" if check[side] is None else repr(token_text(check[side])) for side in ("expected", "found")]
        gap = "-" if check["gap_ulps"] is None else f"{check['gap_ulps']:.1f}"
        limit = "-" if check["tolerance_ulps"] is None else f"{check['tolerance_ulps']:.1f}"
        where = f"{prompt['question_id']} turn {prompt['turn'] + 1}"
        rows.append((where, check["policy"], check["rule"], check["position"], *tokens, gap, limit, check["verdict"]))
    columns = ("question", "policy", "rule", "token no.", "expected", "found", "gap (ulps)", "noise (ulps)", "verdict")
    return make_table("First differences", columns, rows, ascii_only)


def _law_table(laws: Sequence[dict[str, Any]], ascii_only: bool) -> RenderableType:
    rows = [
        (
            law["policy"],
            f"{law['rule']} T={law['temperature']:g}",
            law["draws"],
            len(law["groups"]),
            "-" if law["statistic"] is None else f"{law['statistic']:.1f}",
            "-" if law["p_value"] is None else f"{law['p_value']:.3g}",
            law["verdict"],
        )
        for law in laws
    ]
    columns = ("answers of", "rule", "draws", "groups", "chi-square", "p-value", "verdict")
    return make_table("Tokens drawn against the target's own probabilities", columns, rows, ascii_only)
