"""The document as a picture: speed-up, where a cycle's time goes, other engines and calibration where measured."""

from __future__ import annotations

import io
import itertools
import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from eagle_chat.bench.report import head_letters
from eagle_chat.core.errors import UserError
from eagle_chat.core.events import STAGES

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    Panel = Callable[[Axes, list[dict[str, Any]]], None]

PANEL_INCHES = (5.6, 4.2)
COLOURS = ("#3b6ea5", "#e08a3c", "#5a9a68", "#9a6fb0", "#9a9a9a")
"""One for each stage, told apart in grey too."""
DOTS = 150
SHOWN_DEPTHS = 4
"""Depths whose calibration is drawn; further ones hold few tokens, the table has them."""


def check_matplotlib() -> None:
    """UserError where the optional library for pictures is missing."""
    try:
        import matplotlib.figure  # noqa: F401  only whether it is there
    except ImportError as error:
        raise UserError(
            "matplotlib expected for --plot, found none: install it with pip install 'eagle-chat[bench]'"
        ) from error


def drawable(value: dict[str, Any]) -> bool:
    """Whether there is anything to draw in the document of a benchmark."""
    return bool(_panels(value))


def draw(value: dict[str, Any]) -> bytes:
    """The document of a benchmark as a PNG. UserError where matplotlib is missing or there is nothing to draw."""
    check_matplotlib()
    from matplotlib.figure import Figure

    panels = _panels(value)
    if not panels:
        raise UserError("a finished run expected to draw, found none: ask more questions, or leave --plot out")
    width, height = PANEL_INCHES
    figure = Figure(figsize=(width * len(panels), height), layout="constrained")
    for axes, (panel, data) in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
        panel(axes, data)
    figure.suptitle(_title(value), fontsize="small", parse_math=False)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=DOTS)
    return buffer.getvalue()


def _panels(value: dict[str, Any]) -> list[tuple[Panel, list[dict[str, Any]]]]:
    """Every part of the picture with what it shows."""
    runs = [run for run in value["runs"] if run["speedup"] is not None]
    tables = [table for table in value.get("calibration", []) if table["depths"]]
    panels: list[tuple[Panel, list[dict[str, Any]]]] = [(_speedups, runs), (_time_split, runs)] if runs else []
    lengths = value["questions"].get("lengths")
    panels += [(_growth, runs)] if runs and lengths and len(lengths) > 1 else []
    engines = [one for one in value.get("peers", {}).get("engines", []) if one["tokens_per_second"] is not None]
    panels += [(_engines, engines)] if engines else []
    return panels + [(_reliability, [table]) for table in tables]


def _title(value: dict[str, Any]) -> str:
    machine = value["machine"]
    partial = " (stopped early: partial)" if value["partial"] else ""
    heads = value["heads"]
    drafts = ", ".join(
        f"{letter} = {name}" if letter else name for letter, name in zip(head_letters(heads), heads, strict=True)
    )
    return f"{value['target']} + {drafts or 'no head'}, {machine['dtype']} on {machine['device']}{partial}"


def _names(runs: list[dict[str, Any]]) -> list[str]:
    several = len({run["temperature"] for run in runs}) > 1
    return [run["label"] + (f" T={run['temperature']:g}" if several else "") for run in runs]


def _speedups(axes: Axes, runs: list[dict[str, Any]]) -> None:
    heights = [run["speedup"] for run in runs]
    # Without an interval there is no bar: one of no width would look like perfect precision.
    intervals = [run["speedup_interval"] or [math.nan] * 2 for run in runs]
    below = [height - low for height, (low, _) in zip(heights, intervals, strict=True)]
    above = [high - height for height, (_, high) in zip(heights, intervals, strict=True)]
    axes.bar(_names(runs), heights, yerr=[below, above], capsize=4, color=COLOURS[0])
    axes.axhline(1.0, color="black", linewidth=0.8, linestyle="--")
    some = any(run["speedup_interval"] for run in runs)
    axes.set_ylabel(f"speed-up over plain (median{', 95 % interval' if some else ''})")
    _slant(axes)


def _slant(axes: Axes) -> None:
    """Long names below the bars, each ending at its own."""
    axes.tick_params(axis="x", rotation=30)
    for label in axes.get_xticklabels():
        label.set_horizontalalignment("right")


def _time_split(axes: Axes, runs: list[dict[str, Any]]) -> None:
    """Milliseconds of a mean cycle by stage."""
    names, bottom = _names(runs), [0.0] * len(runs)
    for stage, colour in zip(STAGES, COLOURS, strict=True):
        heights = [1000 * run["seconds"][stage] / run["cycles"] for run in runs]
        axes.bar(names, heights, bottom=bottom, label=stage, color=colour)
        bottom = [low + height for low, height in zip(bottom, heights, strict=True)]
    axes.set_ylabel("ms a cycle")
    _slant(axes)
    # Above the axes: inside, it would cover one bar or another.
    axes.legend(fontsize="small", ncols=len(STAGES), loc="lower center", bbox_to_anchor=(0.5, 1.0), frameon=False)


def _growth(axes: Axes, runs: list[dict[str, Any]]) -> None:
    """Milliseconds of a cycle by the prompt's length; the categories are the lengths."""
    for run, marker in zip(runs, itertools.cycle("osD^v"), strict=False):
        steps = {int(length): one["step_seconds"] for length, one in run["by_category"].items() if one["step_seconds"]}
        axes.plot(list(steps), [1000 * step for step in steps.values()], marker=marker, label=run["label"])
    axes.set_xlabel("tokens of the prompt")
    axes.set_ylabel("ms a cycle")
    axes.set_ylim(bottom=0)
    axes.legend(fontsize="small")


def _engines(axes: Axes, engines: list[dict[str, Any]]) -> None:
    """Tokens per second of every engine, ours told from the others."""
    colours = [COLOURS[1] if engine["peer"] else COLOURS[0] for engine in engines]
    bars = axes.barh([engine["name"] for engine in engines], [engine["tokens_per_second"] for engine in engines])
    for bar, colour in zip(bars, colours, strict=True):
        bar.set_color(colour)
    axes.bar_label(bars, fmt="%.1f", padding=3, fontsize="small")
    axes.margins(x=0.15)
    axes.invert_yaxis()
    axes.set_xlabel("tokens/s of decoding")


def _reliability(axes: Axes, tables: list[dict[str, Any]]) -> None:
    (table,) = tables
    axes.plot([0, 1], [0, 1], color="black", linewidth=0.8, linestyle="--", label="honest")
    for row, marker in zip(table["depths"][:SHOWN_DEPTHS], "osD^", strict=False):
        points = row["bins"]
        axes.plot(
            [point["confidence"] for point in points],
            [point["rate"] for point in points],
            marker=marker,
            label=f"depth {row['depth']} ({row['judged']} tokens)",
        )
    axes.set_xlabel(f"draft confidence (T = {table['temperature']:g})")
    axes.set_ylabel("accepted by the target")
    axes.legend(fontsize="small")
