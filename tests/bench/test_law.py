from __future__ import annotations

from typing import Any

import pytest
import torch
from scipy import stats

from eagle_chat.bench.law import ALARM, LawTest
from tests.laws import FAILS, FITS

VOCABULARY = 60


def laws(count: int, seed: int) -> torch.Tensor:
    """Distributions of very different shapes, [count, VOCABULARY]."""
    generator = torch.Generator().manual_seed(seed)
    sharpness = torch.rand(count, 1, generator=generator) * 6
    logits: torch.Tensor = torch.randn(count, VOCABULARY, generator=generator) * sharpness
    return logits.softmax(dim=-1)


def of_draws(count: int, seed: int, bend: Any = lambda law: law, exact: bool = True) -> dict[str, Any]:
    """Draw from `bend(law)` and hold it against the law."""
    test, generator = LawTest(exact), torch.Generator().manual_seed(seed + 1)
    for law in laws(count, seed):
        test.add(law, int(torch.multinomial(bend(law), 1, generator=generator)))
    return test.result()


def test_right_draws_fit_and_p_values_are_spread_evenly() -> None:
    values = [of_draws(100, seed)["p_value"] for seed in range(0, 100, 2)]
    assert min(values) > ALARM
    assert stats.kstest(values, "uniform").pvalue > FITS


def test_a_law_bent_by_a_little_is_found() -> None:
    def sharper(law: torch.Tensor) -> torch.Tensor:
        return law**1.3

    result = of_draws(1500, 5, sharper)
    assert result["verdict"] == "fault"
    assert result["p_value"] < FAILS
    assert result["draws"] == 1500
    assert result["groups"][0]["observed"] > result["groups"][0]["expected"]
    assert of_draws(1500, 5)["verdict"] == "fits"


def test_numbers_agree_with_the_textbook_where_all_laws_are_one() -> None:
    law = torch.tensor([0.5, 0.3, 0.2])
    test = LawTest(exact=True)
    for token, count in enumerate((40, 35, 25)):
        for _ in range(count):
            test.add(law, token)
    result = test.result()
    # Ranks 1 and 2 are groups of their own, rank 3 is the group "3-4".
    assert [(group["ranks"], group["observed"]) for group in result["groups"]] == [("1", 40), ("2", 35), ("3+", 25)]
    expected = stats.chisquare([40, 35, 25], [50, 30, 20])
    assert result["statistic"] == pytest.approx(expected.statistic)
    assert result["p_value"] == pytest.approx(expected.pvalue)
    assert result["degrees"] == 2


def test_rare_groups_are_joined_and_too_few_draws_are_no_test() -> None:
    law = torch.tensor([0.96, 0.02, 0.01, 0.01])
    test = LawTest(exact=True)
    for _ in range(20):
        test.add(law, 0)
    assert test.result()["p_value"] is None
    assert test.result()["verdict"] == "too few draws"
    assert LawTest(exact=True).result()["verdict"] == "too few draws"


def test_an_excluded_token_is_a_fault_in_float32_and_a_stray_one_is_not_elsewhere() -> None:
    law = torch.tensor([0.5, 0.5, 0.0])
    for exact, verdict in ((True, "fault"), (False, "fits")):
        test = LawTest(exact)
        for index in range(300):
            test.add(law, index % 2)
        test.add(law, 2)
        assert test.result()["verdict"] == verdict
        assert test.result()["impossible"] == 1
