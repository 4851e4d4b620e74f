"""What one person may ask of the page, so that nobody can fill the memory or block the others."""

from __future__ import annotations

from eagle_chat.core.errors import UserError

MESSAGE = 8_000
"""Characters of a question."""
SYSTEM = 4_000
"""Characters of a system message."""
NEW_TOKENS = 1_024
DEPTH, TOP_K, NODES = 12, 16, 128
"""Largest tree; recordings of larger ones would be slow to draw."""
SESSIONS = 64
"""People (browser tabs) at once."""
IDLE_SECONDS = 20 * 60
"""After this long without a sign of life a session may be given up for a new one."""
WAITING = 16
"""Questions in the queue."""
TURNS = 100
"""Questions and answers of one conversation."""
KEPT_RECORDS = 8
"""Newest answers of a conversation whose draft trees are kept."""
SHOWN = 400_000
"""Characters of recorded answers that the explorer is sent beside the newest one."""
STATES = 4
"""Conversations whose caches stay in the memory; the others' prompts are computed again."""
UPLOAD = 16 * 1024 * 1024
"""Bytes of a recording."""
DRAWS = 5_000
"""First tokens sampled in one test."""


def check_text(text: str | None, most: int, what: str) -> str:
    """`text` as it may be used; UserError where there is too much of it."""
    text = text or ""
    if len(text) > most:
        raise UserError(f"{what} of at most {most:,} characters expected, found {len(text):,}: shorten it")
    # Lone surrogates cannot be encoded; tokenizers refuse them.
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def within(value: float | None, least: int, most: int, what: str) -> int:
    """`value` as a whole number from `least` to `most`; UserError where it is none."""
    if value is None or value != value or not least <= value <= most or int(value) != value:
        raise UserError(f"{what} from {least} to {most} expected, found {value}: change it")
    return int(value)
