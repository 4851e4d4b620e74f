"""A target of eight tokens whose law depends on the newest one alone, drafts for it, and answers drawn from both."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from eagle_chat.core.cache import TreeCache
from eagle_chat.core.children import SampledChildren
from eagle_chat.core.config import SamplingConfig
from eagle_chat.core.drafting import StaticTree
from eagle_chat.core.growth import DraftInput
from eagle_chat.core.heads.drafter import Drafter
from eagle_chat.core.tree import DraftTree
from eagle_chat.core.verification import Acceptance, verify

SIZE = 8
LAW = [0.4, 0.3, 0.2, 0.06, 0.04, 0.0, 0.0, 0.0]
AFTER = torch.tensor([[LAW[(token + 3 * before) % SIZE] for token in range(SIZE)] for before in range(SIZE)]).double()
"""The target: row b is its law after token b, the numbers of LAW turned by three places for each."""
LOGITS = AFTER.log()
ONE = {token: float(AFTER[0, token]) for token in range(SIZE)}
TWO = {(a, b): float(AFTER[0, a] * AFTER[a, b]) for a in range(SIZE) for b in range(SIZE)}
"""The law of the next token, and of the next two, after token 0."""
DRAWS = 20_000
FEWER = 5_000
"""For pairs of sampled children, whose trees are drafted anew for each draw."""
FEW = 1_500
"""For wrong variants, which fail soon enough, and for small changes of a law tested at length."""
FIRST_LEVEL = ((0,), (1,), (2,))
PATHS = ((0,), (1,), (2,), (0, 0), (0, 1), (1, 0))

TreeOf = Callable[[int, int, int], DraftTree]
"""A draft for (seed, root, position)."""


@functools.cache
def best_children(root: int, levels: int = 2) -> DraftTree:
    """The three best children, and the two best of the first of them: what a deterministic policy drafts."""
    first = AFTER[root].topk(3).indices.tolist()
    second = AFTER[first[0]].topk(2).indices.tolist() if levels == 2 else []
    tokens = [root, *first, *second]
    return DraftTree(tokens, [-1, 0, 0, 0, 1, 1][: len(tokens)], [0.0] * len(tokens))


def deterministic(seed: int, root: int, position: int) -> DraftTree:
    return best_children(root)


class MarkovHead:
    """A head whose prediction depends on the newest token alone. It can draft six of the eight tokens."""

    draft_ids = torch.tensor([6, 0, 3, 1, 2, 5])
    device = draft_ids.device

    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(2)
        self.table = torch.randn(SIZE, 6, generator=generator) * 1.5

    def __call__(self, tokens: Tensor, hidden: Tensor, positions: Tensor, seen: Any, cache: TreeCache) -> Tensor:
        cache.stage(tokens.shape[0])
        return tokens[:, None]

    def drafter(self) -> Drafter:
        return Drafter(self)

    def logits(self, hidden: Tensor) -> Tensor:
        return self.table[hidden[:, 0]]

    def target_ids(self, draft_ids: Tensor) -> Tensor:
        return self.draft_ids[draft_ids]


HEAD = MarkovHead()


def sampled_tree(
    seed: int, root: int, position: int, paths: Any = PATHS, head: MarkovHead = HEAD, temperature: float = 1.0
) -> DraftTree:
    """Children sampled from the head without replacement, by the code that the engine uses."""
    start = DraftInput(torch.tensor([[root]]), root, position, TreeCache(0), room=9)
    return StaticTree(paths).draft(head, start, SampledChildren(temperature, seed))  # type: ignore[arg-type]


def sampled_children(seed: int, root: int, position: int) -> DraftTree:
    """The same with one level."""
    return sampled_tree(seed, root, position, FIRST_LEVEL)


def emitted(tree: DraftTree, acceptance: Acceptance) -> list[int]:
    return [*(tree.tokens[slot] for slot in acceptance.path[1:]), acceptance.bonus]


def answers(rule: str, tree_of: TreeOf, draws: int = DRAWS, length: int = 2) -> Iterator[tuple[int, ...]]:
    """`length` tokens after token 0, drawn anew for each seed, in as many cycles as that takes."""
    for seed in range(draws):
        config = SamplingConfig(1.0, verify=rule, seed=seed)  # type: ignore[arg-type]
        tokens = [0]
        while len(tokens) <= length:
            tree = tree_of(seed, tokens[-1], len(tokens) - 1)
            tokens += emitted(tree, verify(tree, LOGITS[tree.tokens], len(tokens) - 1, config))
        yield tuple(tokens[1 : 1 + length])


def firsts(rule: str, tree_of: TreeOf, draws: int) -> list[int]:
    """The first token alone."""
    return [answer[0] for answer in answers(rule, tree_of, draws, 1)]
