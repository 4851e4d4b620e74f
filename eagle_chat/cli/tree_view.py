"""A draft tree as rows of text: paths from left to right, the most valuable first, each node with its fate.

    ▸Here┬✓'s .55─✓ a .81─✓ Python .35─★ function
         └✗ is .42─· a .74─· Python .32

Bounded in rows and width. What is left out is counted, never silently lost.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from math import inf

from rich.cells import cell_len, set_cell_size
from rich.text import Text

from eagle_chat.cli.theme import Mark, Theme, fit
from eagle_chat.core.events import Drafted, Verified

DRAFTED = "drafted text"
LONGEST_LABEL = 14
"""Cells of a token in a tree."""


@dataclass
class Node:
    """A node as it is drawn. `value`: how early it gets a row when there are too few."""

    label: str
    mark: Mark
    q: float | None = None
    value: float = 0.0
    children: list[Node] = field(default_factory=list)


def judged(drafted: Drafted, verified: Verified) -> Node:
    """The tree that the target saw, each node with its fate, the bonus at the end of the accepted path."""
    status = {node.slot: node.status for node in verified.nodes}
    nodes: dict[int, Node] = {}
    for node in drafted.nodes:
        if node.slot < 0 or (node.parent >= 0 and node.parent not in nodes):
            continue
        mark: Mark = "root" if node.parent < 0 else status[node.slot]
        # The path that was taken is worth most: it is drawn first and never left out.
        value = inf if status[node.slot] == "accepted" else node.value
        drawn = nodes[node.id] = Node(node.text, mark, None if node.parent < 0 else node.q, value)
        if node.parent >= 0:
            nodes[node.parent].children.append(drawn)
        if node.slot == verified.path[-1]:
            end = drawn
    end.children.append(Node(verified.bonus_text, "bonus", None, inf))
    return nodes[0]


def considered(drafted: Drafted, reranked: bool) -> Node:
    """Everything the head proposed; `reranked`: with what was kept of it."""
    nodes: list[Node] = []
    for node in drafted.nodes:
        mark: Mark = "root" if node.parent < 0 else "drafted"
        if reranked and node.parent >= 0:
            mark = "kept" if node.stage == "kept" else "dropped"
        kept = reranked and node.stage == "kept"
        drawn = Node(node.text, mark, None if node.parent < 0 else node.q, node.value + (1e6 if kept else 0.0))
        nodes.append(drawn)
        if node.parent >= 0:
            nodes[node.parent].children.append(drawn)
    return nodes[0]


def rows(root: Node, width: int, height: int, theme: Theme) -> list[Text]:
    """The tree in at most `height` rows of `width` cells; a last row counts the paths that found no place."""
    if height <= 0:
        return []
    shown, left_out = _chosen(root, height)
    if left_out and height > 1:
        shown, left_out = _chosen(root, height - 1)
    drawn = [fit(row, width, theme.signs.dots) for row in _block(root, shown, theme)]
    if left_out and height > 1:
        more = f"{theme.signs.dots} {left_out} more node{'s' if left_out > 1 else ''}"
        drawn.append(fit(theme.text(more, "quiet"), width, theme.signs.dots))
    return drawn[:height]


def _chosen(root: Node, height: int) -> tuple[set[int], int]:
    """The ids of the nodes to draw so that they need at most `height` rows, and how many are left out.

    Every leaf needs a row; a node that goes on where a leaf was needs none.
    """
    # A child is worth no more than its parent, and the sort is stable: parents come first.
    paths = sorted(_paths(root, []), key=lambda path: -path[-1].value)
    shown: set[int] = set()
    leaves: set[int] = set()
    for path in paths:
        node, parent = id(path[-1]), id(path[-2]) if len(path) > 1 else 0
        if parent and (parent not in shown or (parent not in leaves and len(leaves) >= height)):
            continue
        leaves.discard(parent)
        leaves.add(node)
        shown.add(node)
    return shown, len(paths) - len(shown)


def _paths(node: Node, above: list[Node]) -> Iterable[list[Node]]:
    """Every node with its ancestors, parents first."""
    path = [*above, node]
    yield path
    for child in node.children:
        yield from _paths(child, path)


def _block(node: Node, shown: set[int], theme: Theme) -> list[Text]:
    """The rows of a subtree."""
    label = _label(node, theme)
    children = sorted((child for child in node.children if id(child) in shown), key=lambda child: -child.value)
    if not children:
        return [label]
    single, first, middle, last, passing = list(theme.signs.branch)
    indent = " " * label.cell_len
    drawn: list[Text] = []
    for place, child in enumerate(children):
        at_end = place == len(children) - 1
        joint = single if len(children) == 1 else first if place == 0 else last if at_end else middle
        for line, row in enumerate(_block(child, shown, theme)):
            start = Text(no_wrap=True, end="")
            if not drawn:
                start.append_text(label)
            else:
                start.append(indent)
            start.append(joint if line == 0 else " " if at_end else passing, theme.style("quiet"))
            drawn.append(start.append_text(row))
    return drawn


def _label(node: Node, theme: Theme) -> Text:
    words = theme.token(node.label)
    if cell_len(words) > LONGEST_LABEL:
        words = set_cell_size(words, LONGEST_LABEL - cell_len(theme.signs.dots)).rstrip() + theme.signs.dots
    label = Text(no_wrap=True, end="")
    label.append(theme.signs.marks[node.mark], theme.style(node.mark))
    label.append(words, theme.style(node.mark))
    if node.q is not None:
        label.append(" " + probability(node.q), theme.style("quiet"))
    return label


def probability(share: float) -> str:
    """Two digits: .55, 1.0."""
    return "1.0" if share >= 0.995 else f"{share:.2f}".removeprefix("0")


def legend(theme: Theme, width: int) -> Text:
    """What the marks mean, and where there is room, how drafted tokens look in the answer."""
    row = Text(no_wrap=True, end="")
    named: tuple[Mark, ...] = ("accepted", "rejected", "unreached", "bonus")
    for mark in named:
        row.append(f"{'  ' if row else ''}{theme.signs.marks[mark]} {mark}", theme.style(mark))
    if row.cell_len + len(DRAFTED) + 2 <= width:
        row.append("  ").append(DRAFTED, theme.style("draft"))
    return fit(row, width, theme.signs.dots)
