"""What a server tells of an answer, as HTML: the page's side where there are no draft trees to look at."""

from __future__ import annotations

import html

from eagle_chat.core.events import Reported
from eagle_chat.core.metrics import Metrics
from eagle_chat.serving import statement

INTRODUCTION = """<section class="ec-server"><h2>What the server tells</h2>
<p>This chat goes through a server. It drafts as it was started, and shows no draft trees: where it counts its drafts,
τ and the share accepted at each place of a draft appear here while it answers.</p></section>"""


def server_html(metrics: Metrics | None) -> str:
    """The figures of one answer, complete or not; the introduction before there are any."""
    if metrics is None or metrics.started is None:
        return INTRODUCTION
    report = metrics.reported
    about = html.escape(f"{metrics.started.target}, {metrics.started.device}")
    parts = ['<section class="ec-server"><h2>What the server tells</h2>', f"<p>{about}</p>", _figures(metrics)]
    if report is not None and report.cycles:
        parts.append(_places(report))
    said = [statement.drafting(report), statement.others(report) if report is not None else None]
    parts += [f'<p class="ec-said">{html.escape(_sentence(line))}</p>' for line in said if line]
    return "".join([*parts, "</section>"])


def _sentence(line: str) -> str:
    return f"{line[0].upper()}{line[1:]}."


def _figures(metrics: Metrics) -> str:
    """Name and value of what is known."""
    first = metrics.summary()["time_to_first_token"]
    values = {
        "τ, tokens a pass of the target": _number(metrics.tau, "{:.2f}"),
        "tokens a second": _number(metrics.tokens_per_second, "{:.1f}"),
        "tokens": str(len(metrics.token_ids)),
        "passes of the target": str(metrics.cycles) if metrics.cycles else None,
        "first token after": _number(first, "{:.2f} s"),
    }
    rows = [f"<div><dt>{name}</dt><dd>{value}</dd></div>" for name, value in values.items() if value is not None]
    return f'<dl class="ec-meters">{"".join(rows)}</dl>'


def _number(value: float | None, form: str) -> str | None:
    return None if value is None else form.format(value)


def _places(report: Reported) -> str:
    """The share accepted at each place of a draft, with a bar."""
    rows = []
    pairs = zip(report.accepted_by_position, report.judged_by_position, strict=True)
    for place, (accepted, judged) in enumerate(pairs, start=1):
        share = accepted / judged if judged else None
        bar = f'<span class="ec-bar ec-bar-drawn" style="width:{100 * share:.1f}%"></span>' if share else ""
        rows.append(
            f'<tr><th scope="row">{place}</th><td>{judged}</td><td>{accepted}</td>'
            f'<td>{_number(share, "{:.2f}") or "–"}</td><td class="ec-bars">{bar}</td></tr>'
        )
    heads = "".join(f'<th scope="col">{name}</th>' for name in ("place", "judged", "accepted", "share"))
    return (
        '<table class="ec-law"><caption>Drafted tokens by their place in the draft. One is judged where all before it '
        f"were accepted.</caption><thead><tr>{heads}<td></td></tr></thead><tbody>{''.join(rows)}</tbody></table>"
    )
