"""How children are chosen, above all with the noise that the target draws with."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch

from eagle_chat.core import sampling
from eagle_chat.core.cache import TreeCache
from eagle_chat.core.calibration import Calibration
from eagle_chat.core.children import CHANCE, LEAST_LOG_Q, BestChildren, ChildRule, SharedNoise
from eagle_chat.core.config import SamplingConfig
from eagle_chat.core.drafting import DynamicTree, StaticTree
from eagle_chat.core.growth import DraftInput
from eagle_chat.core.noise import TargetNoise
from eagle_chat.core.tree import DraftTree, chain_paths
from eagle_chat.core.verification import verify
from tests.laws import FAILS, FITS, p_value
from tests.markov import DRAWS, FEW, HEAD, LOGITS, ONE, SIZE, TWO, MarkovHead, answers, firsts

TREE = DynamicTree(depth=2, top_k=2, total_tokens=5)
CHAIN = StaticTree(chain_paths(3), "chain")


class KnowingHead(MarkovHead):
    """A head that predicts the target's own law, over a draft vocabulary in another order."""

    draft_ids = torch.tensor([6, 0, 3, 1, 7, 2, 5, 4])

    def __init__(self) -> None:
        self.table = LOGITS[:, self.draft_ids].float()


def rule(seed: int, config: SamplingConfig | None = None) -> SharedNoise:
    config = config or SamplingConfig(1.0, seed=seed)
    return SharedNoise(config, TargetNoise(seed, SIZE, torch.device("cpu")), Calibration())


def draft(policy: StaticTree | DynamicTree, head: MarkovHead, by: ChildRule, root: int, position: int) -> DraftTree:
    start = DraftInput(torch.tensor([[root]]), root, position, TreeCache(0), room=9)
    return policy.draft(head, start, by)  # type: ignore[arg-type]


def shared(policy: StaticTree | DynamicTree, head: MarkovHead) -> Callable[[int, int, int], DraftTree]:
    return lambda seed, root, position: draft(policy, head, rule(seed), root, position)


def accepted(tree_of: Callable[[int, int, int], DraftTree], draws: int) -> int:
    """Drafted tokens accepted in as many first cycles."""
    count = 0
    for seed in range(draws):
        tree = tree_of(seed, seed % SIZE, seed)
        config = SamplingConfig(1.0, seed=seed)
        count += len(verify(tree, LOGITS[tree.tokens], seed, config).path) - 1
    return count


@torch.inference_mode()
def test_a_head_that_knows_the_law_drafts_the_very_tokens() -> None:
    """Noise of another position, or of another token, would miss most of them."""
    assert accepted(shared(CHAIN, KnowingHead()), 50) == 150

    def one_place_off(seed: int, root: int, position: int) -> DraftTree:
        start = DraftInput(torch.tensor([[root]]), root, position + 1, TreeCache(0), room=9)
        return CHAIN.draft(KnowingHead(), start, rule(seed))  # type: ignore[arg-type]

    assert accepted(one_place_off, 50) < 75
    assert accepted(lambda seed, root, position: draft(CHAIN, KnowingHead(), rule(seed + 1), root, position), 50) < 75


@torch.inference_mode()
def test_more_is_accepted_than_of_the_best_children() -> None:
    def best(seed: int, root: int, position: int) -> DraftTree:
        return draft(CHAIN, KnowingHead(), BestChildren(), root, position)

    assert accepted(best, 50) < 100 < accepted(shared(CHAIN, KnowingHead()), 50)


@pytest.mark.parametrize("policy", [TREE, CHAIN], ids=["tree", "chain"])
@torch.inference_mode()
def test_tokens_follow_the_targets_law(policy: StaticTree | DynamicTree) -> None:
    drawn = firsts("coupled", shared(policy, HEAD), FEW)
    assert p_value(drawn, ONE) > FITS
    assert len(set(drawn[:20])) > 1


@pytest.mark.slow  # every draw needs a draft of its own
@pytest.mark.parametrize("policy", [TREE, CHAIN], ids=["tree", "chain"])
@torch.inference_mode()
def test_pairs_follow_the_targets_law(policy: StaticTree | DynamicTree) -> None:
    assert p_value(answers("coupled", shared(policy, HEAD), DRAWS, 2), TWO) > FITS


@torch.inference_mode()
def test_the_drafts_own_choice_would_not_follow_it() -> None:
    """What the draft ranks first is a draw from the head's law: the test above would notice it in the text."""
    chosen = [draft(CHAIN, HEAD, rule(seed), 0, 0).tokens[1] for seed in range(FEW)]
    assert p_value(chosen, ONE) < FAILS


@torch.inference_mode()
def test_every_draft_gives_the_same_tokens() -> None:
    def plain(seed: int, root: int, position: int) -> DraftTree:
        return DraftTree.of_root(root)

    expected = firsts("coupled", plain, 200)
    assert firsts("coupled", shared(TREE, HEAD), 200) == expected
    assert firsts("coupled", shared(CHAIN, KnowingHead()), 200) == expected


@pytest.mark.parametrize("draft_ids", [None, torch.randperm(97)[:40]], ids=["all", "some"])
@torch.inference_mode()
def test_ranks_and_chances_are_those_of_the_noisy_scores(draft_ids: torch.Tensor | None) -> None:
    config = SamplingConfig(0.8, seed=3)
    size = 97 if draft_ids is None else 40
    logits = torch.randn(2, size, generator=torch.Generator().manual_seed(1))
    noise = TargetNoise(3, 97, torch.device("cpu"))
    children = SharedNoise(config, noise, Calibration()).choose(logits, 5, 11, draft_ids)
    log_q = (logits.double() / 0.8).log_softmax(-1)
    scores = log_q + (noise(11) if draft_ids is None else noise(11)[draft_ids])
    order = scores.argsort(dim=-1, descending=True)[:, :5]
    assert torch.equal(children.ids, order)
    torch.testing.assert_close(children.log_q.double(), log_q.gather(1, order), atol=1e-5, rtol=1e-5)
    lead = scores.gather(1, order) - scores.logsumexp(-1, keepdim=True)
    start, by_lead, by_q = CHANCE
    expected = start + by_lead * lead + by_q * children.log_q.double().clamp(min=LEAST_LOG_Q)
    torch.testing.assert_close(children.chances.double(), expected, atol=1e-4, rtol=1e-4)
    assert start <= 0
    assert min(by_lead, by_q) > 0  # so a chance is below 1, and grows with the lead and with q


@torch.inference_mode()
def test_what_the_warpers_exclude_comes_last() -> None:
    config = SamplingConfig(1.0, top_k=2, seed=0)
    logits = torch.tensor([[3.0, 2.9, 2.8, 2.7]])
    for seed in range(20):
        by = SharedNoise(config, TargetNoise(seed, 4, torch.device("cpu")), Calibration())
        children = by.choose(logits, 4, 5, None)
        assert set(children.ids[0, :2].tolist()) == {0, 1}
        assert bool(torch.isfinite(children.chances).all())


@torch.inference_mode()
def test_a_broken_head_still_gives_children() -> None:
    logits = torch.full((1, SIZE), math.nan)
    children = rule(0).choose(logits, 3, 0, None)
    assert len(set(children.ids[0].tolist())) == 3
    assert bool(torch.isfinite(children.chances).all())


@torch.inference_mode()
def test_best_children_are_worth_what_the_head_says() -> None:
    logits = torch.randn(3, 20, generator=torch.Generator().manual_seed(2))
    children = BestChildren().choose(logits, 4, 0, None)
    best = logits.log_softmax(-1).topk(4)
    assert torch.equal(children.ids, best.indices)
    torch.testing.assert_close(children.log_q, best.values)
    assert children.chances is children.log_q
    assert children.law is None


def test_sampling_noise_given_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    row, config = torch.zeros(SIZE), SamplingConfig(1.0, seed=4)
    favoured = torch.zeros(SIZE)
    favoured[3] = 50.0
    assert sampling.draw(row, 9, config, lambda position: favoured) == 3
    known = TargetNoise(4, SIZE, torch.device("cpu"))
    assert sampling.draw(row, 9, config, known) == sampling.draw(row, 9, config)
