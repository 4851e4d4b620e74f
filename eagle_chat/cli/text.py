"""Text on its way to a terminal, a pipe or a file.

What the model or the user wrote is data: it is printed as it is, except for control characters, which a
terminal would obey. What a stream's encoding cannot show becomes "?", so that printing never fails.
"""

from __future__ import annotations

import codecs
import contextlib
import io
import os
import re
import shutil
import sys
import textwrap
from pathlib import Path
from typing import TextIO

LONGEST_SEQUENCE = 256
"""Characters after which an escape sequence without an end is taken for text."""

_STRING_START = r"(?:\x1b[\]PX^_]|[\x90\x98\x9d-\x9f])"  # OSC, DCS, SOS, PM, APC: a text for the terminal follows
_STRING_BODY = rf"[^\x07\x1b\x9c]{{0,{LONGEST_SEQUENCE}}}"
_CSI = r"(?:\x1b\[|\x9b)[0-?]*[ -/]*"  # colours, cursor movement; ends with one more character
_SEQUENCE = re.compile(
    rf"{_STRING_START}{_STRING_BODY}(?:\x07|\x1b\\|\x9c)|{_CSI}[@-~]|\x1b[ -/]*[0-~]"
    r"|[\x00-\x08\x0b-\x1f\x7f-\x9f]"
)
_UNFINISHED = re.compile(rf"(?:{_STRING_START}{_STRING_BODY}\x1b?|{_CSI}|\x1b[ -/]*)\Z")


def clean(text: str) -> str:
    """`text` without escape sequences and control characters; newline and tab stay."""
    return _SEQUENCE.sub("", text)


def one_line(text: str) -> str:
    """`text` cleaned, all white space made single blanks."""
    return " ".join(clean(text).split())


def without_surrogates(text: str) -> str:
    """`text` with undecodable bytes (as Python keeps them in arguments and input) made U+FFFD."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


class Cleaner:
    """`clean` for text in pieces: an escape sequence may be split between them."""

    def __init__(self) -> None:
        self._held = ""

    def feed(self, piece: str) -> str:
        """What can be shown once `piece` is known."""
        text = self._held + piece
        unfinished = _UNFINISHED.search(text)
        start = unfinished.start() if unfinished else len(text)
        if len(text) - start > LONGEST_SEQUENCE:
            start = len(text)
        self._held = text[start:]
        return clean(text[:start])

    def flush(self) -> str:
        """What can be shown of the rest."""
        held, self._held = self._held, ""
        return clean(held)


def prepare_streams() -> None:
    """Make printing and reading safe in any encoding: nothing raises, what cannot be shown becomes "?"."""
    # Python has no stream at all where the caller closed it.
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open(mode, encoding="utf-8"))  # noqa: SIM115 - open to the end
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    if isinstance(sys.stdin, io.TextIOWrapper):
        # Bytes above 127 on an ASCII input are most likely UTF-8, of which ASCII is a part.
        ascii_only = codecs.lookup(sys.stdin.encoding).name == "ascii"
        sys.stdin.reconfigure(encoding="utf-8" if ascii_only else None, errors="replace")


def needs_ascii(stream: TextIO) -> bool:
    """Whether the stream's encoding lacks the signs we use ourselves."""
    try:
        "τ·✓".encode(stream.encoding or "ascii")
    except UnicodeEncodeError:
        return True
    return False


def dim(text: str, stream: TextIO) -> str:
    """`text` in a quieter colour, where `stream` is a terminal that has colours and nobody asked for none."""
    plain = not stream.isatty() or bool(os.environ.get("NO_COLOR")) or os.environ.get("TERM") == "dumb"
    return text if plain else f"\x1b[2m{text}\x1b[0m"


def _columns(stream: TextIO) -> int:
    """How wide a terminal is. It knows best: the variable COLUMNS may be that of another one."""
    with contextlib.suppress(OSError, ValueError):
        if columns := os.get_terminal_size(stream.fileno()).columns:
            return columns
    return shutil.get_terminal_size().columns


def say(text: str, quiet: bool = False) -> None:
    """One line for people on stderr; `quiet` for figures and remarks. A terminal gets it broken between words."""
    line = one_line(text)
    if sys.stderr.isatty():
        width = max(_columns(sys.stderr) - 1, 20)
        line = "\n".join(
            textwrap.wrap(line, width, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)
        )
    sys.stderr.write(f"{dim(line, sys.stderr) if quiet else line}\n")
    sys.stderr.flush()
