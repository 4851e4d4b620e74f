"""The layout of a matrix follows from measured times, which are remembered."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from eagle_chat.core import fast_plan, machine
from eagle_chat.core.fast_linear import Matrix, Plan, choose, layouts
from eagle_chat.core.fast_plan import Planner

SPLIT = {1: {"rows": 3.0, "columns": 2.0, "packed": 4.0}, 16: {"rows": 9.0, "columns": 9.0, "packed": 6.0}}


def test_two_copies_where_they_pay_and_are_affordable() -> None:
    assert choose(SPLIT, two_copies=True) == Plan("columns", "packed")
    # One copy: packed costs 4/2 + 6/6, columns 2/2 + 9/6, rows 3/2 + 9/6.
    assert choose(SPLIT, two_copies=False) == Plan("columns", "columns")
    near = {1: {"rows": 2.1, "packed": 2.2}, 16: {"rows": 9.0, "packed": 6.0}}
    assert choose(near, two_copies=True) == Plan("packed", "packed")


@pytest.fixture
def own_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """An empty memory of the machine, and a measurement that gives known times and is noted."""
    monkeypatch.setenv("EAGLE_CHAT_CACHE", str(tmp_path))
    measured: list[tuple[int, int]] = []

    def measure(shape: tuple[int, int], dtype: torch.dtype) -> object:
        measured.append(shape)
        return SPLIT

    monkeypatch.setattr(fast_plan, "measure", measure)
    monkeypatch.setattr(fast_plan, "available_memory", lambda: 2**40)
    return measured


def test_a_shape_is_measured_once_per_machine(own_memory: list[tuple[int, int]], tmp_path: Path) -> None:
    planner = Planner(2**30)
    assert planner.plan((64, 32), torch.float32) == Plan("columns", "packed")
    assert planner.plan((64, 32), torch.float32) == Plan("columns", "packed")
    assert Planner(2**30).plan((64, 32), torch.float32) == Plan("columns", "packed")
    assert own_memory == [(64, 32)]
    planner.plan((64, 32), torch.bfloat16)
    assert len(own_memory) == 2


def test_what_was_measured_beside_other_programs_is_not_remembered(
    own_memory: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    switches = iter(range(0, 10**6, 1000))
    monkeypatch.setattr(machine, "_switches", lambda: next(switches))
    for _ in range(2):
        assert Planner(2**30).plan((64, 32), torch.float32) == Plan("columns", "packed")
    assert len(own_memory) == 2
    monkeypatch.setattr(machine, "_switches", lambda: 7)
    for _ in range(2):
        Planner(2**30).plan((64, 32), torch.float32)
    assert len(own_memory) == 3


@pytest.mark.parametrize("damage", ["x", {"1": {"rows": "fast"}}, {"1": {"rows": 1.0}, "16": {"sideways": 1.0}}, None])
def test_a_damaged_memory_is_measured_again(own_memory: list[tuple[int, int]], damage: object) -> None:
    machine.remember(fast_plan._key((64, 32), torch.float32), damage)
    assert Planner(2**30).plan((64, 32), torch.float32) == Plan("columns", "packed")
    assert own_memory == [(64, 32)]


def test_small_models_are_not_measured_and_large_ones_are_not_doubled(
    own_memory: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert Planner(fast_plan.SMALL).plan((64, 32), torch.float32) == Plan()
    assert own_memory == []
    monkeypatch.setattr(fast_plan, "available_memory", lambda: 2**31)
    assert Planner(2**30).plan((64, 32), torch.float32) == Plan("columns", "columns")


def test_the_measurement_covers_every_layout_and_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fast_plan, "WORKING_SET", 2**16)
    times = fast_plan.measure((640, 64), torch.float32)  # of which 256 rows are measured
    assert all(set(times[count]) == set(layouts(torch.zeros(64, 64))) >= {"rows", "columns"} for count in (1, 16))
    assert all(seconds > 0 for by_layout in times.values() for seconds in by_layout.values())


@pytest.mark.parametrize(
    "plan",
    [Plan(), Plan("columns", "columns"), Plan("packed", "packed"), Plan("panels", "panels"), Plan("rows", "packed")],
)
@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_every_layout_gives_the_same_product(plan: Plan, with_bias: bool, dtype: torch.dtype) -> None:
    weight, bias = torch.randn(64, 16).to(dtype), torch.randn(64).to(dtype) if with_bias else None
    matrix = Matrix(weight, bias, plan)
    tolerance = 1e-5 if dtype is torch.float32 else 0.05  # layouts of others round inputs and results to bfloat16
    for count in (1, 5, 16):
        x, residual = torch.randn(count, 16), torch.randn(count, 64)
        expected = torch.nn.functional.linear(x, weight.float(), None if bias is None else bias.float())
        torch.testing.assert_close(matrix(x), expected, rtol=tolerance, atol=tolerance)
        torch.testing.assert_close(matrix.add(x, residual), expected + residual, rtol=tolerance, atol=tolerance)


def test_the_best_dtype_is_that_of_the_best_layout(own_memory: list[tuple[int, int]], monkeypatch: Any) -> None:
    times = {
        torch.float32: {1: {"rows": 2.0, "panels": 2.0}, 16: {"rows": 4.0, "panels": 3.0}},
        torch.bfloat16: {1: {"rows": 1.0, "panels": 1.0}, 16: {"rows": 9.0, "panels": 2.0}},
    }
    monkeypatch.setattr(fast_plan, "measure", lambda _, dtype: times[dtype])
    assert fast_plan.best_dtype((64, 32), 8, fast=True) is torch.bfloat16
    assert fast_plan.best_dtype((64, 32), 8, fast=False) is torch.float32
    assert fast_plan.best_dtype((64, 32), 1, fast=False) is torch.bfloat16


def test_single_rows_count_for_the_dtype_of_drafts_too(own_memory: list[tuple[int, int]], monkeypatch: Any) -> None:
    """Where many rows are a tie, as on a processor that is bound by arithmetic, noise must not decide."""
    times = {
        torch.float32: {1: {"rows": 9.0, "panels": 2.0}, 16: {"rows": 9.0, "panels": 3.0}},
        torch.bfloat16: {1: {"rows": 9.0, "panels": 1.0}, 16: {"rows": 9.0, "panels": 3.1}},
    }
    monkeypatch.setattr(fast_plan, "measure", lambda _, dtype: times[dtype])
    assert fast_plan.best_dtype((64, 32), 8, fast=True) is torch.bfloat16
