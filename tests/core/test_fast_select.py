"""The best of a row by blocks are those of a full search."""

from __future__ import annotations

import pytest
import torch

from eagle_chat.core.fast_select import LONG, top_k


@pytest.mark.parametrize("size", [100, LONG - 1, LONG, LONG + 37, 49152])
@pytest.mark.parametrize("count", [1, 3, 10])
def test_the_same_as_a_full_search(size: int, count: int) -> None:
    scores = torch.randn(4, size, generator=torch.Generator().manual_seed(size + count))
    values, indices = top_k(scores, count)
    expected = scores.topk(count, dim=-1)
    assert torch.equal(values, expected.values)
    assert torch.equal(indices, expected.indices)  # random floats of this number have no ties among the best


def test_all_the_best_in_one_block_in_the_tail_and_far_apart() -> None:
    scores = torch.zeros(3, LONG + 5)
    scores[0, 640:650] = torch.arange(10, 20).float()
    scores[1, LONG : LONG + 5] = torch.arange(10, 15).float()
    scores[2, ::4096] = torch.arange(1, 6).float()
    _, indices = top_k(scores, 5)
    assert indices.tolist() == [
        [649, 648, 647, 646, 645],
        [LONG + 4, LONG + 3, LONG + 2, LONG + 1, LONG],
        [16384, 12288, 8192, 4096, 0],
    ]


def test_ties_give_distinct_tokens() -> None:
    """A node must not get the same child twice, whatever the order among equals."""
    _, indices = top_k(torch.zeros(2, LONG + 1), 10)
    assert all(len(set(row)) == 10 for row in indices.tolist())


def test_infinities_and_nan_are_where_torch_has_them() -> None:
    scores = torch.full((1, LONG), -torch.inf)
    scores[0, 7], scores[0, 9000] = torch.nan, 1.0
    values, indices = top_k(scores, 2)
    assert indices.tolist() == [[7, 9000]]
    assert torch.isnan(values[0, 0])
