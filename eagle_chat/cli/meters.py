"""The figures of an answer as short rows: τ, speed, acceptance by depth, where the time goes, the tree's size."""

from __future__ import annotations

from collections.abc import Sequence

from rich.text import Text

from eagle_chat.cli.progress import Progress
from eagle_chat.cli.theme import Theme, fit
from eagle_chat.core.events import STAGES
from eagle_chat.core.metrics import Metrics
from eagle_chat.serving import statement

BAR = 12
"""Cells of the time bar."""
SERVER = "server"
"""The policy that an answer of a server has."""
CURVE = 40
"""Most cycles in the curve of τ."""


def headline(progress: Progress, width: int, theme: Theme) -> Text:
    """τ, its curve and the speed: what fits into one row."""
    metrics = progress.metrics
    row = Text(no_wrap=True, end="")
    if metrics.tau is None and metrics.tokens_per_second is None:
        return fit(theme.text(_waiting(progress), "quiet"), width, theme.signs.dots)
    if metrics.tau is not None:
        row.append(f"{theme.signs.tau} {metrics.tau:.2f}", theme.style("figure"))
    if metrics.tokens_per_second is not None:
        gap = "  " if row else ""
        row.append(f"{gap}{metrics.tokens_per_second:.1f} tok/s", theme.style("figure"))
    if progress.taus:
        row.append(f"  now {progress.taus[-1]} ", theme.style("quiet"))
    room = min(width - row.cell_len, CURVE)
    if room >= 3 and progress.taus:
        row.append(curve(progress.taus[-room:], theme), theme.style("drafted"))
    return fit(row, width, theme.signs.dots)


def _waiting(progress: Progress) -> str:
    started = progress.started
    if started is None:
        return "starting"
    report = progress.metrics.reported
    if report is not None and report.ahead:
        return f"waiting: the server gives {report.ahead} other answer{'s' * (report.ahead > 1)} first"
    if started.policy == SERVER:
        return "the server reads the prompt"
    if progress.metrics.token_ids:
        return "first token is there, drafting begins"
    new = started.prompt_tokens - started.reused_tokens
    return f"reading the prompt: {new} new tokens of {started.prompt_tokens}"


def details(progress: Progress, width: int, theme: Theme) -> list[Text]:
    """The other figures, one row each, the most telling first."""
    metrics = progress.metrics
    if progress.started is not None and progress.started.policy == SERVER:
        return [fit(theme.text(line, "quiet"), width, theme.signs.dots) for line in server_lines(metrics, theme)]
    if metrics.tau is None:
        return []
    gap = f" {theme.signs.gap} "
    rows = [_accept(metrics.accept_by_depth, theme)] if metrics.accept_by_depth else []
    rows.append(_time(metrics.seconds, theme))
    size = _tree_size(progress, theme)
    if size is not None:
        rows.append(size)
    counts = f"{len(metrics.token_ids)} tokens{gap}{metrics.cycles} cycles"
    drafted = sum(max(count - 1, 0) for count in progress.taus)
    rows.append(theme.text(f"{counts}{gap}{drafted} beyond one a cycle", "quiet"))
    return [fit(row, width, theme.signs.dots) for row in rows]


def server_lines(metrics: Metrics, theme: Theme) -> list[str]:
    """What a server tells of its drafting, and that there is no more to be seen."""
    gap = f" {theme.signs.gap} "
    report = metrics.reported
    if report is None or not report.cycles:
        return [statement.drafting(report), f"{len(metrics.token_ids)} tokens"]
    pairs = list(zip(report.accepted_by_position, report.judged_by_position, strict=True))
    lines = ["no drafts"]
    if pairs:  # two short lines: beside an answer there is room for no more
        shares = (f"{got / of:.2f}" if of else "-" for got, of in pairs)
        lines = [f"accepted by depth {gap.join(shares)}", gap.join(f"{got} of {of}" for got, of in pairs)]
    lines.append(f"{len(metrics.token_ids)} tokens{gap}{report.cycles} target passes{gap}{report.draft_tokens} drafted")
    lines.append(statement.drafting(report))
    warning = statement.others(report)
    if warning:
        lines.append(warning)
    return lines


def _accept(shares: Sequence[float], theme: Theme) -> Text:
    row = theme.text("accept ", "quiet")
    signs = theme.signs.curve
    for depth, share in enumerate(shares, start=1):
        row.append(f" {depth}:", theme.style("quiet"))
        row.append(signs[min(int(share * len(signs)), len(signs) - 1)], theme.style("accepted"))
        row.append(f"{share:.2f}")
    return row


def _time(seconds: dict[str, float], theme: Theme) -> Text:
    """A bar of as many kinds of cell as there are stages, with their shares."""
    spent = sum(seconds[stage] for stage in STAGES)
    shares = {stage: seconds[stage] / spent if spent > 0 else 0.0 for stage in ("draft", "verify")}
    shares["other"] = max(1.0 - sum(shares.values()), 0.0) if spent > 0 else 0.0
    row = theme.text("time ", "quiet")
    styles = ("draft", "title", "quiet")
    filled = 0
    for place, share in enumerate(shares.values()):
        cells = round(share * BAR) if place < len(shares) - 1 else BAR - filled
        cells = max(min(cells, BAR - filled), 0)
        row.append(theme.signs.bar[place] * cells, theme.style(styles[place]))
        filled += cells
    for place, (stage, share) in enumerate(shares.items()):
        row.append(f" {theme.signs.bar[place]}", theme.style(styles[place]))
        row.append(f"{stage} {share:.0%}", theme.style("quiet"))
    return row


def _tree_size(progress: Progress, theme: Theme) -> Text | None:
    cycle = progress.cycle
    if cycle is None:
        return None
    nodes = cycle.drafted.nodes
    depth = max(node.depth for node in nodes)
    return theme.text(f"tree {cycle.committed.num_nodes} nodes of {len(nodes)} considered, depth {depth}", "quiet")


def curve(values: Sequence[float], theme: Theme) -> str:
    """A sparkline; 0 is its floor."""
    signs = theme.signs.curve
    top = max([*values, 1])
    return "".join(signs[min(int(value / top * len(signs)), len(signs) - 1)] for value in values)
