"""The picture of an answer being made: its text and the inspector, beside or below it by the screen's width.

Pure functions of what the events told: data in, rows out.
"""

from __future__ import annotations

from typing import Literal

from rich.text import Text

from eagle_chat.cli import meters, steps, tree_view
from eagle_chat.cli.progress import Progress
from eagle_chat.cli.theme import Theme, fit
from eagle_chat.cli.wrapping import Wrapped

Inspector = Literal["on", "off"]
BESIDE = 100
"""From this width on the inspector stands beside the answer."""
WIDEST_TEXT = 100
"""Cells of a comfortable line."""
TALLEST_INSPECTOR = 24


def text_width(width: int, inspector: bool) -> int:
    """Cells that the answer's text gets on a screen of `width`."""
    if inspector and width >= BESIDE:
        return min(width - _side_width(width) - 3, WIDEST_TEXT)
    return min(width - 1, WIDEST_TEXT)


def _side_width(width: int) -> int:
    return max(46, min(width * 9 // 20, 90))


def frame(
    progress: Progress, lines: Wrapped, width: int, height: int, theme: Theme, inspector: bool = True,
    step: int | None = None, footer: str = "",
) -> list[Text]:  # fmt: skip
    """The picture in at most `height` rows of less than `width` cells.

    `lines`: the answer's text at `text_width`. `step`: which step of the last cycle is told. `footer`: a last row.
    """
    if footer:
        foot = fit(theme.text(footer, "quiet"), width - 1, theme.signs.dots)
        return [*frame(progress, lines, width, height - 1, theme, inspector, step), foot] if height > 1 else [foot]
    if not inspector or height < 3:
        return [*lines.tail(min(height - 1, lines.num_lines)), meters.headline(progress, width - 1, theme)]
    if width >= BESIDE:
        return _beside(progress, lines, width, height, theme, step)
    below = _inspector(progress, width - 1, _rows_below(height, step), theme, step)
    room = height - len(below) - 1
    rule = Text(theme.signs.rule * (width - 1), theme.style("quiet"), no_wrap=True, end="")
    return [*lines.tail(min(room, lines.num_lines)), rule, *below] if room > 0 else below[:height]


def _rows_below(height: int, step: int | None) -> int:
    """Rows for the inspector under the text: never so many that no text is seen."""
    if step is not None:
        return max(height - 3, 2)
    return max(min(height // 2, 14), 2)


def _beside(progress: Progress, lines: Wrapped, width: int, height: int, theme: Theme, step: int | None) -> list[Text]:
    left_width = text_width(width, inspector=True)
    right_width = min(width - left_width - 4, 90)
    right = _inspector(progress, right_width, min(height, TALLEST_INSPECTOR), theme, step)
    left = lines.tail(min(height, lines.num_lines))
    joined = []
    for place in range(max(len(left), len(right))):
        row = Text(no_wrap=True, end="")
        if place < len(left):
            row.append_text(left[place])
        row.append(" " * (left_width - row.cell_len))
        row.append(f" {theme.signs.column} ", theme.style("quiet"))
        joined.append(row.append_text(right[place]) if place < len(right) else row)
    return joined


def _inspector(progress: Progress, width: int, height: int, theme: Theme, step: int | None) -> list[Text]:
    """Figures and the last draft tree in at most `height` rows."""
    cycle = progress.cycle
    if step is not None and cycle is not None:
        return steps.panel(cycle, step, width, height, theme)
    head = meters.headline(progress, width, theme)
    figures = meters.details(progress, width, theme)
    if cycle is None:
        return [head, *figures][:height]
    tree = tree_view.judged(cycle.drafted, cycle.verified)
    room = height - 1
    # The tree goes first: figures and legend get the rows that it does not need, and at least some.
    wanted = tree_view.rows(tree, width, max(room - len(figures) - 1, (room + 1) // 2), theme)
    figures = figures[: room - len(wanted)]
    below = []
    if len(wanted) + len(figures) < room:
        below = [tree_view.legend(theme, width)]
    elif len(figures) > 2:  # what the signs mean is worth more than the last figure
        figures, below = figures[:-1], [tree_view.legend(theme, width)]
    return [head, *figures, *wanted, *below]
