"""A finding: what was looked at, what was found, why it is so, and what to do. Plain values, JSON-ready."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from eagle_chat.core.errors import EagleChatError, HeadMismatchError

Severity = Literal["ok", "note", "warning", "error"]
FAILED, MISFIT = EagleChatError.exit_code, HeadMismatchError.exit_code


@dataclass(frozen=True)
class Finding:
    """One result of one check.

    `group`: machine, target, text, head, memory or run. `found`: a sentence or less. `cause` and `remedy` belong to
    everything that is not "ok". `values`: the figures behind it. `exit_code` counts where the severity is "error".
    """

    group: str
    check: str
    severity: Severity
    found: str
    cause: str = ""
    remedy: str = ""
    values: dict[str, Any] = field(default_factory=dict)
    exit_code: int = FAILED


def ok(group: str, check: str, found: str, **values: Any) -> Finding:
    """Nothing to be done."""
    return Finding(group, check, "ok", found, values=values)


def from_error(group: str, check: str, error: EagleChatError, cause: str = "", remedy: str = "") -> Finding:
    """A finding from a message of the form "expected, found: remedy"."""
    message = str(error)
    end = max(message.rfind(": "), message.rfind("; "))
    found, advice = (message[:end], message[end + 2 :]) if end > 0 else (message, "")
    return Finding(group, check, "error", found, cause, remedy or advice, exit_code=error.exit_code)


def worst(findings: Sequence[Finding]) -> Severity:
    """The gravest severity, "ok" for none."""
    order: tuple[Severity, ...] = ("error", "warning", "note")
    present = {finding.severity for finding in findings}
    return next((severity for severity in order if severity in present), "ok")


def exit_code(findings: Sequence[Finding]) -> int:
    """0 without an error, else the code of the first one: what comes later may be its consequence."""
    return next((finding.exit_code for finding in findings if finding.severity == "error"), 0)


def as_document(findings: Sequence[Finding], **about: Any) -> dict[str, Any]:
    """Everything as one JSON-ready object; an "ok" has no exit code, cause or remedy."""
    rows = []
    for finding in findings:
        row = {name: value for name, value in asdict(finding).items() if value not in ("", {})}
        if finding.severity != "error":
            del row["exit_code"]
        rows.append(row)
    counts = {severity: sum(one.severity == severity for one in findings) for severity in ("error", "warning", "note")}
    return {**about, "worst": worst(findings), "exit_code": exit_code(findings), "counts": counts, "findings": rows}
