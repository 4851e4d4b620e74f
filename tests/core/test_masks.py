from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from eagle_chat.core import masks

CHAIN = [-1, 0, 1, 2]
TWO_LEVELS = [-1, 0, 0, 1, 1, 2]


@st.composite
def random_parents(draw: st.DrawFn) -> list[int]:
    size = draw(st.integers(1, 24))
    return [-1, *(draw(st.integers(0, node - 1)) for node in range(1, size))]


def drawing(text: str) -> str:
    return "\n".join(line.strip() for line in text.strip().splitlines())


def test_a_chain_is_causal() -> None:
    expected = drawing("""
        1 0 0 0
        1 1 0 0
        1 1 1 0
        1 1 1 1
    """)
    assert masks.draw(masks.ancestor_matrix(CHAIN)) == expected
    assert masks.draw(masks.causal_matrix(4)) == expected


def test_in_a_tree_a_node_sees_itself_and_its_ancestors() -> None:
    assert masks.draw(masks.ancestor_matrix(TWO_LEVELS)) == drawing("""
        1 0 0 0 0 0
        1 1 0 0 0 0
        1 0 1 0 0 0
        1 1 0 1 0 0
        1 1 0 0 1 0
        1 0 1 0 0 1
    """)


def test_every_node_sees_the_cached_prefix() -> None:
    visible = masks.tree_visibility(masks.ancestor_matrix([-1, 0, 0]), torch.tensor([3, 4, 4]), 3)
    assert masks.draw(visible) == drawing("""
        1 1 1 1 0 0
        1 1 1 1 1 0
        1 1 1 1 0 1
    """)


def test_a_window_counts_positions_and_not_slots() -> None:
    # Positions of the nodes: 4 5 5 6 6. A window of 3 lets position 6 see 4, 5 and 6: the root, and its own parent.
    # In slots node 4 is five places behind the root, which a window over places would have hidden.
    tree = masks.ancestor_matrix([-1, 0, 0, 1, 2])
    visible = masks.tree_visibility(tree, torch.tensor([4, 5, 5, 6, 6]), 4, window=3)
    assert masks.draw(visible) == drawing("""
        0 0 1 1 1 0 0 0 0
        0 0 0 1 1 1 0 0 0
        0 0 0 1 1 0 1 0 0
        0 0 0 0 1 1 0 1 0
        0 0 0 0 1 0 1 0 1
    """)
    by_slots = masks.tree_visibility(tree, torch.tensor([4, 5, 6, 7, 8]), 4, window=3)
    assert not torch.equal(visible, by_slots)


def test_blocks_are_cut_by_position() -> None:
    # Blocks of 4: positions 0..3 and 4..7. Nodes at 3 4 4 5; the two at position 4 begin a block each for themselves.
    tree = masks.ancestor_matrix([-1, 0, 0, 1])
    visible = masks.tree_visibility(tree, torch.tensor([3, 4, 4, 5]), 3, window=4, chunked=True)
    assert masks.draw(visible) == drawing("""
        1 1 1 1 0 0 0
        0 0 0 0 1 0 0
        0 0 0 0 0 1 0
        0 0 0 0 1 0 1
    """)


def test_blocks_are_those_of_transformers_on_a_chain() -> None:
    from transformers.masking_utils import chunked_overlay

    size, length = 4, 11
    overlay = chunked_overlay(size, torch.zeros(1, dtype=torch.long))
    expected = torch.tensor(
        [[key <= query and bool(overlay(0, 0, query, key)) for key in range(length)] for query in range(6, length)]
    )
    found = masks.tree_visibility(masks.causal_matrix(5), torch.arange(6, length), 6, size, chunked=True)
    assert torch.equal(found, expected)


def test_a_window_is_that_of_transformers_on_a_chain() -> None:
    from transformers.masking_utils import sliding_window_overlay

    window, length = 4, 11
    overlay = sliding_window_overlay(window)
    expected = torch.tensor(
        [[key <= query and bool(overlay(0, 0, query, key)) for key in range(length)] for query in range(6, length)]
    )
    found = masks.tree_visibility(masks.causal_matrix(5), torch.arange(6, length), 6, window)
    assert torch.equal(found, expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_the_additive_mask_is_zero_or_the_lowest_number_of_its_dtype(dtype: torch.dtype) -> None:
    visible = masks.ancestor_matrix(TWO_LEVELS)
    mask = masks.additive(visible, dtype)
    assert mask.shape == (1, 1, 6, 6)
    assert mask.dtype == dtype
    assert torch.equal(mask[0, 0] == 0, visible)
    assert (mask[0, 0][~visible] == torch.finfo(dtype).min).all()
    assert torch.isfinite(mask).all()


@given(random_parents())
def test_the_ancestor_matrix_follows_the_parents(parents: list[int]) -> None:
    found = masks.ancestor_matrix(parents)
    for node in range(len(parents)):
        ancestors, at = set(), node
        while at >= 0:
            ancestors.add(at)
            at = parents[at]
        assert {other for other in range(len(parents)) if found[node, other]} == ancestors


@given(random_parents())
def test_a_node_is_one_deeper_than_its_parent(parents: list[int]) -> None:
    found = masks.depths(parents)
    assert found[0] == 0
    assert all(found[node] == found[parent] + 1 for node, parent in enumerate(parents) if node > 0)
    # A node sees as many nodes as it is deep, and itself.
    assert masks.ancestor_matrix(parents).sum(dim=1).tolist() == [depth + 1 for depth in found]


@given(random_parents(), st.integers(0, 12), st.integers(1, 8))
def test_a_window_hides_exactly_what_is_too_far_back(parents: list[int], cached: int, window: int) -> None:
    tree = masks.ancestor_matrix(parents)
    positions = [cached + depth for depth in masks.depths(parents)]
    found = masks.tree_visibility(tree, torch.tensor(positions), cached, window)
    keys = [*range(cached), *positions]
    for query, position in enumerate(positions):
        for slot, key in enumerate(keys):
            related = slot < cached or bool(tree[query, slot - cached])
            assert bool(found[query, slot]) == (related and position - key < window)
