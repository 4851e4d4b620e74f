"""Speculative sampling over children that were sampled from the head, drafted by the code that the engine uses."""

from __future__ import annotations

import pytest
import torch

from eagle_chat.core import verification
from eagle_chat.core.config import SamplingConfig
from eagle_chat.core.tree import DraftTree
from eagle_chat.core.verification import verify
from tests.laws import FAILS, FITS, p_value
from tests.markov import (
    DRAWS,
    FEW,
    FEWER,
    FIRST_LEVEL,
    HEAD,
    LOGITS,
    ONE,
    SIZE,
    TWO,
    MarkovHead,
    TreeOf,
    answers,
    emitted,
    firsts,
    sampled_children,
    sampled_tree,
)

# As many draws as for the other rules take half a minute, because each needs a draft of its own.
AT_LENGTH = pytest.param(DRAWS, marks=pytest.mark.slow)


@pytest.mark.parametrize("draws", [FEWER, AT_LENGTH])
@torch.inference_mode()
def test_tokens_follow_the_targets_law(draws: int) -> None:
    assert p_value(firsts("rejection", sampled_children, draws), ONE) > FITS


@pytest.mark.parametrize("draws", [FEWER, AT_LENGTH])
@torch.inference_mode()
def test_pairs_follow_the_targets_law(draws: int) -> None:
    drawn = list(answers("rejection", sampled_tree, draws, 2))
    assert p_value(drawn, TWO) > FITS
    assert len(set(drawn[:20])) > 1


@torch.inference_mode()
def test_a_residual_that_forgets_the_refusal_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verification, "_after_refusal", lambda p, q, token: (p, q))
    assert p_value(firsts("rejection", sampled_children, FEW), ONE) < FAILS


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
