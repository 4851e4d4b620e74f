from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eagle_chat.core.detokenizer import Detokenizer
from tests.words import Plain, byte_fallback, byte_level

MIXED = "😀你好é👩‍💻"
BYTES = Plain(byte_level())
FALLBACK = Plain(byte_fallback())
DECODERS = {"byte level": BYTES, "byte fallback": FALLBACK}


def pieces(decoder: Plain, tokens: list[int]) -> list[str]:
    detokenizer = Detokenizer(decoder)
    return [*(detokenizer.feed(token) for token in tokens), detokenizer.flush()]


@pytest.fixture(params=DECODERS, name="decoder")
def _decoder(request: pytest.FixtureRequest) -> Plain:
    return DECODERS[request.param]


@pytest.mark.parametrize("end", range(1, len(MIXED.encode()) + 1))
def test_pieces_are_the_full_decode_wherever_the_bytes_end(end: int) -> None:
    tokens = BYTES.ids(MIXED)[:end]
    assert "".join(pieces(BYTES, tokens)) == BYTES.decode(tokens)


@pytest.mark.parametrize("end", range(1, len(MIXED.encode()) + 1))
def test_spelled_characters_that_end_early_keep_the_whole_ones(end: int) -> None:
    """There the decoder gives up every character of the run; the whole ones were shown, half a one is a sign."""
    whole = MIXED.encode()[:end].decode(errors="ignore")
    shown = "".join(pieces(FALLBACK, FALLBACK.ids(MIXED)[:end]))
    assert shown.rstrip("\ufffd") == whole
    assert (shown == whole) == (whole.encode() == MIXED.encode()[:end])


def test_no_piece_shows_half_a_character(decoder: Plain) -> None:
    shown = pieces(decoder, decoder.ids(MIXED))
    assert "".join(shown) == MIXED
    # Each character appears with its last byte, not later.
    lengths = [len(character.encode()) for character in MIXED]
    ends = [sum(lengths[: index + 1]) - 1 for index in range(len(lengths))]
    assert [index for index, piece in enumerate(shown) if piece] == ends


@pytest.mark.parametrize("kept", [1, 2, 3])
def test_half_a_character_at_the_end_is_shown_by_flush(decoder: Plain, kept: int) -> None:
    tokens = decoder.ids("ok 😀")[: 3 + kept]
    shown = pieces(decoder, tokens)
    assert "".join(shown) == decoder.decode(tokens)
    assert "".join(shown[:-1]) == "ok "
    assert set(shown[-1]) == {"\ufffd"}


@pytest.mark.parametrize("text", ["ab😀", "你😀"])
def test_flush_shows_nothing_twice(decoder: Plain, text: str) -> None:
    detokenizer = Detokenizer(decoder)
    for token in decoder.ids(text)[:-1]:
        detokenizer.feed(token)
    assert detokenizer.flush()
    assert detokenizer.flush() == ""


def test_a_genuine_replacement_character_does_not_stall(decoder: Plain) -> None:
    text = "a\ufffdb\ufffd\ufffd\ufffd\ufffdc" + "d" * 40
    assert "".join(pieces(decoder, decoder.ids(text))) == text
    early = "".join(pieces(decoder, decoder.ids("a\ufffdb"))[:-1])
    assert early == "a\ufffdb"


@pytest.mark.parametrize("broken", [[0xF0, 0x9F], [0x98], [0xFF], [0xC3, 0xC3], [0xF0] * 9])
def test_broken_bytes_do_not_stall(decoder: Plain, broken: list[int]) -> None:
    """A model may write bytes that are no character; what comes after them is shown all the same, and at once."""
    tokens = [*decoder.ids("one "), *broken, *decoder.ids(" two" * 20)]
    shown = pieces(decoder, tokens)
    assert "".join(shown) == decoder.decode(tokens)
    assert shown[-1] == ""


@pytest.mark.parametrize("after", ["", "two", " two three four five six seven eight"])
@pytest.mark.parametrize("broken", [[0xF0], [0xF0, 0x9F, 0x98], [0x98], [0xFF, 0xFF]])
@pytest.mark.parametrize("text", ["😀", "你好", "é😀"])
def test_broken_bytes_after_spelled_characters_lose_nothing(text: str, broken: list[int], after: str) -> None:
    """What was shown before the decoder gave the run up stays, and what follows appears."""
    shown = pieces(FALLBACK, [*FALLBACK.ids("ok" + text), *broken, *FALLBACK.ids(after)])
    assert "".join(shown) == "ok" + text + "\ufffd" + after
    assert shown[-1] == ("" if after else "\ufffd")


@given(st.text(min_size=1, max_size=120))
def test_long_texts_come_out_whole(text: str) -> None:
    assert "".join(pieces(BYTES, BYTES.ids(text))) == text


@given(st.lists(st.integers(0, 255), min_size=1, max_size=120))
def test_any_bytes_come_out_as_the_full_decode(tokens: list[int]) -> None:
    assert "".join(pieces(BYTES, tokens)) == BYTES.decode(tokens)


@given(
    st.lists(
        st.one_of(st.sampled_from(["a", " ", "  ", "\n", ","]), st.characters(codec="utf-8", exclude_characters="▁")),
        max_size=80,
    )
)
def test_words_among_spelled_characters_come_out_whole(parts: list[str]) -> None:
    tokens = FALLBACK.ids("".join(parts))
    assert "".join(pieces(FALLBACK, tokens)) == FALLBACK.decode(tokens)


@pytest.mark.parametrize("character", ["😀", "你", "é", "👩‍💻"])
def test_a_long_run_of_characters_comes_out_whole(decoder: Plain, character: str) -> None:
    """The window must not move into the middle of a character."""
    for before in range(8):
        text = "a" * before + character * 40 + "b"
        shown = pieces(decoder, decoder.ids(text))
        assert "".join(shown) == text
        assert all(len(piece) <= 1 for piece in shown)


@pytest.mark.parametrize("text", ["a long answer, 你好. " * 40, "你好" * 200, "\n" * 200, " " * 200])
def test_a_step_costs_the_same_in_a_long_answer(decoder: Plain, text: str) -> None:
    lengths: list[int] = []

    class Counting(Plain):
        def decode(self, token_ids: Sequence[int]) -> str:
            lengths.append(len(token_ids))
            return super().decode(token_ids)

    tokens = decoder.ids(text)
    assert "".join(pieces(Counting(decoder.tokenizer), tokens)) == decoder.decode(tokens)
    assert max(lengths) < 60
    assert len(lengths) < 1.5 * len(tokens)


@pytest.mark.parametrize("text", ["a , b", "x\n    if a:\n        b  ,  c", "a .  b ?  n't", "don 't", "tail   "])
def test_spaces_stay_as_they_are(decoder: Plain, text: str) -> None:
    assert "".join(pieces(decoder, decoder.ids(text))) == text


def test_spaces_in_front_of_words_stay_as_they_are() -> None:
    tokens = FALLBACK.tokenizer.convert_tokens_to_ids(["▁Hello", "▁a", "▁", ",", "▁a", "\n", "▁▁", "▁▁", "▁a"])
    assert "".join(pieces(FALLBACK, tokens)) == FALLBACK.decode(tokens) == "Hello a , a\n     a"


def test_special_tokens_have_no_text(decoder: Plain) -> None:
    begin, end = decoder.tokenizer.convert_tokens_to_ids(["<s>", "</s>"])
    shown = pieces(decoder, [*decoder.ids("ab"), *[begin] * 40, *decoder.ids(" é"), end])
    assert "".join(shown) == "ab é"
