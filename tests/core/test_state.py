from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from eagle_chat.core.cache import TreeCache
from eagle_chat.core.state import DecodingState, common_prefix

TOKENS = st.lists(st.integers(0, 2), max_size=12)


def state_of(tokens: list[int], cached: int, head: int | None, staged: int = 0) -> DecodingState:
    """A conversation whose caches hold the beginning of its tokens, perhaps with a forward that never ended."""
    cache, head_cache = TreeCache(0), None if head is None else TreeCache(0)
    for part, length in ((cache, cached), (head_cache, head)):
        if part is not None and length is not None:
            part.stage(length + staged)
            part.commit(list(range(length)))
            part.stage(staged)
    return DecodingState(cache, head_cache, list(tokens), torch.zeros(1, 4))


def still_true(entries: int, old: list[int], new: list[int], ahead: int) -> bool:
    """Whether `entries` cache entries say the same of both: entry t knows the tokens up to t + ahead."""
    return entries == 0 or (old[: entries + ahead] == new[: entries + ahead] and len(new) >= entries + ahead)


@given(st.data())
def test_rewinding_keeps_the_most_that_is_still_true(data: st.DataObject) -> None:
    tokens = data.draw(TOKENS)
    prompt = data.draw(st.lists(st.integers(0, 2), min_size=1, max_size=12))
    if data.draw(st.booleans()):  # the usual case: the prompt goes on where the conversation stands
        prompt = tokens[: data.draw(st.integers(0, len(tokens)))] + prompt
    cached = data.draw(st.integers(0, len(tokens)))
    head = data.draw(st.none() | st.integers(0, max(len(tokens) - 1, 0)))
    with_head = head is not None and data.draw(st.booleans())
    state = state_of(tokens, cached, head, data.draw(st.integers(0, 3)))

    kept = state.rewind(prompt, with_head)

    def valid(count: int) -> bool:
        fits = count <= min(cached, len(prompt) - 1) and still_true(count, tokens, prompt, 0)
        if with_head:
            assert head is not None
            fits = fits and count <= head and still_true(count, tokens, prompt, 1)
        return fits

    assert kept == max(count for count in range(len(prompt)) if valid(count))
    assert state.tokens == prompt
    assert state.pending is None
    assert state.cache.length == state.cache.filled == kept
    if state.head_cache is not None:
        assert head is not None
        held = state.head_cache.length
        assert state.head_cache.filled == held
        assert held <= head
        assert still_true(held, tokens, prompt, 1)
        # A turn without the head forgets no more of it than it must.
        assert (
            held == kept if with_head else held == max(n for n in range(head + 1) if still_true(n, tokens, prompt, 1))
        )


def test_the_next_turn_of_a_conversation() -> None:
    state = state_of([1, 2, 3, 4, 5], cached=4, head=3)
    assert state.rewind([1, 2, 3, 4, 5, 6, 7], with_head=True) == 3
    assert state.rewind([1, 2, 3, 4, 5, 6, 7], with_head=False) == 3
    plain = state_of([1, 2, 3, 4, 5], cached=4, head=None)
    assert plain.rewind([1, 2, 3, 4, 5, 6, 7], with_head=False) == 4


def test_the_same_prompt_again_runs_its_last_token() -> None:
    state = state_of([1, 2, 3, 4], cached=4, head=None)
    assert state.rewind([1, 2, 3, 4], with_head=False) == 3
    assert state.rewind([1], with_head=False) == 0


def test_the_heads_newest_entry_knows_one_token_more() -> None:
    """Entry 2 of the head was made with token 3. Where the prompt has another token there, it is not true any more."""
    state = state_of([1, 2, 3, 4, 5], cached=5, head=4)
    assert state.rewind([1, 2, 3, 9, 9], with_head=True) == 2
    assert state.cache.length == 2


@given(TOKENS, TOKENS)
def test_the_common_prefix_is_the_longest(left: list[int], right: list[int]) -> None:
    expected = max(n for n in range(min(len(left), len(right)) + 1) if left[:n] == right[:n])
    assert common_prefix(left, right) == expected
