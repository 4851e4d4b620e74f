from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from eagle_chat.core import masks
from eagle_chat.core.cache import GROWTH_STEP, TreeCache
from eagle_chat.core.target import Target
from tests.tiny import make_target, prompts

HEADS, DIM, LAYERS = 2, 3, 2


class Reference:
    """The same cache as plain lists of what each token brought."""

    def __init__(self) -> None:
        self.committed: list[int] = []
        self.staged: list[int] = []

    def commit(self, path: list[int]) -> None:
        self.committed += [self.staged[offset] for offset in path]
        self.staged = []

    def truncate(self, length: int) -> None:
        self.committed, self.staged = self.committed[:length], []


def states(stamps: list[int], layer: int) -> tuple[Tensor, Tensor]:
    """Keys and values [1, heads, M, dim] that name their token and their layer."""
    base = torch.tensor(stamps, dtype=torch.float32)[None, None, :, None].expand(1, HEADS, len(stamps), DIM)
    unlike = torch.arange(HEADS * DIM, dtype=torch.float32).view(1, HEADS, 1, DIM) / 100
    return base + unlike + 1000 * layer, -(base + unlike) - 1000 * layer


def write(cache: TreeCache, stamps: list[int]) -> list[tuple[Tensor, Tensor]]:
    """What a forward pass writes, without the `stage` that ends it."""
    return [layer.update(*states(stamps, index)) for index, layer in enumerate(cache.layers)]


def holds(cache: TreeCache, stamps: list[int]) -> bool:
    """Whether the first `len(stamps)` tokens of every layer are these."""
    for index, layer in enumerate(cache.layers):
        if stamps:
            keys, values = states(stamps, index)
            end = len(stamps)
            if not (torch.equal(layer.keys[:, :, :end], keys) and torch.equal(layer.values[:, :, :end], values)):
                return False
    return True


@st.composite
def operations(draw: st.DrawFn) -> list[tuple[str, object]]:
    kinds = st.sampled_from(["append", "append", "commit", "truncate", "reserve", "interrupted"])
    return [(draw(kinds), draw(st.randoms(use_true_random=False))) for _ in range(draw(st.integers(1, 25)))]


@given(operations(), st.integers(1, 3))
def test_any_sequence_of_operations_is_that_of_lists(steps: list[tuple[str, object]], capacity: int) -> None:
    cache, reference, stamp = TreeCache(LAYERS, capacity), Reference(), 0
    for kind, chance in steps:
        size = chance.randint(1, 90)  # type: ignore[attr-defined]
        stamps = list(range(stamp, stamp + size))
        if kind in ("append", "interrupted"):
            cache.reserve(cache.filled + size)
            write(cache, stamps)
            stamp += size
            if kind == "append":
                cache.stage(size)
                reference.staged += stamps
        elif kind == "commit":
            staged = range(len(reference.staged))
            path = sorted(chance.sample(staged, chance.randint(0, len(staged))))  # type: ignore[attr-defined]
            cache.commit(path)
            reference.commit(path)
        elif kind == "truncate":
            cache.truncate(size)
            reference.truncate(size)
        else:
            cache.reserve(cache.filled + 4 * size)
        assert cache.length == len(reference.committed)
        assert cache.filled == cache.length + len(reference.staged)
        assert cache.filled <= cache.capacity
        assert holds(cache, reference.committed + reference.staged)


def test_commit_keeps_a_path_that_is_no_prefix() -> None:
    cache = TreeCache(LAYERS)
    write(cache, [1, 2])
    cache.stage(2)
    cache.commit([0, 1])
    write(cache, [10, 11, 12, 13, 14, 15, 16])
    cache.stage(7)
    cache.commit([0, 3, 6])
    assert cache.length == cache.filled == 5
    assert holds(cache, [1, 2, 10, 13, 16])
    assert not holds(cache, [1, 2, 10, 11, 12])


def test_rows_that_overlap_their_new_place_are_moved_whole() -> None:
    cache = TreeCache(1)
    write(cache, list(range(8)))
    cache.stage(8)
    cache.commit([1, 2, 3, 4, 5, 6, 7])
    assert holds(cache, [1, 2, 3, 4, 5, 6, 7])


def test_update_returns_views_and_not_copies() -> None:
    cache = TreeCache(LAYERS)
    for layer, (keys, values) in zip(cache.layers, write(cache, [1, 2, 3]), strict=True):
        assert keys.shape[2] == values.shape[2] == 3
        assert keys.data_ptr() == layer.keys.data_ptr()
        assert values.data_ptr() == layer.values.data_ptr()


def test_growth_keeps_committed_and_staged_tokens() -> None:
    cache = TreeCache(LAYERS, 4)
    assert cache.capacity == GROWTH_STEP
    write(cache, list(range(200)))
    cache.stage(200)
    cache.commit(list(range(150)))
    write(cache, list(range(500, 520)))
    cache.stage(20)
    cache.reserve(GROWTH_STEP + 1)
    assert cache.capacity == 2 * GROWTH_STEP
    assert holds(cache, [*range(150), *range(500, 520)])
    cache.reserve(3)
    assert cache.capacity == 2 * GROWTH_STEP


def test_an_interrupted_forward_leaves_the_committed_part_whole() -> None:
    cache = TreeCache(LAYERS)
    write(cache, [1, 2, 3])
    cache.stage(3)
    cache.commit([0, 1, 2])
    cache.layers[0].update(*states([7, 8], 0))  # only the first layer got to write
    assert (cache.length, cache.filled) == (3, 3)
    assert holds(cache, [1, 2, 3])
    write(cache, [4])
    cache.stage(1)
    cache.commit([0])
    assert holds(cache, [1, 2, 3, 4])


def test_growth_that_is_interrupted_forgets_everything_rather_than_something(monkeypatch: pytest.MonkeyPatch) -> None:
    cache = TreeCache(LAYERS)
    write(cache, [1, 2, 3])
    cache.stage(3)
    cache.commit([0, 1, 2])
    last = cache.tree_layers[-1]

    def interrupted(filled: int, rows: object = None) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(last, "move", interrupted)
        with pytest.raises(KeyboardInterrupt):
            cache.reserve(GROWTH_STEP + 1)
    cache.recover()
    assert (cache.length, cache.filled) == (0, 0)
    cache.reserve(GROWTH_STEP + 1)
    write(cache, [4, 5, 6])
    cache.stage(3)
    cache.commit([0, 2])
    assert holds(cache, [4, 6])
    cache.recover()  # nothing was interrupted
    assert cache.length == 2
    assert holds(cache, [4, 6])


def test_truncate_never_lengthens() -> None:
    cache = TreeCache(LAYERS)
    write(cache, [1, 2])
    cache.stage(2)
    cache.truncate(5)
    assert (cache.length, cache.filled) == (0, 0)


def test_layers_that_share_anothers_keys_are_left_alone() -> None:
    cache = TreeCache(3)
    cache.layers[1].update(*states([5, 6, 7], 1))
    cache.stage(3)
    cache.commit([0, 2])
    cache.reserve(1000)
    assert torch.equal(cache.layers[1].keys[:, :, :2], states([5, 7], 1)[0])


@pytest.fixture(scope="module")
def target() -> Target:
    return make_target()


def forward(target: Target, tokens: list[int], positions: list[int], seen: Tensor, cache: TreeCache) -> Tensor:
    return target.forward(torch.tensor(tokens), torch.tensor(positions), seen, cache).logits


def tree_then_path(target: Target, depth: int, width: int) -> tuple[list[int], list[int], list[int], list[int]]:
    """Tokens, parents, the path through the last sibling of each level, and its tokens."""
    generator = torch.Generator().manual_seed(depth * 31 + width)
    parents, path = [-1], [0]
    for _ in range(depth):
        first = len(parents)
        parents += [path[-1]] * width
        path.append(first + width - 1)
    tokens = torch.randint(3, target.vocab_size, (len(parents),), generator=generator).tolist()
    return tokens, parents, path, [tokens[node] for node in path]


@pytest.mark.parametrize("depth", [1, 2, 7])
@pytest.mark.parametrize("width", [1, 2, 3, 10])
@torch.inference_mode()
def test_committing_the_last_sibling_of_every_level_equals_a_fresh_forward(
    target: Target, depth: int, width: int
) -> None:
    prompt = prompts(1, 9)[0]
    tokens, parents, path, kept = tree_then_path(target, depth, width)
    positions = [9 + at for at in masks.depths(parents)]
    end = 9 + len(path)

    def next_logits(committed: list[int]) -> tuple[Tensor, Tensor]:
        cache = target.new_cache(64)
        forward(target, prompt, list(range(9)), masks.causal_matrix(9), cache)
        cache.commit(list(range(9)))
        in_tree = forward(target, tokens, positions, masks.ancestor_matrix(parents), cache)
        cache.commit(committed)
        return in_tree, forward(target, [17], [end], masks.causal_matrix(1), cache)[-1]

    everything, causal = [*prompt, *kept, 17], masks.causal_matrix(end + 1)
    fresh = forward(target, everything, list(range(end + 1)), causal, target.new_cache(64))
    in_tree, after = next_logits(path)
    torch.testing.assert_close(after, fresh[-1], atol=1e-5, rtol=1e-5)
    # Rounding in float32: a tree of 71 nodes is added up in another order than a chain of 18.
    torch.testing.assert_close(in_tree[path], fresh[9:end], atol=1e-4, rtol=1e-4)
    if width > 1:  # the first siblings, kept by mistake, are noticed
        first = [0, *(node - width + 1 for node in path[1:])]
        assert not torch.allclose(next_logits(first)[1], fresh[-1], atol=1e-3)


def test_rows_of_a_batch_that_are_kept_keep_their_own_entries() -> None:
    cache = TreeCache(2, 8)
    states = torch.randn(4, 3, 5, 6)  # rows, heads, tokens, dim
    for number in range(2):
        cache.layers[number].update(states + number, -states)
    cache.stage(5)
    cache.keep_rows(torch.tensor([3, 1]))
    new = torch.randn(2, 3, 1, 6)
    for number in range(2):
        keys, values = cache.layers[number].update(new, new)
        assert torch.equal(keys, torch.cat((states[[3, 1]] + number, new), dim=2))
        assert torch.equal(values, torch.cat((-states[[3, 1]], new), dim=2))
