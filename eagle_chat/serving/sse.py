"""Server-sent events, as far as OpenAI's protocol uses them: lines of data, and comments.

Lines end with CR, LF or both (WHATWG HTML, 9.2.6). Splitting decoded text with `str.splitlines` would be wrong: JSON
may hold U+2028 and its like as they are.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Literal

LONGEST_LINE = 16 * 1024 * 1024
"""Bytes; a longer line is no event of a chat."""
_END = re.compile(rb"\r\n|\n|\r(?!$)")  # a CR at the end of what is there may be half of a CRLF


@dataclass(frozen=True)
class Line:
    """`text`: what follows the field's name."""

    kind: Literal["data", "comment"]
    text: str


class MalformedStreamError(Exception):
    """The bytes are no server-sent events."""


async def read(chunks: AsyncIterator[bytes]) -> AsyncIterator[Line]:
    """The lines in a body that arrives in pieces. MalformedStreamError for what is neither field nor comment.

    An unfinished line at the end is dropped, as the standard says.
    """
    held = b""
    async for chunk in chunks:
        held += chunk
        *lines, held = _END.split(held)
        if len(held) > LONGEST_LINE:
            raise MalformedStreamError(f"a line of more than {LONGEST_LINE} bytes")
        for line in lines:
            found = _line(line)
            if found is not None:
                yield found
    if held.endswith(b"\r"):
        found = _line(held[:-1])
        if found is not None:
            yield found


def _line(raw: bytes) -> Line | None:
    try:
        line = raw.decode("utf-8")
    except UnicodeDecodeError:
        raise MalformedStreamError("bytes that are no UTF-8") from None
    name, colon, value = line.partition(":")
    value = value.removeprefix(" ")
    if not name:
        return Line("comment", value) if colon else None
    if name == "data":
        return Line("data", value)
    if name in ("event", "id", "retry"):
        return None
    raise MalformedStreamError(repr(line[:60]))
