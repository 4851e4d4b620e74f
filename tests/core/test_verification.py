from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from eagle_chat.core import sampling, verification
from eagle_chat.core.cache import TreeCache
from eagle_chat.core.config import SamplingConfig
from eagle_chat.core.drafting import DraftInput, SampledChildren, StaticTree
from eagle_chat.core.tree import DraftTree, Proposal
from eagle_chat.core.verification import Acceptance, UnusableLogitsError, verify
from tests.laws import FAILS, FITS, p_value

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
"""For pairs of sampled children, which cost ten times as much."""
FEW = 2_000
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

    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(2)
        self.table = torch.randn(SIZE, 6, generator=generator) * 1.5

    def __call__(self, tokens: Tensor, hidden: Tensor, positions: Tensor, seen: Any, cache: TreeCache) -> Tensor:
        cache.stage(tokens.shape[0])
        return tokens[:, None]

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


KINDS: dict[str, tuple[str, TreeOf, int, int]] = {
    "coupled": ("coupled", deterministic, DRAWS, 2),
    "rejection, a fixed choice": ("rejection", deterministic, DRAWS, 2),
    "rejection, sampled children": ("rejection", sampled_children, DRAWS, 1),
    "rejection, sampled tree": ("rejection", sampled_tree, FEWER, 2),
}


@pytest.mark.parametrize("kind", KINDS)
@torch.inference_mode()
def test_drawn_tokens_follow_the_targets_law(kind: str) -> None:
    drawn = list(answers(*KINDS[kind]))
    assert p_value([answer[0] for answer in drawn], ONE) > FITS
    if len(drawn[0]) == 2:
        assert p_value(drawn, TWO) > FITS
    assert len(set(drawn[:20])) > 1


@pytest.mark.parametrize("tree_of", [deterministic, sampled_children])
@torch.inference_mode()
def test_a_residual_that_forgets_the_refusal_fails(tree_of: TreeOf, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verification, "_after_refusal", lambda p, q, token: (p, q))
    assert p_value(firsts("rejection", tree_of, FEW), ONE) < FAILS


def firsts(rule: str, tree_of: TreeOf, draws: int) -> list[int]:
    return [answer[0] for answer in answers(rule, tree_of, draws, 1)]


def with_proposals(seed: int, root: int, position: int) -> DraftTree:
    """The deterministic choice, claimed to have been sampled from a q (the mistake to be noticed)."""
    tree = best_children(root)
    q = torch.tensor([0.5, 0.3, 0.2, *[1e-6] * 5]).log()
    order = AFTER.sort(dim=1, descending=True).indices
    return DraftTree(
        tree.tokens, tree.parents, tree.scores, {slot: Proposal(q, order[tree.tokens[slot]]) for slot in (0, 1)}
    )


def test_the_heads_q_for_a_deterministic_choice_fails() -> None:
    assert p_value(firsts("rejection", with_proposals, FEW), ONE) < FAILS


def without_proposals(seed: int, root: int, position: int) -> DraftTree:
    """Sampled children judged as if they were a fixed list."""
    tree = sampled_children(seed, root, position)
    return DraftTree(tree.tokens, tree.parents, tree.scores)


@torch.inference_mode()
def test_a_point_mass_for_sampled_children_keeps_the_law_but_accepts_less() -> None:
    """A point mass is right for any list drawn apart from the target's noise; it only wastes."""
    assert p_value(firsts("rejection", without_proposals, FEW), ONE) > FITS

    def accepted(tree_of: TreeOf) -> int:
        trees = [(seed, tree_of(seed, 0, 0)) for seed in range(500)]
        return sum(
            len(verify(tree, LOGITS[tree.tokens], 0, SamplingConfig(1.0, verify="rejection", seed=seed)).path) - 1
            for seed, tree in trees
        )

    assert accepted(without_proposals) < accepted(sampled_children)


def test_a_greedy_choice_in_place_of_the_draw_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampling, "draw", lambda row, position, config: int(row.argmax()))
    assert p_value(firsts("coupled", deterministic, 2000), ONE) < FAILS


def test_sampled_children_follow_the_law_without_replacement() -> None:
    q = dict(zip(HEAD.draft_ids.tolist(), HEAD.table[0].double().softmax(-1).tolist(), strict=True))
    law = {(a, b): q[a] * q[b] / (1 - q[a]) for a in q for b in q if a != b}
    frequent = {pair: chance for pair, chance in law.items() if chance > 2e-3}
    drawn = [tuple(sampled_children(seed, 0, 5).tokens[1:3]) for seed in range(FEW)]
    rest = "another pair"
    named = [pair if pair in frequent else rest for pair in drawn]
    assert all(pair in law for pair in drawn)
    assert p_value(named, {**frequent, rest: 1 - sum(frequent.values())}) > FITS


@pytest.mark.parametrize("temperature", [0.5, 2.0])
@torch.inference_mode()
def test_sampled_children_at_another_temperature_keep_the_law(temperature: float) -> None:
    law = dict(enumerate((LOGITS[0] / temperature).softmax(dim=-1).tolist()))
    drawn = []
    for seed in range(FEW):
        tree = sampled_tree(seed, 0, 3, FIRST_LEVEL, temperature=temperature)
        config = SamplingConfig(temperature, verify="rejection", seed=seed)
        drawn.append(emitted(tree, verify(tree, LOGITS[tree.tokens], 3, config))[0])
    assert p_value(drawn, law) > FITS


@torch.inference_mode()
def test_a_head_too_sure_of_itself_keeps_the_law() -> None:
    """Beside its first child, q is below the smallest float64: after a refusal that child must not count as nothing."""
    sure = MarkovHead()
    sure.table = torch.zeros(SIZE, 6)
    sure.table[:, :4] = torch.tensor([4000.0, 2000.0, 1000.0, 0.0])
    drawn = []
    for seed in range(FEW):
        tree = sampled_tree(seed, 0, 3, FIRST_LEVEL, sure)
        assert tree.tokens == [0, 6, 0, 3]
        drawn.append(
            emitted(tree, verify(tree, LOGITS[tree.tokens], 3, SamplingConfig(1.0, verify="rejection", seed=seed)))[0]
        )
    assert p_value(drawn, ONE) > FITS


def random_tree(seed: int, size: int = 12) -> DraftTree:
    generator = torch.Generator().manual_seed(seed)
    parents = [-1, *(int(torch.randint(node, (1,), generator=generator)) for node in range(1, size))]
    tokens, used = [0], {}
    for parent in parents[1:]:
        taken = used.setdefault(parent, set())
        free = [token for token in range(SIZE) if token not in taken]
        token = free[int(torch.randint(len(free), (1,), generator=generator))]
        taken.add(token)
        tokens.append(token)
    return DraftTree(tokens, parents, [0.0] * size)


@settings(deadline=None, max_examples=60)
@given(st.integers(0, 10_000), st.integers(0, 10_000), st.sampled_from([0.0, 0.7, 1.0, 1.6]))
def test_coupled_text_does_not_depend_on_the_tree(tree_seed: int, seed: int, temperature: float) -> None:
    config = SamplingConfig(temperature, seed=seed)

    def text(tree_of: Callable[[int, int], DraftTree]) -> list[int]:
        tokens = [0]
        while len(tokens) <= 12:
            tree = tree_of(tokens[-1], len(tokens) - 1)
            tokens += emitted(tree, verify(tree, LOGITS[tree.tokens], len(tokens) - 1, config))
        return tokens[:12]

    def drafted(root: int, position: int) -> DraftTree:
        tree = random_tree(tree_seed + position)
        return DraftTree([root, *tree.tokens[1:]], tree.parents, tree.scores)

    plain = text(lambda root, _: DraftTree.of_root(root))
    assert text(drafted) == plain
    assert text(lambda root, _: best_children(root)) == plain


def test_greedy_descends_while_a_child_is_the_argmax() -> None:
    best = AFTER.argmax(dim=1).tolist()
    a = best[0]
    b = best[a]
    c = best[b]
    tree = DraftTree([0, (a + 1) % SIZE, a, b, (b + 1) % SIZE, c], [-1, 0, 0, 2, 2, 3], [0.0] * 6)
    for rule in ("coupled", "rejection"):
        found = verify(tree, LOGITS[tree.tokens], 4, SamplingConfig(0.0, verify=rule))  # type: ignore[arg-type]
        assert found.path == [0, 2, 3, 5]
        assert found.bonus == best[c]
        assert found.choices == {0: a, 2: b, 3: c, 5: best[c]}
        assert found.levels(tree.children()) == [True, True, True]
    cut = DraftTree([0, (a + 1) % SIZE, (a + 2) % SIZE], [-1, 0, 0], [0.0] * 3)
    found = verify(cut, LOGITS[cut.tokens], 4, SamplingConfig(0.0))
    assert (found.path, found.bonus, found.levels(cut.children())) == ([0], a, [False])


def test_a_rejected_child_is_never_drawn_afterwards() -> None:
    """What was refused as a point mass has no chance left, and the next sibling is tried against the rest."""
    tree = best_children(0, 1)
    for seed in range(2000):
        config = SamplingConfig(1.0, verify="rejection", seed=seed)
        found = verify(tree, LOGITS[tree.tokens], 0, config)
        if found.path == [0]:
            assert found.bonus not in tree.tokens[1:]
            assert set(found.uniforms) == {1, 2, 3}


BROKEN = [math.nan, math.inf]


@pytest.mark.parametrize("bad", BROKEN)
@pytest.mark.parametrize("whole_row", [True, False])
@pytest.mark.parametrize(
    "config",
    [
        SamplingConfig(0.0),
        SamplingConfig(1.0, seed=5),
        SamplingConfig(0.8, top_p=0.9, verify="rejection", seed=5),
    ],
)
def test_a_node_with_broken_logits_is_never_accepted(bad: float, whole_row: bool, config: SamplingConfig) -> None:
    for seed in range(60):
        each = SamplingConfig(config.temperature, config.top_p, verify=config.verify, seed=seed)
        for tree in (best_children(0), sampled_tree(seed, 0, 0)):
            for broken in range(1, len(tree)):
                logits = LOGITS[tree.tokens].clone()
                logits[broken, slice(None) if whole_row else 2] = bad
                found = verify(tree, logits, 0, each)
                assert broken not in found.path
                # The token before the broken row is still the target's own, so the answer goes on as without it.
                whole = verify(tree, LOGITS[tree.tokens], 0, each)
                if broken in whole.path:
                    at = whole.path.index(broken)
                    assert found.path == whole.path[:at]
                    assert found.bonus == tree.tokens[broken]
                else:
                    assert (found.path, found.bonus) == (whole.path, whole.bonus)


@pytest.mark.parametrize("row", [[math.nan] * SIZE, [0.0, math.inf, *[0.0] * 6], [-math.inf] * SIZE])
@pytest.mark.parametrize("rule", ["coupled", "rejection"])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_broken_logits_at_the_root_are_an_error_with_a_remedy(row: list[float], rule: Any, temperature: float) -> None:
    tree = best_children(0)
    logits = LOGITS[tree.tokens].clone()
    logits[0] = torch.tensor(row)
    with pytest.raises(UnusableLogitsError, match="position 31 hold NaN or infinity.*--dtype"):
        verify(tree, logits, 31, SamplingConfig(temperature, verify=rule))
