"""The picture says what the figures say, and no more."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest

matplotlib_figure = pytest.importorskip("matplotlib.figure")

from eagle_chat.bench import plot  # noqa: E402
from eagle_chat.bench.report import document  # noqa: E402
from eagle_chat.bench.runner import Asker, measure  # noqa: E402
from tests.bench.parts import QUESTIONS, ScriptedEngine, candidate  # noqa: E402

MACHINE = {"device": "cpu", "dtype": "float32", "threads": 1, "cpu": "c", "device_name": None}


def value(lengths: tuple[int, ...] = ()) -> dict[str, Any]:
    engine: Any = ScriptedEngine()
    measured = measure([Asker(engine)], [candidate("plain"), candidate("chain")], QUESTIONS)
    return document(MACHINE, "t", ["h"], "s", QUESTIONS, measured, 8, lengths=lengths)


def drawn(panel: Any, runs: list[dict[str, Any]]) -> Any:
    axes = matplotlib_figure.Figure().subplots()
    panel(axes, runs)
    return axes


def test_where_there_is_no_interval_no_bar_is_drawn() -> None:
    """One of no width would look like perfect precision."""
    runs = value()["runs"]
    assert {run["speedup_interval"] for run in runs} == {None}
    axes = drawn(plot._speedups, runs)
    assert "interval" not in axes.get_ylabel()
    assert all(math.isnan(point) for points in axes.lines[:-1] for point in points.get_ydata())
    some = copy.deepcopy(runs)
    some[1]["speedup_interval"] = [some[1]["speedup"] - 0.1, some[1]["speedup"] + 0.3]
    axes = drawn(plot._speedups, some)
    assert "95 % interval" in axes.get_ylabel()
    ends = sorted(point for line in axes.lines[:-1] for point in line.get_ydata() if not math.isnan(point))
    assert ends == pytest.approx(some[1]["speedup_interval"])


def test_prompts_of_several_lengths_have_their_growth_drawn() -> None:
    with_lengths = value((100, 200))
    for run in with_lengths["runs"]:
        run["by_category"] = {str(length): {"step_seconds": length / 1e4} for length in (100, 200)}
    assert plot._growth in [panel for panel, _ in plot._panels(with_lengths)]
    assert plot._growth not in [panel for panel, _ in plot._panels(value())]
    axes = drawn(plot._growth, with_lengths["runs"])
    assert [list(line.get_xdata()) for line in axes.lines] == [[100, 200]] * 2
    assert list(axes.lines[0].get_ydata()) == pytest.approx([10, 20])
    assert plot.draw(with_lengths).startswith(b"\x89PNG")


def test_nothing_finished_is_nothing_to_draw() -> None:
    empty = document(MACHINE, "t", ["h"], "s", QUESTIONS, None, 8)
    assert not plot.drawable(empty)
    assert plot.drawable(value())
