from __future__ import annotations

import functools
import math
from collections import Counter
from typing import Any

import pytest
import torch
from torch import Tensor

from eagle_chat.core import masks
from eagle_chat.core.cache import TreeCache
from eagle_chat.core.children import SampledChildren
from eagle_chat.core.drafting import DynamicTree, NoDraft, StaticTree
from eagle_chat.core.growth import DraftInput
from eagle_chat.core.heads.base import DraftHead
from eagle_chat.core.heads.drafter import Drafter
from eagle_chat.core.tree import STATIC_PATHS, DraftTree, chain_paths
from tests.tiny import VOCAB, make_head, make_target, prompts

Path = tuple[int, ...]
"""Drafted target ids from the root to a node."""
LENGTH = 9


@functools.cache
def head_of(kind: str, draft_vocab: int = VOCAB, seed: int = 1) -> DraftHead:
    return make_head(kind, make_target(), seed, draft_vocab)


@pytest.fixture(autouse=True)
def _no_gradients() -> Any:
    with torch.inference_mode():
        yield


class Conversation:
    """Committed tokens with random target features, and what the head makes of them."""

    def __init__(self, head: DraftHead, seed: int, length: int = LENGTH) -> None:
        self.head = head
        self.tokens = prompts(1, length, seed)[0]
        generator = torch.Generator().manual_seed(seed)
        self.features = torch.randn(length - 1, head.spec.feature_size, generator=generator)

    def start(self, room: int = 99) -> DraftInput:
        """As the engine does it: every committed feature through the head at once, and committed."""
        count = len(self.tokens) - 1
        cache = self.head.new_cache(64)
        hidden = self.head(
            torch.tensor(self.tokens[1:]),
            self.head.fuse(self.features),
            torch.arange(count),
            masks.causal_matrix(count),
            cache,
        )
        cache.commit(list(range(count)))
        return DraftInput(hidden[-1:], self.tokens[-1], len(self.tokens) - 1, cache, room)

    def output(self, path: Path) -> Tensor:
        """The head's output after `path`, [H]: everything run anew, without a cache from before."""
        hidden = self.head.fuse(self.features)
        for end in range(len(path)):
            hidden = torch.cat((hidden, self.output(path[:end])[None]))
        tokens = torch.tensor([*self.tokens[1:], *path])
        count = tokens.shape[0]
        return self.head(tokens, hidden, torch.arange(count), masks.causal_matrix(count), self.head.new_cache(64))[-1]


class Naive:
    """The dynamic tree as EAGLE-2 describes it, node by node, without cache, mask or tensors over levels."""

    def __init__(self, conversation: Conversation, depth: int, top_k: int) -> None:
        self.conversation, self.head = conversation, conversation.head
        self.values: dict[Path, float] = {}
        newest: list[Path] = [()]
        for level in range(depth):
            if level > 0:
                newest = sorted(newest, key=self.values.__getitem__, reverse=True)[:top_k]
            newest = [child for path in newest for child in self.expand(path, top_k)]

    def expand(self, path: Path, top_k: int) -> list[Path]:
        log_q = self.head.logits(self.conversation.output(path)[None])[0].log_softmax(dim=-1)
        best = log_q.topk(top_k)
        for value, draft_id in zip(best.values.tolist(), best.indices.tolist(), strict=True):
            token = draft_id if self.head.draft_ids is None else int(self.head.draft_ids[draft_id])
            self.values[(*path, token)] = self.values.get(path, 0.0) + value
        return list(self.values)[-top_k:]

    def kept(self, count: int) -> list[Path]:
        """The best `count` of all, parents before children, siblings by rank."""
        best = sorted(self.values, key=lambda path: (-self.values[path], len(path)))[:count]
        return [path for path in self.values if path in best]


def paths_of(tree: DraftTree) -> list[Path]:
    """Every drafted node as the tokens that lead to it."""
    paths: list[Path] = [()]
    for token, parent in zip(tree.tokens[1:], tree.parents[1:], strict=True):
        paths.append((*paths[parent], token))
    return paths[1:]


@pytest.mark.parametrize(("kind", "draft_vocab"), [("eagle", VOCAB), ("eagle3", VOCAB), ("eagle3", 20)])
@pytest.mark.parametrize(("depth", "top_k", "total"), [(1, 4, 4), (2, 3, 9), (4, 3, 12), (5, 2, 8), (3, 4, 60)])
def test_the_dynamic_tree_equals_a_naive_one(kind: str, draft_vocab: int, depth: int, top_k: int, total: int) -> None:
    for seed in (1, 2):
        conversation = Conversation(head_of(kind, draft_vocab), seed)
        naive = Naive(conversation, depth, top_k)
        tree = DynamicTree(depth, top_k, total).draft(conversation.head, conversation.start())
        expected = naive.kept(total - 1)
        assert sorted(paths_of(tree)) == sorted(expected)
        for path, score in zip(paths_of(tree), tree.scores[1:], strict=True):
            assert math.isclose(score, naive.values[path], rel_tol=1e-4, abs_tol=1e-4)
        assert tree.drawn is not None
        assert Counter(tree.drawn.tokens) == Counter(path[-1] for path in naive.values)


def test_another_position_or_feature_gives_another_tree() -> None:
    """The comparison above would notice a head that is fed one place off."""
    conversation = Conversation(head_of("eagle3"), 1)
    right = conversation.start()
    moved = DraftInput(right.hidden, right.root, right.position + 1, right.cache, right.room)
    policy = DynamicTree(4, 3, 12)
    assert policy.draft(conversation.head, moved).scores != policy.draft(conversation.head, right).scores


@pytest.mark.parametrize("kind", ["eagle", "eagle3"])
def test_the_static_tree_equals_a_naive_one(kind: str) -> None:
    conversation = Conversation(head_of(kind), 4)
    tree = StaticTree(STATIC_PATHS).draft(conversation.head, conversation.start())
    by_ranks: dict[Path, Path] = {(): ()}
    scores: dict[Path, float] = {(): 0.0}
    for ranks in STATIC_PATHS:
        before = by_ranks[ranks[:-1]]
        log_q = conversation.head.logits(conversation.output(before)[None])[0].log_softmax(dim=-1)
        token = int(log_q.sort(descending=True).indices[ranks[-1]])
        by_ranks[ranks] = (*before, token)
        scores[by_ranks[ranks]] = scores[before] + float(log_q[token])
    assert paths_of(tree) == [by_ranks[ranks] for ranks in STATIC_PATHS]
    assert tree.scores[1:] == pytest.approx([scores[path] for path in paths_of(tree)], rel=1e-5, abs=1e-4)
    assert len(tree) == 26


@pytest.mark.parametrize("kind", ["eagle", "eagle3"])
def test_a_chain_is_the_dynamic_tree_with_one_child(kind: str) -> None:
    conversation = Conversation(head_of(kind), 5)
    chain = StaticTree(chain_paths(6), "chain").draft(conversation.head, conversation.start())
    dynamic = DynamicTree(6, 1, 7).draft(conversation.head, conversation.start())
    assert chain == dynamic
    assert chain.parents == list(range(-1, 6))


@pytest.mark.parametrize("kind", ["eagle", "eagle3"])
def test_a_larger_tree_holds_the_smaller_one(kind: str) -> None:
    for seed in range(4):
        conversation = Conversation(head_of(kind), seed)
        smaller: set[Path] = set()
        for total in (2, 5, 9, 17, 28):
            larger = set(paths_of(DynamicTree(4, 3, total).draft(conversation.head, conversation.start())))
            assert smaller < larger
            assert len(larger) == total - 1
            smaller = larger


def test_only_the_draft_vocabulary_is_drafted() -> None:
    head = head_of("eagle3", 20)
    conversation = Conversation(head, 6)
    assert head.draft_ids is not None
    allowed = set(head.draft_ids.tolist())
    assert len(allowed) == 20
    assert allowed != set(range(20))
    tree = DynamicTree(2, 20, 421).draft(head, conversation.start())
    assert set(tree.tokens[1:]) <= allowed
    assert set(tree.tokens[1:21]) == allowed


POLICIES = [StaticTree(STATIC_PATHS), StaticTree(chain_paths(5)), DynamicTree(4, 3, 12), DynamicTree(3, 2, 2)]


@pytest.mark.parametrize("kind", ["eagle", "eagle3"])
@pytest.mark.parametrize("policy", POLICIES, ids=str)
def test_the_heads_cache_is_as_before_the_draft(kind: str, policy: Any) -> None:
    conversation = Conversation(head_of(kind), 7)
    start = conversation.start()
    keys = [layer.keys[:, :, : LENGTH - 1].clone() for layer in start.cache.layers]
    first = policy.draft(conversation.head, start)
    assert start.cache.length == start.cache.filled == LENGTH - 1
    for layer, before in zip(start.cache.layers, keys, strict=True):
        assert torch.equal(layer.keys[:, :, : LENGTH - 1], before)
    assert policy.draft(conversation.head, start) == first


@pytest.mark.parametrize(
    ("depth", "top_k", "total"), [(1, 1, 2), (1, 5, 4), (2, 3, 10), (4, 4, 30), (7, 2, 20), (3, 10, 60)]
)
def test_levels_and_nodes_are_those_asked_for(depth: int, top_k: int, total: int) -> None:
    conversation = Conversation(head_of("eagle3"), 8)
    tree = DynamicTree(depth, top_k, total).draft(conversation.head, conversation.start())
    assert len(tree) == total
    drawn = tree.drawn
    assert drawn is not None
    parents = [-1, *drawn.parents]
    sizes = Counter(masks.depths(parents))
    assert sizes == {0: 1, 1: top_k, **dict.fromkeys(range(2, depth + 1), top_k * top_k)}
    assert all(drawn.ranks[start : start + top_k] == list(range(top_k)) for start in range(0, len(drawn.ranks), top_k))


@pytest.mark.parametrize("paths", [STATIC_PATHS, chain_paths(1), chain_paths(7), ((0,), (1,), (1, 0), (1, 1))])
def test_a_static_tree_has_the_nodes_asked_for(paths: tuple[Path, ...]) -> None:
    conversation = Conversation(head_of("eagle"), 8)
    policy = StaticTree(paths)
    tree = policy.draft(conversation.head, conversation.start())
    assert len(tree) == policy.max_nodes == 1 + len(paths)
    assert Counter(tree.depths()) == Counter([0, *map(len, paths)])


@pytest.mark.parametrize("policy", [StaticTree(STATIC_PATHS), DynamicTree(5, 3, 60)], ids=["static", "dynamic"])
def test_no_path_is_longer_than_the_room_left(policy: Any) -> None:
    conversation = Conversation(head_of("eagle3"), 9)
    full = policy.draft(conversation.head, conversation.start())
    for room in range(1, 5):
        tree = policy.draft(conversation.head, conversation.start(room))
        assert max(tree.depths()) == room
        assert set(paths_of(tree)) >= {path for path in paths_of(full) if len(path) <= room}


def test_without_a_draft_the_tree_is_its_root() -> None:
    conversation = Conversation(head_of("eagle3"), 9)
    assert NoDraft().draft(conversation.head, conversation.start()) == DraftTree.of_root(conversation.tokens[-1])


def test_drawn_nodes_tell_where_they_stand_in_the_tree() -> None:
    conversation = Conversation(head_of("eagle3"), 10)
    tree = DynamicTree(4, 3, 10).draft(conversation.head, conversation.start())
    drawn = tree.drawn
    assert drawn is not None
    slots = [slot for slot in drawn.slots if slot >= 0]
    assert slots == list(range(1, 10))
    kept = [node for node, slot in enumerate(drawn.slots) if slot >= 0]
    assert [drawn.tokens[node] for node in kept] == tree.tokens[1:]
    assert [drawn.values[node] for node in kept] == tree.scores[1:]
    lowest = min(drawn.values[node] for node in kept)
    assert all(value <= lowest for value, slot in zip(drawn.values, drawn.slots, strict=True) if slot < 0)
    for node, parent in enumerate(drawn.parents):
        above = drawn.values[parent - 1] if parent else 0.0
        assert math.isclose(drawn.values[node], above + drawn.log_q[node], abs_tol=1e-5)


class TableHead:
    """A head whose logits depend on the newest token alone."""

    draft_ids = None
    device = torch.device("cpu")

    def __init__(self, table: Tensor) -> None:
        self.table = table

    def drafter(self) -> Drafter:
        return Drafter(self)

    def __call__(self, tokens: Tensor, hidden: Tensor, positions: Tensor, seen: Any, cache: TreeCache) -> Tensor:
        cache.stage(tokens.shape[0])
        return tokens[:, None].float()

    def logits(self, hidden: Tensor) -> Tensor:
        return self.table[hidden[:, 0].long()]

    def target_ids(self, draft_ids: Tensor) -> Tensor:
        return draft_ids

    def start(self) -> DraftInput:
        return DraftInput(torch.zeros(1, 1), 0, 0, TreeCache(0), 99)


def orphans(kept: list[int], parents: list[int]) -> list[int]:
    """Kept drawn nodes (counted from 1) whose parent was not kept."""
    return [node for node in kept if parents[node - 1] != 0 and parents[node - 1] not in kept]


def one_hot(size: int = 8) -> Tensor:
    table = torch.zeros(size, size, dtype=torch.bfloat16)
    table[torch.arange(size), (torch.arange(size) + 1) % size] = 200.0
    return table


def test_ties_are_broken_towards_the_root() -> None:
    head = TableHead(one_hot())
    assert float(head.table[0].float().log_softmax(-1).max()) == 0.0
    tree = DynamicTree(7, 2, 4).draft(head, head.start())  # type: ignore[arg-type]
    assert tree.tokens == [0, 1, 2, 3]
    assert tree.parents == [-1, 0, 1, 2]
    # All seven nodes of the sure path have value 0. Broken towards the leaves, the tie would leave orphans.
    drawn = tree.drawn
    assert drawn is not None
    assert drawn.values.count(0.0) == 7
    order = sorted(range(len(drawn.values)), key=lambda node: (drawn.values[node], node), reverse=True)
    assert orphans([node + 1 for node in order[:3]], drawn.parents)
    assert not orphans([node + 1 for node, slot in enumerate(drawn.slots) if slot > 0], drawn.parents)


def test_no_node_is_kept_without_its_parent() -> None:
    """Over many trees of a head in bfloat16, coarse enough that values tie."""
    generator = torch.Generator().manual_seed(0)
    ties = 0
    for _ in range(1000):
        scale = float(torch.randint(1, 40, (1,), generator=generator))
        head = TableHead((torch.randn(6, 6, generator=generator).round() * scale).bfloat16())
        total = int(torch.randint(2, 16, (1,), generator=generator))
        tree = DynamicTree(4, 2, total).draft(head, head.start())  # type: ignore[arg-type]
        drawn = tree.drawn
        assert drawn is not None
        assert len(tree) == min(total, 15)
        assert not orphans([node + 1 for node, slot in enumerate(drawn.slots) if slot > 0], drawn.parents)
        assert all(parent < node for node, parent in enumerate(tree.parents))
        kept = [value for value, slot in zip(drawn.values, drawn.slots, strict=True) if slot > 0]
        ties += any(value == min(kept) for value, slot in zip(drawn.values, drawn.slots, strict=True) if slot < 0)
    assert ties > 100


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("where", ["one row", "one number", "everywhere"])
def test_a_broken_head_still_gives_a_tree(bad: float, where: str) -> None:
    """The target decides what is accepted, so a head's NaN costs speed and nothing else."""
    table = torch.randn(8, 8, generator=torch.Generator().manual_seed(3))
    best = int(table[0].argmax())
    if where == "everywhere":
        table[:] = bad
    else:
        table[best, slice(None) if where == "one row" else 2] = bad
    head = TableHead(table)
    for policy in (DynamicTree(4, 3, 12), StaticTree(STATIC_PATHS), StaticTree(chain_paths(4))):
        for sampled in (None, SampledChildren(1.0, 5)):
            tree = policy.draft(head, head.start(), sampled)  # type: ignore[arg-type]
            assert len(tree) == policy.max_nodes
            assert all(math.isfinite(score) for score in tree.scores)
            assert all(0 <= token < 8 for token in tree.tokens)
            for proposal in tree.proposals.values():
                assert float(proposal.log_q.exp().sum()) == pytest.approx(1.0, abs=1e-5)


@pytest.mark.parametrize("kind", ["eagle", "eagle3"])
def test_sampled_children_come_with_what_they_were_sampled_from(kind: str) -> None:
    conversation = Conversation(head_of(kind), 11)
    tree = StaticTree(STATIC_PATHS).draft(conversation.head, conversation.start(), SampledChildren(0.7, 3))
    parents = {parent for parent in tree.parents if parent >= 0}
    assert set(tree.proposals) == parents
    paths = [(), *paths_of(tree)]
    for node, children in enumerate(tree.children()):
        assert len({tree.tokens[child] for child in children}) == len(children)  # without replacement
        if children:
            logits = conversation.head.logits(conversation.output(paths[node])[None])[0] / 0.7
            torch.testing.assert_close(tree.proposals[node].log_q, logits.log_softmax(-1), atol=1e-4, rtol=1e-4)
    again = StaticTree(STATIC_PATHS).draft(conversation.head, conversation.start(), SampledChildren(0.7, 4))
    assert again.tokens != tree.tokens


def test_a_fixed_choice_has_no_proposals() -> None:
    conversation = Conversation(head_of("eagle3"), 11)
    for policy in (StaticTree(STATIC_PATHS), DynamicTree(3, 3, 9)):
        assert policy.draft(conversation.head, conversation.start()).proposals == {}
    # The dynamic tree ranks what it drafted: that is a choice even where children are asked to be sampled.
    dynamic = DynamicTree(3, 3, 9)
    assert dynamic.draft(conversation.head, conversation.start(), SampledChildren(1.0, 1)).proposals == {}
