"""One cycle told in four steps, each a sentence with the cycle's own numbers and the tree as it stood then."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp

from rich.text import Text

from eagle_chat.cli import tree_view
from eagle_chat.cli.progress import Cycle
from eagle_chat.cli.theme import Theme, fit
from eagle_chat.cli.wrapping import Wrapped

NAMES = ("expand", "rerank", "verify", "commit")


@dataclass(frozen=True)
class Step:
    """What happened, and the tree to show with it."""

    name: str
    sentence: str
    tree: tree_view.Node


def steps(cycle: Cycle, theme: Theme) -> list[Step]:
    """The four steps of a cycle; only the last two where nothing was drafted."""
    told = [
        Step("verify", _verify(cycle, theme), tree_view.judged(cycle.drafted, cycle.verified)),
        Step("commit", _commit(cycle), tree_view.judged(cycle.drafted, cycle.verified)),
    ]
    if len(cycle.drafted.nodes) == 1:
        return told
    return [
        Step("expand", _expand(cycle, theme), tree_view.considered(cycle.drafted, reranked=False)),
        Step("rerank", _rerank(cycle), tree_view.considered(cycle.drafted, reranked=True)),
        *told,
    ]


def _quoted(text: str, theme: Theme) -> str:
    shown = theme.shown(text.replace("\n", theme.signs.newline).replace("\t", theme.signs.tab))
    return f'"{shown}"' if theme.ascii else f"“{shown}”"


def _counted(number: int, name: str) -> str:
    return f"{number} {name}{'' if number == 1 else 's'}"


def _expand(cycle: Cycle, theme: Theme) -> str:
    root, *nodes = cycle.drafted.nodes
    depth = max(node.depth for node in nodes)
    best = max((node for node in nodes if node.depth == 1), key=lambda node: node.q)
    return (
        f"The head guesses {_counted(len(nodes), 'continuation')} of {_quoted(root.text, theme)} over "
        f"{_counted(depth, 'level')}; its best first guess is {_quoted(best.text, theme)}, probability {best.q:.2f}."
    )


def _rerank(cycle: Cycle) -> str:
    nodes = cycle.drafted.nodes[1:]
    kept = [node for node in nodes if node.stage == "kept"]
    if len(kept) == len(nodes):
        return f"All {_counted(len(nodes), 'node')} fit into the tree, so none is dropped."
    lowest = exp(min(node.value for node in kept)) if kept else 0.0
    return (
        f"Of {len(nodes)} nodes the {len(kept)} most valuable stay, {len(nodes) - len(kept)} are dropped; a node's "
        f"value is the product of the probabilities down to it, and the least that stays is {lowest:.3f}."
    )


def _verify(cycle: Cycle, theme: Theme) -> str:
    verified, drafted = cycle.verified, cycle.drafted
    texts = {node.slot: node.text for node in drafted.nodes}
    accepted = [_quoted(texts[slot], theme) for slot in verified.path[1:]]
    rows = _counted(len(verified.nodes), "node")
    if len(drafted.nodes) == 1:
        return f"Nothing was drafted: one pass of the target gives its own token {_quoted(verified.bonus_text, theme)}."
    found = f"accepts {', '.join(accepted)}" if accepted else "accepts none of the drafted tokens"
    refused = [node for node in verified.nodes if node.status == "rejected"]
    end = f"then the target's own choice is {_quoted(verified.bonus_text, theme)}"
    if refused:
        best = max(refused, key=lambda node: node.p)
        end += f", and {_quoted(texts[best.slot], theme)} (probability {best.p:.2f}) is among {len(refused)} rejected"
    return f"One pass of the target over {rows} {found}; {end}."


def _commit(cycle: Cycle) -> str:
    committed = cycle.committed
    drafted = committed.origins.count("draft")
    own = len(committed.origins) - drafted
    total = sum(committed.seconds.values())
    draft = committed.seconds.get("draft", 0.0) / total if total > 0 else 0.0
    parts = [
        part for part in (f"{drafted} drafted" if drafted else "", f"{own} of the target's own" if own else "") if part
    ]
    return (
        f"{_counted(len(committed.token_ids), 'token')} ({' and '.join(parts)}) join the answer for one pass of the "
        f"target, in {total * 1000:.0f} ms of which drafting took {draft:.0%}."
    )


def panel(cycle: Cycle, at: int, width: int, height: int, theme: Theme) -> list[Text]:
    """Step `at` of a cycle in at most `height` rows: names, sentence, tree."""
    told = steps(cycle, theme)
    at = min(at, len(told) - 1)
    step = told[at]
    title = Text(no_wrap=True, end="")
    title.append(f"cycle {cycle.committed.cycle}  ", theme.style("figure"))
    for place, other in enumerate(told):
        arrow = " > " if place else ""
        title.append(arrow, theme.style("quiet"))
        title.append(f"[{other.name}]" if place == at else other.name, theme.style("title" if place == at else "quiet"))
    drawn = [fit(title, width, theme.signs.dots), *_wrapped(step.sentence, width, theme)]
    drawn += tree_view.rows(step.tree, width, height - len(drawn), theme)
    return drawn[:height]


def _wrapped(sentence: str, width: int, theme: Theme) -> Sequence[Text]:
    lines = Wrapped(width, theme)
    lines.feed(sentence, "")
    return lines.tail(lines.num_lines)
