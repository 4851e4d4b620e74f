"""Text of models and people as HTML that can hold nothing but that text.

Answers are read as Markdown, of which only what shapes text is kept: no raw HTML, no images (they would ask other
hosts), no links, no entities. Whatever else the model wrote stands there as it wrote it.
"""

from __future__ import annotations

import functools
import html
from typing import Any

from eagle_chat.core.metrics import Metrics

LONG_NOTE = 120
_OFF = ["image", "link", "autolink", "reference", "entity", "escape", "html_block", "html_inline"]


@functools.cache
def _markdown() -> Any:
    from markdown_it import MarkdownIt

    return MarkdownIt("commonmark", {"html": False, "breaks": True}).enable("table").disable(_OFF)


@functools.lru_cache(maxsize=512)
def answer_html(text: str) -> str:
    """A model's Markdown."""
    rendered: str = _markdown().render(text)
    return rendered


def plain_html(text: str) -> str:
    """A text as it is; the page keeps its line ends."""
    return html.escape(text)


def figures_html(metrics: Metrics) -> str:
    """The figures under an answer, each with a word on what it means."""
    parts = []
    if metrics.tau is not None:
        meaning = "tokens per pass of the target model; plain decoding has 1"
        parts.append(_figure(f"τ {metrics.tau:.2f}" if not metrics.is_plain else "plain, τ 1", meaning))
    count = len(metrics.token_ids)
    parts.append(_figure(f"{count} token{'' if count == 1 else 's'}", "length of the answer"))
    if metrics.tokens_per_second is not None:
        parts.append(_figure(f"{metrics.tokens_per_second:.1f} tok/s", "speed after the first token, on this machine"))
    if metrics.started is not None:
        parts.append(_figure(f"seed {metrics.started.sampling.get('seed')}", "the same seed gives the same text"))
    reasons = {"length": "stopped at the token budget", "cancelled": "stopped by you", "context": "context full"}
    reason = reasons.get(metrics.finish_reason or "")
    if reason:
        parts.append(f'<span class="ec-reason">{reason}</span>')
    message = metrics.finished.message if metrics.finished else None
    silent = metrics.finish_reason == "stop" and not metrics.text.strip()
    wordless = "The model ended its answer without a word." if silent else None
    notes = metrics.started.notes if metrics.started else []
    return " ".join(parts) + "".join(_note(line) for line in (message, wordless, *notes) if line)


def _note(line: str) -> str:
    """A sentence; of a long one only what it is about, until somebody wants to know."""
    about, colon, rest = line.partition(": ")
    if len(line) <= LONG_NOTE or not colon:
        return f'<div class="ec-note">{html.escape(line)}</div>'
    return f'<details class="ec-note"><summary>{html.escape(about)}</summary>{html.escape(rest)}</details>'


def _figure(text: str, meaning: str) -> str:
    return f'<span class="ec-figure" title="{html.escape(meaning)}">{html.escape(text)}</span>'
