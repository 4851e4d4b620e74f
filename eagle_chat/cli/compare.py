"""Plain and speculative decoding of one question side by side: figures, and whether the text is the same."""

from __future__ import annotations

from rich.text import Text

from eagle_chat.cli.theme import Theme
from eagle_chat.core.metrics import Metrics, same_text

LABEL, COLUMN = 16, 14
EVEN = 1.02
"""A speed-up below this is noise."""


def table(plain: Metrics, fast: Metrics, theme: Theme) -> list[Text]:
    """The figures in two columns, and what follows from them."""
    rows = [_row(("", "plain", "speculative"), theme, "title")]
    for name, left, right in _figures(plain, fast):
        rows.append(_row((name, left, right), theme))
    speedup = _speedup(plain, fast)
    if speedup is not None:
        rows.append(theme.text(f"speed-up {theme.signs.times}{speedup:.2f}{_verdict(speedup)}", "figure"))
    same, sentence = same_text(plain, fast)
    rows.append(theme.text(sentence, "accepted" if same else "rejected"))
    return rows


def _row(cells: tuple[str, str, str], theme: Theme, style: str = "") -> Text:
    return theme.text(f"{cells[0]:<{LABEL}}{cells[1]:>{COLUMN}}{cells[2]:>{COLUMN}}", style)


def _figures(plain: Metrics, fast: Metrics) -> list[tuple[str, str, str]]:
    def number(value: float | None, form: str) -> str:
        return "" if value is None else format(value, form)

    rows = [
        ("tokens", *(str(len(run.token_ids)) for run in (plain, fast))),
        ("target passes", *(str(run.cycles) for run in (plain, fast))),
        ("tokens a pass", *(number(run.tau, ".2f") for run in (plain, fast))),
        ("tok/s", *(number(run.tokens_per_second, ".1f") for run in (plain, fast))),
    ]
    return [(row[0], row[1], row[2]) for row in rows]


def _speedup(plain: Metrics, fast: Metrics) -> float | None:
    if not plain.tokens_per_second or not fast.tokens_per_second:
        return None
    return fast.tokens_per_second / plain.tokens_per_second


def _verdict(speedup: float) -> str:
    if speedup >= EVEN:
        return ""
    return ": drafting costs this machine " + ("more than it saves" if speedup < 1 / EVEN else "what it saves")
