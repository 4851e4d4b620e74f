from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from eagle_chat.core.errors import UserError
from eagle_chat.core.tree import STATIC_PATHS, DraftTree, chain_paths, check_paths, static_levels

Paths = tuple[tuple[int, ...], ...]


@st.composite
def random_paths(draw: st.DrawFn) -> Paths:
    """A valid static tree in any order."""
    paths: list[tuple[int, ...]] = []
    for _ in range(draw(st.integers(1, 20))):
        parent = draw(st.sampled_from([(), *paths]))
        paths.append((*parent, sum(path[:-1] == parent for path in paths)))
    return tuple(draw(st.permutations(paths)))


def unrolled(paths: Paths) -> list[tuple[int, ...]]:
    """The paths again, from `static_levels`."""
    found: list[tuple[int, ...]] = []
    previous: list[tuple[int, ...]] = [()]
    for level in static_levels(paths):
        previous = [(*previous[parent], rank) for parent, rank in zip(level.parents, level.ranks, strict=True)]
        found += previous
    return found


def test_the_published_static_tree() -> None:
    levels = static_levels(STATIC_PATHS)
    assert len(STATIC_PATHS) == 25
    assert [len(level.ranks) for level in levels] == [4, 8, 8, 3, 2]
    assert check_paths(STATIC_PATHS) == STATIC_PATHS


def test_a_chain_is_a_static_tree() -> None:
    assert chain_paths(3) == ((0,), (0, 0), (0, 0, 0))
    assert [(level.parents, level.ranks) for level in static_levels(chain_paths(3))] == [([0], [0])] * 3


@given(random_paths())
def test_levels_hold_exactly_the_paths(paths: Paths) -> None:
    assert unrolled(paths) == sorted(paths, key=lambda path: (len(path), path))


@pytest.mark.parametrize(
    ("paths", "reason"),
    [
        ((), "at least one path"),
        (((),), "empty or negative"),
        (((0,), ()), "empty or negative"),
        (((0,), (-1,)), "empty or negative"),
        (((0, 1),), r"\[0, 1\] needs its parent \[0\]"),
        (((0,), (1, 0)), r"\[1, 0\] needs its parent \[1\]"),
        (((0,), (0,)), r"\[0\] twice"),
        (((0,), (0, 0), (1,), (0, 0)), r"\[0, 0\] twice"),
        (((0,), (2,)), r"\[2\] needs the better-ranked sibling \[1\]"),
        (((0,), (0, 1)), r"\[0, 1\] needs the better-ranked sibling \[0, 0\]"),
        (((1,),), r"\[1\] needs the better-ranked sibling \[0\]"),
    ],
)
def test_paths_that_are_no_tree_are_refused_with_the_reason(paths: Paths, reason: str) -> None:
    for judge in (check_paths, static_levels):
        with pytest.raises(UserError, match=reason):
            judge(paths)


@given(random_paths(), st.data())
def test_taking_away_an_inner_node_is_noticed(paths: Paths, data: st.DataObject) -> None:
    inner = [path for path in paths if any(other[: len(path)] == path and other != path for other in paths)]
    if inner:
        gone = data.draw(st.sampled_from(inner))
        with pytest.raises(UserError, match="needs its parent"):
            check_paths(tuple(path for path in paths if path != gone))


def test_children_stand_in_drafting_order() -> None:
    tree = DraftTree([5, 6, 7, 8, 9, 6], [-1, 0, 0, 2, 1, 2], [0.0, -0.1, -0.2, -0.3, -0.4, -0.5])
    assert tree.children() == [[1, 2], [4], [3, 5], [], [], []]
    assert tree.depths() == [0, 1, 1, 2, 2, 2]
    assert len(tree) == 6


def test_visibility_is_that_of_the_parents() -> None:
    tree = DraftTree([5, 6, 7, 8], [-1, 0, 0, 2], [0.0] * 4)
    expected = torch.tensor([[1, 0, 0, 0], [1, 1, 0, 0], [1, 0, 1, 0], [1, 0, 1, 1]], dtype=torch.bool)
    assert torch.equal(tree.visibility(), expected)


def test_the_tree_of_plain_decoding_is_its_root() -> None:
    tree = DraftTree.of_root(42)
    assert (tree.tokens, tree.parents, tree.children()) == ([42], [-1], [[]])
    assert tree.visibility().tolist() == [[True]]
