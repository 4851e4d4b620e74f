from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from eagle_chat.core import sampling, verification
from eagle_chat.core.config import SamplingConfig
from eagle_chat.core.tree import DraftTree, Proposal
from eagle_chat.core.verification import UnusableLogitsError, verify
from tests.laws import FAILS, FITS, p_value
from tests.markov import (
    AFTER,
    DRAWS,
    FEW,
    LOGITS,
    ONE,
    SIZE,
    TWO,
    answers,
    best_children,
    deterministic,
    emitted,
    firsts,
    sampled_tree,
)


@pytest.mark.parametrize("rule", ["coupled", "rejection"])
@torch.inference_mode()
def test_tokens_and_pairs_follow_the_targets_law(rule: str) -> None:
    """With the target's best children as the draft, a choice that nobody drew."""
    drawn = list(answers(rule, deterministic, DRAWS, 2))
    assert p_value([first for first, _ in drawn], ONE) > FITS
    assert p_value(drawn, TWO) > FITS
    assert len(set(drawn[:20])) > 1


@torch.inference_mode()
def test_a_residual_that_forgets_the_refusal_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verification, "_after_refusal", lambda p, q, token: (p, q))
    assert p_value(firsts("rejection", deterministic, FEW), ONE) < FAILS


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


def test_a_greedy_choice_in_place_of_the_draw_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampling, "draw", lambda row, position, config, noise=None: int(row.argmax()))
    assert p_value(firsts("coupled", deterministic, 2000), ONE) < FAILS


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


@settings(max_examples=60)
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


@pytest.mark.parametrize("broken", [False, True])
@pytest.mark.parametrize(
    "config",
    [
        SamplingConfig(),
        SamplingConfig(1.0, seed=5, top_k=4, verify="coupled"),
        SamplingConfig(0.7, seed=6, top_p=0.9, verify="coupled"),
        SamplingConfig(1.0, seed=7, verify="rejection"),
    ],
)
def test_rows_looked_at_all_at_once_say_the_same(
    monkeypatch: pytest.MonkeyPatch, config: SamplingConfig, broken: bool
) -> None:
    """As on a device where every look is a wait."""
    accepted = 0
    for seed in range(60):
        tree = random_tree(seed)
        logits = LOGITS[tree.tokens].clone()
        if broken:
            logits[2 + seed % 8, 1] = math.nan
        one_by_one = verify(tree, logits, 9 + seed, config)
        with monkeypatch.context() as patch:
            patch.setattr(verification, "runs_apart", lambda device: True)
            assert verify(tree, logits, 9 + seed, config) == one_by_one
        accepted += len(one_by_one.path) - 1
    assert accepted > 10


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
    for seed in range(500):
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
    for seed in range(15):
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
    with pytest.raises(UnusableLogitsError, match=r"position 31 hold NaN or infinity.*--dtype"):
        verify(tree, logits, 31, SamplingConfig(temperature, verify=rule))
