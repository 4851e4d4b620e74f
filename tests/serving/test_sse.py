from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eagle_chat.serving.sse import Line, MalformedStreamError, read


def lines_of(*chunks: bytes) -> list[Line]:
    async def body() -> AsyncIterator[bytes]:
        for chunk in chunks:
            yield chunk

    async def collect() -> list[Line]:
        return [line async for line in read(body())]

    return asyncio.run(collect())


BODY = 'data: {"a": "é😀\u2028b"}\r\n\r\n: ahead 2\n\nevent: x\rid: 3\r\rdata:[DONE]\n\n'.encode()
EXPECTED = [Line("data", '{"a": "é😀\u2028b"}'), Line("comment", "ahead 2"), Line("data", "[DONE]")]


@given(st.lists(st.integers(0, len(BODY)), max_size=6))
def test_lines_are_the_same_wherever_the_body_is_cut(cuts: list[int]) -> None:
    edges = [0, *sorted(cuts), len(BODY)]
    assert lines_of(*(BODY[a:b] for a, b in pairwise(edges))) == EXPECTED


def test_an_unfinished_line_is_dropped_and_a_bare_cr_ends_one() -> None:
    assert lines_of(b"data: 1\n\ndata: 2") == [Line("data", "1")]
    assert lines_of(b"data: 1\r") == [Line("data", "1")]


@pytest.mark.parametrize("body", [b"<html>\n", b"data: \xff\xfe\n", b"nonsense: 1\n", b'{"error": 1}\n'])
def test_what_is_no_stream_is_refused(body: bytes) -> None:
    with pytest.raises(MalformedStreamError):
        lines_of(body)
