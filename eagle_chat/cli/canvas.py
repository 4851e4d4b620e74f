"""A few rows at the bottom of the terminal that are drawn over and over.

The cursor is hidden only while a frame is being written, so however the program ends, it is visible.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Self

from rich.console import Console
from rich.text import Text

HIDE, SHOW = "\x1b[?25l", "\x1b[?25h"
TO_END_OF_LINE, TO_END_OF_SCREEN = "\x1b[K", "\x1b[J"


def wraps_when_narrowed(environment: Mapping[str, str]) -> bool:
    """Whether the terminal wraps the rows on its screen when it becomes narrower, as most do; some cut them off."""
    if "TMUX" in environment:
        return True
    kind = environment.get("TERM", "")
    cuts = "XTERM_VERSION" in environment or "STY" in environment  # xterm itself, GNU screen
    return not (cuts or kind == "linux" or kind.startswith("vt"))


class Canvas:
    """Owns the rows from the cursor down while it is entered; leaves none of them behind."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self._wraps = wraps_when_narrowed(os.environ)
        self._widths: list[int] = []
        self._codes: dict[tuple[str, ...], tuple[str, str]] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(BrokenPipeError):
            self.erase()

    @property
    def size(self) -> tuple[int, int]:
        """Columns and rows of the screen, at least something to calculate with."""
        return max(self.console.width, 8), max(self.console.height, 2)

    def draw(self, rows: Sequence[Text]) -> None:
        """Put `rows` in the place of those drawn before."""
        rows = rows[-(self.size[1] - 1) :]
        start = self._back()
        body = f"{TO_END_OF_LINE}\n".join(self._encoded(row) for row in rows)
        self._widths = [row.cell_len for row in rows]
        self._write(f"{HIDE}{start}{body}{TO_END_OF_SCREEN}{SHOW}")

    def erase(self) -> None:
        """Take the rows away; the cursor goes to where they began."""
        if self._widths:
            start = self._back()
            self._widths = []
            self._write(f"{start}{TO_END_OF_SCREEN}{SHOW}")

    def _back(self) -> str:
        """To the start of the first row, also after the screen became narrower and wrapped or cut its rows."""
        if not self._widths:
            return "\r"
        width, height = self.size
        cells = width if self._wraps else max(self._widths)
        lines = sum(max(-(-used // max(cells, 1)), 1) for used in self._widths)
        up = min(lines - 1, height - 1)
        return f"\r\x1b[{up}A" if up else "\r"

    def _encoded(self, row: Text) -> str:
        """The row with the terminal's codes. Rich could do it too, at several times the cost."""
        plain, base = row.plain, str(row.style)
        if not row.spans:
            return self._styled((base,), plain)
        edges = sorted({0, len(plain), *(edge for span in row.spans for edge in (span.start, span.end))})
        parts = []
        for start, end in pairwise(edges):
            styles = (base, *(str(span.style) for span in row.spans if span.start <= start and end <= span.end))
            parts.append(self._styled(styles, plain[start:end]))
        return "".join(parts)

    def _styled(self, styles: tuple[str, ...], text: str) -> str:
        codes = self._codes.get(styles)
        if codes is None:
            sample = Text("x", no_wrap=True, end="")
            for style in filter(None, styles):
                sample.stylize(style)
            with self.console.capture() as captured:
                self.console.print(sample, end="")
            before, _, after = captured.get().partition("x")
            codes = self._codes[styles] = (before, after)
        return f"{codes[0]}{text}{codes[1]}"

    def _write(self, text: str) -> None:
        self.console.file.write(text)
        self.console.file.flush()
