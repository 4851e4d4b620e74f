"""What a server tells of its drafting, in sentences that all views share."""

from __future__ import annotations

from eagle_chat.core.events import Reported


def drafting(report: Reported | None) -> str:
    """How the server drafts, as far as its counts tell."""
    if report is None or not report.cycles:
        return "this server tells nothing about drafts"
    depth = len(report.accepted_by_position)
    if depth and report.draft_tokens == depth * report.cycles:
        return f"this server drafts chains of {depth}: no tree to show"
    return "of this server's drafts only counts are known"


def others(report: Reported) -> str | None:
    """A warning where the counts are not of this answer alone."""
    return "counts are of all its answers: others asked too" if report.others else None
