"""An answer as lines of a given width, grown token by token. A step costs what its tokens cost, however long it is."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from itertools import groupby

from rich.cells import cell_len
from rich.text import Text

from eagle_chat.cli.theme import Theme

KEPT_LINES = 200
"""Finished lines kept for drawing: more than the tallest screen has rows."""
TAB = 4

Cell = tuple[str, str]
"""A character, and the name of its style."""


class Wrapped:
    """Takes pieces with their origins; gives the last lines. Words are kept whole where they fit into a line."""

    def __init__(self, width: int, theme: Theme) -> None:
        self.width = max(width, 2)
        self._theme = theme
        self._lines: deque[Text] = deque(maxlen=KEPT_LINES)
        self._line: list[Cell] = []
        self._used = 0

    def feed(self, text: str, style: str) -> None:
        """Append `text`, already cleaned."""
        for sign in self._theme.shown(text):
            if sign == "\n":
                self._end_line()
            elif sign == "\t":
                for _ in range(TAB - self._used % TAB):
                    self._put(" ", style)
            else:
                self._put(sign, style)

    def _put(self, sign: str, style: str) -> None:
        size = cell_len(sign)
        if self._used + size > self.width:
            if sign == " ":  # a blank at the end of a full line is the line's end
                self._end_line()
                return
            self._break()
        self._line.append((sign, style))
        self._used += size

    def _break(self) -> None:
        """Go to the next line and take the unfinished word along."""
        blank = next((at for at in range(len(self._line) - 1, -1, -1) if self._line[at][0] == " "), None)
        word = [] if blank is None else self._line[blank + 1 :]
        if word:
            del self._line[blank:]
        self._end_line()
        self._line = word
        self._used = sum(cell_len(sign) for sign, _ in word)

    def _end_line(self) -> None:
        self._lines.append(self._drawn(self._line))
        self._line, self._used = [], 0

    def tail(self, count: int) -> list[Text]:
        """The last `count` lines, not to be changed; the newest one, which still grows, is the last."""
        if count <= 0:
            return []
        finished = list(self._lines)[max(len(self._lines) - count + 1, 0) :] if count > 1 else []
        return [*finished, self._drawn(self._line)]

    @property
    def num_lines(self) -> int:
        """Lines that `tail` could give."""
        return len(self._lines) + 1

    def _drawn(self, line: Iterable[Cell]) -> Text:
        row = Text(no_wrap=True, end="")
        for style, cells in groupby(line, key=lambda cell: cell[1]):
            row.append("".join(sign for sign, _ in cells), self._theme.style(style))
        return row
