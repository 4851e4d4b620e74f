from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from torch import Tensor
from transformers import MinPLogitsWarper, TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

from eagle_chat.core import sampling
from eagle_chat.core.config import SamplingConfig
from eagle_chat.core.sampling import Stream, draw, gumbel, is_usable, uniform, warp
from tests.laws import FAILS, FITS, p_value

LAW = [0.4, 0.3, 0.2, 0.06, 0.04, 0.0, 0.0, 0.0]
ROW = torch.tensor(LAW).log()


@st.composite
def configs(draw: st.DrawFn) -> SamplingConfig:
    return SamplingConfig(
        temperature=draw(st.sampled_from([0.1, 0.7, 1.0, 1.3, 5.0])),
        top_k=draw(st.sampled_from([0, 1, 2, 5, 16, 500])),
        top_p=draw(st.sampled_from([1.0, 0.95, 0.5, 0.1, 1e-6])),
        min_p=draw(st.sampled_from([0.0, 0.01, 0.2, 0.9])),
    )


def by_transformers(logits: Tensor, config: SamplingConfig) -> Tensor:
    """The library's warpers in the order of its `generate`."""
    ids = torch.zeros(logits.shape[0], 1, dtype=torch.int64)
    scores = TemperatureLogitsWarper(config.temperature)(ids, logits)
    if config.top_k:
        scores = TopKLogitsWarper(config.top_k)(ids, scores)
    if config.top_p < 1:
        scores = TopPLogitsWarper(config.top_p)(ids, scores)
    if config.min_p > 0:
        scores = MinPLogitsWarper(config.min_p)(ids, scores)
    return scores


@settings(max_examples=300)
@given(configs(), st.integers(0, 10_000), st.booleans())
def test_warping_is_that_of_transformers(config: SamplingConfig, seed: int, ties: bool) -> None:
    logits = torch.randn(3, 40, generator=torch.Generator().manual_seed(seed)) * 3
    if ties:
        logits = logits.round()
    assert torch.equal(warp(logits, config), by_transformers(logits, config))


def test_the_order_of_the_warpers_matters_and_is_kept() -> None:
    # Of .4 .3 .2 .1, top-k 3 leaves .444 .333 .222; top-p .75 then keeps two, and min-p .7 both of them (.75 of the
    # best). Top-p on the full row would need three tokens.
    logits = torch.tensor([[0.4, 0.3, 0.2, 0.1]]).log()
    config = SamplingConfig(temperature=1.0, top_k=3, top_p=0.75, min_p=0.7)
    assert torch.isfinite(warp(logits, config)).tolist() == [[True, True, False, False]]
    swapped = warp(warp(logits, SamplingConfig(1.0, top_p=0.75)), SamplingConfig(1.0, top_k=3))
    assert torch.isfinite(swapped).tolist() == [[True, True, True, False]]


@given(st.integers(0, 10_000))
def test_each_row_is_warped_by_itself(seed: int) -> None:
    logits = torch.randn(5, 30, generator=torch.Generator().manual_seed(seed))
    config = SamplingConfig(temperature=0.8, top_k=9, top_p=0.9, min_p=0.05)
    together = warp(logits, config)
    assert all(torch.equal(warp(row, config), together[index]) for index, row in enumerate(logits))


def test_warping_half_precision_happens_in_float32() -> None:
    logits = torch.randn(2, 50, generator=torch.Generator().manual_seed(1)).bfloat16()
    config = SamplingConfig(temperature=0.7, top_p=0.8)
    assert torch.equal(warp(logits, config), by_transformers(logits.float(), config))


def splitmix64(state: int) -> int:
    """One output of the published generator, in Python's own integers."""
    z = (state + 0x9E3779B97F4A7C15) % 2**64
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB % 2**64
    return z ^ (z >> 31)


def test_the_hash_is_splitmix64() -> None:
    # The first outputs of the published generator for seed 1234567.
    state, outputs = 1234567, []
    for _ in range(3):
        outputs.append(splitmix64(state))
        state = (state + 0x9E3779B97F4A7C15) % 2**64
    assert outputs == [6457827717110365317, 3203168211198807973, 9817491932198370423]


@given(st.integers(-(2**63), 2**63 - 1), st.sampled_from(Stream), st.integers(0, 10**6))
def test_the_noise_is_that_of_the_hash_in_plain_integers(seed: int, stream: Stream, position: int) -> None:
    key = splitmix64(seed % 2**64)
    for part in (stream, position, 0):
        key = splitmix64((key + part * 0x9E3779B97F4A7C15) % 2**64)
    words = [splitmix64((key + index * 0x9E3779B97F4A7C15) % 2**64) for index in range(40)]
    expected = [-math.log(-math.log(((word >> 11) + 0.5) / 2**53)) for word in words]
    np.testing.assert_allclose(gumbel(seed, stream, position, 40).numpy(), expected, rtol=1e-12)
    number = ((splitmix_of(seed, stream, position, 7) >> 11) + 0.5) / 2**53
    assert uniform(seed, stream, position, 7) == number


def splitmix_of(seed: int, stream: Stream, position: int, index: int) -> int:
    key = splitmix64(seed % 2**64)
    for part in (stream, position, index):
        key = splitmix64((key + part * 0x9E3779B97F4A7C15) % 2**64)
    return key


def test_noise_follows_the_gumbel_law() -> None:
    inside_a_row = gumbel(0, Stream.TARGET, 5, 50_000).numpy()
    over_positions = np.array([gumbel(0, Stream.TARGET, at, 4)[3] for at in range(4000)])
    over_seeds = np.array([gumbel(seed, Stream.TARGET, 5, 4)[0] for seed in range(4000)])
    for numbers in (inside_a_row, over_positions, over_seeds):
        assert stats.kstest(numbers, "gumbel_r").pvalue > FITS
        assert stats.kstest(-numbers, "gumbel_r").pvalue < FAILS


def test_uniform_numbers_are_uniform() -> None:
    for numbers in (
        [uniform(3, Stream.ACCEPT, at) for at in range(20_000)],
        [uniform(seed, Stream.ACCEPT, 9, 2) for seed in range(20_000)],
        [uniform(3, Stream.ACCEPT, 9, index) for index in range(20_000)],
    ):
        assert 0.0 < min(numbers) < max(numbers) < 1.0
        assert stats.kstest(numbers, "uniform").pvalue > FITS


SIZE = 50_000


@pytest.mark.parametrize(
    "other",
    [
        (1, Stream.TARGET, 5),
        (-1, Stream.TARGET, 5),
        (2**62, Stream.TARGET, 5),
        (0, Stream.DRAFT, 5),
        (0, Stream.ACCEPT, 5),
        (0, Stream.RESIDUAL, 5),
        (0, Stream.TARGET, 4),
        (0, Stream.TARGET, 6),
        (5, Stream.TARGET, 0),
    ],
)
def test_noise_under_another_key_is_independent(other: tuple[int, Stream, int]) -> None:
    base = gumbel(0, Stream.TARGET, 5, SIZE).numpy()
    unlike = gumbel(*other, SIZE).numpy()
    for shift in range(-3, 4):  # nor is it the same row moved by some places
        assert stats.pearsonr(base, np.roll(unlike, shift)).pvalue > 1e-4
    assert not set(base) & set(unlike)


def test_noise_inside_a_row_is_independent() -> None:
    base = gumbel(0, Stream.TARGET, 5, SIZE).numpy()
    assert all(stats.pearsonr(base[:-shift], base[shift:]).pvalue > 1e-4 for shift in range(1, 6))
    assert stats.pearsonr(base, base).pvalue < FAILS


def test_noise_is_a_function_of_its_arguments() -> None:
    first = gumbel(7, Stream.TARGET, 3, 100)
    torch.manual_seed(0)
    assert torch.equal(gumbel(7, Stream.TARGET, 3, 100), first)
    # A longer row begins with the shorter one: the draft vocabulary's size is not part of the key.
    assert torch.equal(gumbel(7, Stream.TARGET, 3, 400)[:100], first)
    assert uniform(7, Stream.TARGET, 3) == uniform(7, Stream.TARGET, 3)


def test_noise_is_always_finite() -> None:
    assert torch.isfinite(gumbel(11, Stream.TARGET, 0, 1_000_000)).all()


@pytest.mark.parametrize("over", ["seeds", "positions"])
def test_draws_follow_the_targets_law(over: str) -> None:
    law = dict(enumerate(LAW))
    keys = ((seed, 17) for seed in range(20_000)) if over == "seeds" else ((3, at) for at in range(20_000))
    drawn = [draw(ROW, position, SamplingConfig(1.0, seed=seed)) for seed, position in keys]
    assert p_value(drawn, law) > FITS
    assert p_value(drawn, law | {0: 0.3, 1: 0.4}) < FAILS


def test_draws_follow_the_warped_law() -> None:
    config = [SamplingConfig(2.0, top_k=3, seed=seed) for seed in range(20_000)]
    roots = [math.sqrt(p) for p in LAW[:3]]
    law = {token: root / sum(roots) for token, root in enumerate(roots)}
    assert p_value([draw(ROW, 2, each) for each in config], law) > FITS


def test_noise_of_another_law_would_be_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    def normal(seed: int, stream: Stream, position: int, size: int, device: object = "cpu") -> Tensor:
        return torch.randn(size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)

    monkeypatch.setattr(sampling, "gumbel", normal)
    drawn = [draw(ROW, 17, SamplingConfig(1.0, seed=seed)) for seed in range(20_000)]
    assert p_value(drawn, dict(enumerate(LAW))) < FAILS


@given(st.lists(st.floats(-50, 50, width=32), min_size=1, max_size=30), st.integers(0, 99))
def test_greedy_is_the_first_argmax(values: list[float], seed: int) -> None:
    config = SamplingConfig(0.0, seed=seed)
    assert draw(torch.tensor(values), seed, config) == values.index(max(values))


def test_twenty_seeds_give_more_than_one_token() -> None:
    assert len({draw(ROW, 0, SamplingConfig(1.0, seed=seed)) for seed in range(20)}) > 1


@pytest.mark.parametrize(
    ("row", "usable"),
    [
        ([0.0, 1.0], True),
        ([-math.inf, 1.0], True),
        ([math.inf, 1.0], False),
        ([math.nan, 1.0], False),
        ([1.0, math.nan], False),
        ([-math.inf, -math.inf], False),
        ([math.nan, math.inf], False),
    ],
)
def test_usable_rows_are_those_with_a_finite_maximum(row: list[float], usable: bool) -> None:
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        assert is_usable(torch.tensor(row, dtype=dtype)) is usable
