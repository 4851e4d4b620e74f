"""Signs and styles of the views, for terminals with and without colours, and for encodings that lack our signs."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TextIO

from rich.cells import cell_len
from rich.text import Text

from eagle_chat.cli.text import clean, needs_ascii

if TYPE_CHECKING:
    from rich.console import Console

Mark = Literal["accepted", "rejected", "unreached", "bonus", "root", "drafted", "kept", "dropped"]


@dataclass(frozen=True)
class Signs:
    """What is drawn: a node's mark, the lines of a tree, bars and curves."""

    marks: dict[Mark, str]
    branch: str  # single, first of several, in between, last, passing by
    curve: str
    bar: str
    column: str
    rule: str
    dots: str
    tau: str
    gap: str
    newline: str
    tab: str
    blank: str
    times: str


UNICODE = Signs(
    marks={
        "accepted": "✓", "rejected": "✗", "unreached": "·", "bonus": "★",
        "root": "▸", "drafted": "○", "kept": "●", "dropped": "-",
    },
    branch="─┬├└│", curve="▁▂▃▄▅▆▇█", bar="█▓▒░", column="│", rule="─", dots="…", tau="τ", gap="·",
    newline="↵", tab="→", blank="␣", times="×",
)  # fmt: skip
ASCII = Signs(
    marks={
        "accepted": "*", "rejected": "x", "unreached": ".", "bonus": "!",
        "root": ">", "drafted": "o", "kept": "#", "dropped": ":",
    },
    branch="-+|`|", curve="_.:-=+*#", bar="#=-.", column="|", rule="-", dots="~", tau="tau", gap="|",
    newline="\\n", tab="\\t", blank="_", times="x",
)  # fmt: skip

COLOURS = {
    "accepted": "bold green",
    "rejected": "red",
    "unreached": "dim",
    "bonus": "bold magenta",
    "root": "bold",
    "drafted": "cyan",
    "kept": "bold cyan",
    "dropped": "dim",
    "draft": "green",
    "target": "",
    "quiet": "dim",
    "figure": "bold",
    "title": "bold cyan",
    "warning": "bold yellow",
}
# Where there is no colour: attributes. The signs tell the marks apart by themselves.
PLAIN = dict.fromkeys(COLOURS, "") | {
    "accepted": "bold", "bonus": "bold", "draft": "underline", "title": "bold", "figure": "bold",
}  # fmt: skip


@dataclass(frozen=True)
class Theme:
    """How views look on one output."""

    signs: Signs = UNICODE
    styles: dict[str, str] | None = None
    encoding: str = "utf-8"

    @property
    def ascii(self) -> bool:
        """Whether only ASCII signs are drawn."""
        return self.signs is ASCII

    def style(self, name: str) -> str:
        """The style called `name`."""
        return (COLOURS if self.styles is None else self.styles).get(name, "")

    def text(self, content: str, style: str = "") -> Text:
        """Foreign or own words as a row: control characters out, what the encoding lacks as "?"."""
        return Text(self.shown(content), self.style(style), no_wrap=True, end="")

    def shown(self, content: str) -> str:
        """`content` as this output can show it."""
        return clean(content).encode(self.encoding, "replace").decode(self.encoding)

    def mark(self, mark: Mark) -> Text:
        """The sign of a node's fate."""
        return Text(self.signs.marks[mark], self.style(mark), no_wrap=True, end="")

    def token(self, content: str) -> str:
        """A token as a label: white space is made visible where it would be lost."""
        shown = self.shown(content.replace("\n", self.signs.newline).replace("\t", self.signs.tab))
        if not shown.strip():
            count = len(shown)
            return self.signs.blank if count <= 1 else f"{self.signs.blank}{self.signs.times}{count}"
        return shown


def of_stream(stream: TextIO, colour: bool) -> Theme:
    """The theme that suits an output."""
    ascii_only = needs_ascii(stream)
    encoding = stream.encoding or "ascii"
    return Theme(
        ASCII if ascii_only else UNICODE,
        None if colour else PLAIN,
        encoding if ascii_only else "utf-8",
    )


def can_draw(stream: TextIO) -> bool:
    """Whether pictures can be drawn and drawn over."""
    return stream.isatty() and os.environ.get("TERM", "") not in ("dumb", "unknown")


def console(stream: TextIO | None = None) -> Console:
    """A rich console that takes every text as data."""
    from rich.console import Console

    to = stream or sys.stdout
    # A terminal knows its size; LINES and COLUMNS may be those of another one, and a picture of the wrong height cannot
    # be taken back.
    ignored = ("LINES", "COLUMNS") if to.isatty() else ()
    return Console(
        file=to,
        markup=False,
        emoji=False,
        highlight=False,
        soft_wrap=False,
        legacy_windows=False,
        _environ={name: value for name, value in os.environ.items() if name not in ignored},
    )


def has_colour(to: Console) -> bool:
    """Whether colours are wanted and possible there."""
    return to.color_system is not None and not to.no_color


def fit(row: Text, width: int, dots: str) -> Text:
    """`row` in at most `width` cells, with `dots` at the end where something was cut off."""
    if row.cell_len <= width:
        return row
    if width <= cell_len(dots):
        row.truncate(max(width, 0))
        return row
    row.truncate(width - cell_len(dots))
    row.append(dots)
    return row
