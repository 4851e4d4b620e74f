"""Runs as one HTML file for others: the explorer of the browser page, in a file that needs no network."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from eagle_chat.core import recording
from eagle_chat.core.assets import asset_path
from eagle_chat.core.errors import UserError
from eagle_chat.core.files import write_atomic
from eagle_chat.core.recording import Run

MARK = "<!doctype html>\n<!-- eagle-chat"
"""How every page begins, so that a page may be written over, and nothing else."""


def write_page(path: Path, runs: Sequence[Run]) -> int:
    """Write the page of `runs` to `path`; its size in bytes. UserError where something else is there already, or
    where the runs are more than a page can hold."""
    from eagle_chat.webui.explorer import html_page, runs_data

    path = path.expanduser()
    if path.exists() and not _is_page(path):
        raise UserError(f"a new file expected, found that {path} is there already: choose another name")
    text = html_page(runs_data(runs))
    write_atomic(path, text)
    return len(text.encode("utf-8"))


def _is_page(path: Path) -> bool:
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return file.read(len(MARK)) == MARK.encode("utf-8")


def replay_page(out: Path, file: Path | None, demo: tuple[str, ...] | None, beside: Path | None) -> str:
    """Write a recording (or the shipped one at `demo`) as a page to `out`, with a second recording beside it if one
    is given; a sentence that says so."""
    if out.suffix.lower() not in (".html", ".htm"):
        raise UserError(f"a name that ends in .html expected, found {out.name!r}: change the ending")
    first = asset_path(*demo) if demo is not None else file
    assert first is not None
    runs = [run for path in (first, beside) if path is not None for run in recording.read(path)]
    size = write_page(out, runs)
    return f"written: {out} ({size / 1000:,.0f} kB), to be opened in a browser; it needs no network"
