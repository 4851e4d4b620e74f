"""One progress line for slow one-time work: a bar on a terminal, plain lines elsewhere, always on stderr."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

Report = Callable[[str, float], None]
"""Called with what is being done and the finished fraction of it (0 to 1)."""


@contextmanager
def reporting(enabled: bool = True) -> Iterator[Report]:
    """Yields the function to report progress to; with `enabled` false it does nothing."""
    if not enabled:
        yield lambda _what, _fraction: None
    elif sys.stderr.isatty():
        with _bar() as report:
            yield report
    else:
        yield _plain()


def _plain() -> Report:
    last = ""

    def report(what: str, _fraction: float) -> None:
        nonlocal last
        if what != last:  # a log wants each step once, not a hundred percentages
            last = what
            sys.stderr.write(f"{what} ...\n")
            sys.stderr.flush()

    return report


@contextmanager
def _bar() -> Iterator[Report]:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn

    columns = (TextColumn("{task.description}", markup=False), BarColumn(), TaskProgressColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("", total=1.0)
        yield lambda what, fraction: progress.update(task, description=what, completed=fraction)
