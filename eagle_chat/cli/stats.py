"""The figures of an answer in full, as `/stats` shows them."""

from __future__ import annotations

from rich.text import Text

from eagle_chat.cli.meters import SERVER, server_lines
from eagle_chat.cli.theme import Theme
from eagle_chat.core.events import STAGES
from eagle_chat.core.metrics import Metrics

LABEL = 18
BAR = 24


def table(metrics: Metrics, theme: Theme) -> list[Text]:
    """One row a figure."""
    summary = metrics.summary()
    rows = [_row("answer", metrics.stats_line(ascii=theme.ascii), theme)]
    started = metrics.started
    if started is not None and started.policy == SERVER:
        rows.append(_row("model", f"{started.target}, {started.device}", theme))
        rows.append(_row("prompt", f"{metrics.prompt_tokens} tokens", theme))
        rows += [_row("drafts", line, theme) for line in server_lines(metrics, theme)]
    elif started is not None:
        head = started.head or "none"
        rows.append(_row("model", f"{started.target}, head {head}, {started.device}, {started.dtype}", theme))
        tree = ", ".join(f"{name} {value}" for name, value in started.tree.items() if value is not None)
        rows.append(_row("tree", tree, theme))
        rows.append(_row("prompt", f"{started.prompt_tokens} tokens, {started.reused_tokens} of them reused", theme))
    for depth, share in enumerate(metrics.accept_by_depth, start=1):
        rows.append(_row(f"accept depth {depth}", f"{_bar(share, theme)} {share:.2f}", theme))
    cycles = metrics.cycles
    for length, count in summary["accept_lengths"].items():
        rows.append(_row(f"accepted {length}", f"{_bar(count / cycles, theme)} {count} cycles", theme))
    spent = sum(metrics.seconds[stage] for stage in STAGES)
    for stage in STAGES if metrics.seconds["verify"] > 0 else ():
        share = metrics.seconds[stage] / spent
        rows.append(_row(f"time {stage}", f"{_bar(share, theme)} {metrics.seconds[stage]:.2f} s, {share:.0%}", theme))
    return rows


def _row(name: str, value: str, theme: Theme) -> Text:
    row = theme.text(f"{name:<{LABEL}}", "quiet")
    return row.append_text(theme.text(value))


def _bar(share: float, theme: Theme) -> str:
    filled = round(share * BAR)
    return theme.signs.bar[0] * filled + theme.signs.gap * (BAR - filled)
