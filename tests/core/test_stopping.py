from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eagle_chat.core.detokenizer import Detokenizer
from eagle_chat.core.stopping import Cut, Stopper
from tests.words import Plain, byte_fallback, byte_level

BYTES, FALLBACK = Plain(byte_level()), Plain(byte_fallback())
STOP = 257  # "</s>" of the byte tokenizer
ANSWER = list(b"abcdefghij")


def stopper(
    stop_ids: Sequence[int] = (), stop: Sequence[str] = (), budget: int = 99, room: int = 99, decoder: Plain = BYTES
) -> Stopper:
    return Stopper(Detokenizer(decoder), stop_ids, stop, budget, room)


def told(cut: Cut) -> tuple[int, str, str | None]:
    assert len(cut.pieces) == cut.keep
    return cut.keep, cut.text, cut.reason


def run(watch: Stopper, tokens: Sequence[int], sizes: Sequence[int]) -> tuple[list[int], list[str], str | None]:
    """Offer tokens in cycles of these sizes: kept tokens, pieces of text, reason."""
    kept: list[int] = []
    pieces: list[str] = []
    at = 0
    for size in [*sizes, *[3] * len(tokens)]:
        offered = list(tokens[at : at + size])
        if not offered:
            break
        cut = watch.offer(offered)
        kept += offered[: cut.keep]
        pieces.append(told(cut)[1])
        if cut.reason is not None:
            return kept, pieces, cut.reason
        assert cut.keep == len(offered)
        at += size
    return kept, [*pieces, watch.flush()], None


@pytest.mark.parametrize("at", range(10))
@pytest.mark.parametrize("size", [1, 2, 3, 10])
def test_a_stop_id_ends_the_answer_with_itself(at: int, size: int) -> None:
    kept, pieces, reason = run(stopper([ANSWER[at]]), ANSWER, [size] * 10)
    assert kept == ANSWER[: at + 1]
    assert "".join(pieces) == "abcdefghij"[:at]
    assert reason == "stop"


def test_several_stop_ids_and_the_first_inside_a_run() -> None:
    watch = stopper([STOP, ord("f"), ord("d")])
    assert told(watch.offer(list(b"ab"))) == (2, "ab", None)
    assert told(watch.offer(list(b"cdef"))) == (2, "c", "stop")


def test_the_stop_marker_is_not_shown() -> None:
    assert told(stopper([STOP]).offer([*b"hi", STOP, *b"more"])) == (3, "hi", "stop")


@pytest.mark.parametrize("budget", [1, 2, 5, 10])
@pytest.mark.parametrize("size", [1, 3, 10])
def test_the_budget_is_kept_exactly(budget: int, size: int) -> None:
    kept, pieces, reason = run(stopper(budget=budget), ANSWER, [size] * 10)
    assert kept == ANSWER[:budget]
    assert "".join(pieces) == "abcdefghij"[:budget]
    assert reason == "length"


def test_a_stop_id_on_the_last_token_of_the_budget_is_a_stop() -> None:
    assert run(stopper([ord("e")], budget=5), ANSWER, [4, 4])[2] == "stop"
    assert run(stopper([ord("f")], budget=5), ANSWER, [4, 4])[2] == "length"
    assert run(stopper([], ["de"], budget=5), ANSWER, [4, 4])[2] == "stop"


@pytest.mark.parametrize(
    ("budget", "room", "reason"), [(3, 9, "length"), (9, 3, "context"), (3, 3, "length"), (3, 2, "context")]
)
def test_the_nearer_limit_is_the_reason(budget: int, room: int, reason: str) -> None:
    watch = stopper(budget=budget, room=room)
    assert watch.left == min(budget, room)
    assert watch.exhausted() is None
    cut = watch.offer(ANSWER)
    assert (cut.keep, cut.reason) == (min(budget, room), reason)
    assert watch.left == 0
    assert watch.exhausted() == reason


@pytest.mark.parametrize(
    ("budget", "room", "reason"), [(0, 9, "length"), (9, 0, "context"), (9, -36, "context"), (0, 0, "length")]
)
def test_no_room_for_even_one_token(budget: int, room: int, reason: str) -> None:
    assert stopper(budget=budget, room=room).exhausted() == reason


def test_half_a_character_at_the_end_of_the_budget_is_shown() -> None:
    for decoder in (BYTES, FALLBACK):
        for cut_at in range(1, 4):
            tokens = decoder.ids("ok😀")
            watch = stopper(budget=2 + cut_at, decoder=decoder)
            kept, pieces, reason = run(watch, tokens, [2, 1, 1])
            assert reason == "length"
            assert "".join(pieces) == decoder.decode(kept)
            assert "\ufffd" in "".join(pieces)
            assert watch.flush() == ""


@pytest.mark.parametrize("text", ["😀你好é👩‍💻"])
@pytest.mark.parametrize("decoder", [BYTES, FALLBACK])
def test_characters_split_over_cycles_at_every_place(text: str, decoder: Plain) -> None:
    tokens = decoder.ids(text)
    for at in range(1, len(tokens)):
        kept, pieces, reason = run(stopper(decoder=decoder), tokens, [at, len(tokens) - at])
        assert (kept, reason) == (tokens, None)
        assert "".join(pieces) == text
        assert not any("\ufffd" in piece for piece in pieces)


@pytest.mark.parametrize("size", range(1, 8))
def test_a_stop_string_over_several_tokens_is_never_shown(size: int) -> None:
    kept, pieces, reason = run(stopper(stop=["END"]), list(b"one ENE EN. END two"), [size] * 30)
    assert "".join(pieces) == "one ENE EN. "
    assert kept == list(b"one ENE EN. END")
    assert reason == "stop"


def test_the_beginning_of_a_stop_string_is_held_back_and_released() -> None:
    watch = stopper(stop=["\nUser:"])
    assert told(watch.offer(list(b"hi\nUs"))) == (5, "hi", None)
    assert told(watch.offer(list(b"er"))) == (2, "", None)
    assert told(watch.offer(list(b"!"))) == (1, "\nUser!", None)
    assert told(watch.offer(list(b"\n\n"))) == (2, "\n", None)
    assert watch.flush() == "\n"


def test_what_is_held_back_appears_at_every_end() -> None:
    assert told(stopper([STOP], ["END"]).offer([*b"aEN", STOP])) == (4, "aEN", "stop")
    assert told(stopper([], ["END"], budget=3).offer(list(b"aENx"))) == (3, "aEN", "length")
    watch = stopper([], ["END"])
    watch.offer(list(b"aEN"))
    assert (watch.flush(), watch.flush()) == ("EN", "")


def test_the_earliest_of_several_stop_strings_rules() -> None:
    for strings in (["two", "ne"], ["ne", "two"]):
        kept, pieces, _ = run(stopper(stop=strings), list(b"one two"), [7])
        assert "".join(pieces) == "o"
        assert kept == list(b"one")


def test_one_token_may_hold_text_before_and_after_a_stop_string() -> None:
    words = ["a ", "b END c"]

    class Words:
        def decode(self, token_ids: Sequence[int]) -> str:
            return "".join(words[token] for token in token_ids)

    assert told(Stopper(Detokenizer(Words()), (), ["END"], 9, 9).offer([0, 1, 0])) == (2, "a b ", "stop")


def test_nothing_is_shown_after_a_stop_string() -> None:
    class HalfCharacter:
        def decode(self, token_ids: Sequence[int]) -> str:
            return "".join(["x", "END\ufffd"][token] for token in token_ids)

    watch = Stopper(Detokenizer(HalfCharacter()), (), ["END"], 9, 9)
    assert told(watch.offer([0, 1])) == (2, "x", "stop")
    assert watch.flush() == ""


@pytest.mark.parametrize("text", ["a , b", "x\n    if a:\n        b", "a  .  n't", "  lead"])
def test_spaces_are_left_alone(text: str) -> None:
    _, pieces, _ = run(stopper(stop=["  END"]), BYTES.ids(text), [1] * 40)
    assert "".join(pieces) == text


LETTERS = st.text("abEND", max_size=40)


@given(
    LETTERS,
    st.lists(st.text("abEND", min_size=1, max_size=4), max_size=3),
    st.integers(0, 45),
    st.lists(st.integers(1, 5), max_size=40),
    st.booleans(),
)
def test_any_split_into_cycles_gives_the_naive_cut(
    text: str, strings: list[str], budget: int, sizes: list[int], with_id: bool
) -> None:
    """The naive one reads the whole answer at once: the first letter at which a reason appears."""
    stop_ids = [ord("D")] if with_id else []
    keep, shown, reason = len(text), text, None
    for end in range(1, len(text) + 1):
        found = [text[:end].find(string) for string in strings if string in text[:end]]
        if with_id and text[end - 1] == "D":
            # The stop id's own text does not count, so no stop string can end with it.
            keep, shown, reason = end, text[: end - 1], "stop"
        elif found:
            keep, shown, reason = end, text[: min(found)], "stop"
        elif end == budget:
            keep, shown, reason = end, text[:end], "length"
        if reason is not None:
            break
    watch = stopper(stop_ids, strings, budget)
    if budget == 0:
        assert watch.exhausted() == "length"
        return
    kept, pieces, why = run(watch, list(text.encode()), sizes)
    assert (len(kept), "".join(pieces), why) == (keep, shown, reason)


def test_each_piece_is_the_text_that_its_token_made_certain() -> None:
    watch = stopper([STOP], ["END"])
    assert watch.offer([*"aé".encode(), *b"E"]).pieces == ("a", "", "é", "")
    assert watch.offer([*b"n", STOP]).pieces == ("En", "")
    assert stopper([], ["END"], budget=2).offer(list(b"aEx")).pieces == ("a", "E")
