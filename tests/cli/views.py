"""Events and views for the tests of pictures: a run told by the fake engine."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.console import Console
from rich.text import Text

from eagle_chat.cli.live import text_width
from eagle_chat.cli.progress import Progress
from eagle_chat.cli.theme import ASCII, PLAIN, Theme
from eagle_chat.cli.wrapping import Wrapped
from eagle_chat.core.config import LoadConfig, SamplingConfig, TreeConfig
from eagle_chat.core.events import Event
from tests.cli.fake_engine import FakeEngine, Script

COLOUR = Theme()
PLAIN_ASCII = Theme(ASCII, PLAIN, "ascii")
PIECES = ["The", " quick brown fox", " jumps over", " [b]the[/b] 好\n", "    a , b :smile:"]


def events(pieces: Sequence[str] = PIECES, accepted: int = 1, repeat: int = 1) -> list[Event]:
    engine = FakeEngine(Script(pieces=list(pieces), accepted=accepted, repeat=repeat), LoadConfig())
    return list(
        engine.stream(
            [{"role": "user", "content": "q"}], sampling=SamplingConfig(), tree=TreeConfig(), state=None, trace=True
        )
    )


def told(some: Iterable[Event]) -> Progress:
    progress = Progress()
    for event in some:
        progress.take(event)
    return progress


def wrapped(progress: Progress, width: int, theme: Theme, inspector: bool = True) -> Wrapped:
    lines = Wrapped(text_width(width, inspector), theme)
    for text, origin in progress.pieces:
        lines.feed(text, origin)
    return lines


def drawn(rows: Sequence[Text], theme: Theme, width: int) -> str:
    """The rows as a terminal would get them."""
    console = Console(
        width=width, force_terminal=True, color_system="standard" if theme.styles is None else None, markup=False,
        emoji=False, highlight=False, legacy_windows=False, _environ={},
    )  # fmt: skip
    with console.capture() as captured:
        for row in rows:
            console.print(row, crop=False, no_wrap=True, overflow="ignore", end="\n")
    return captured.get()
