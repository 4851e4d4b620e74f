"""Curves of training runs as a picture: held-out acceptance by step and chain τ, over the answer tokens trained on.

    python bench/curves.py RUN [RUN ...] --plot FILE.png

Also prints what the last third of each run promises: τ gained for each further million answer tokens.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from eagle_chat.training.checkpoints import RunFolder

MILLION = 1e6
MARKERS = "osD^v"


def held_out(folder: Path) -> list[dict[str, Any]]:
    """The validations of a run, each with the answer tokens seen by then."""
    seen = 0
    rows: list[dict[str, Any]] = []
    for row in RunFolder(folder).curve():
        if row["kind"] == "train":
            seen = row["answer_tokens"]
        else:
            rows.append({**row, "answer_tokens": seen})
    return rows


def slope(rows: list[dict[str, Any]]) -> float | None:
    """Chain τ for each further million answer tokens, by least squares over the last third; None for too few."""
    last = rows[-max(3, len(rows) // 3) :]
    if len(last) < 3:
        return None
    tokens = np.array([row["answer_tokens"] / MILLION for row in last])
    return float(np.polyfit(tokens, np.array([row["chain_tau"] for row in last]), 1)[0])


def main() -> None:
    """Read the runs, print, draw."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", type=Path)
    parser.add_argument("--plot", type=Path)
    options = parser.parse_args()
    figure = Figure(figsize=(11, 4.2), layout="constrained")
    left, right = figure.subplots(1, 2)
    for number, folder in enumerate(options.runs):
        rows = held_out(folder)
        if not rows:
            print(f"{folder.name}: no validation yet")
            continue
        tokens = [row["answer_tokens"] / MILLION for row in rows]
        for step, marker in zip(range(len(rows[0]["acceptance"])), MARKERS, strict=False):
            shares = [row["acceptance"][step] for row in rows]
            left.plot(tokens, shares, marker=marker, color=f"C{number}", label=f"{folder.name}, step {step + 1}")
        right.plot(tokens, [row["chain_tau"] for row in rows], marker="o", color=f"C{number}", label=folder.name)
        best = max(rows, key=lambda row: row["chain_tau"])
        rise = slope(rows)
        by_step = "/".join(f"{share:.3f}" for share in best["acceptance"])
        promise = "" if rise is None else f"; last third {rise:+.3f} τ for each further million"
        print(f"{folder.name}: best chain τ {best['chain_tau']:.3f} ({by_step}) at step {best['step']:,}, "
              f"{best['answer_tokens'] / MILLION:.2f} million answer tokens{promise}")  # fmt: skip
    for axes, name in ((left, "held-out acceptance by step"), (right, "held-out chain τ (tokens a cycle)")):
        axes.set_xlabel("answer tokens trained on, million")
        axes.set_ylabel(name)
        axes.legend(fontsize="x-small")
        axes.grid(alpha=0.3)
    if options.plot:
        figure.savefig(options.plot, format="png", dpi=150)


if __name__ == "__main__":
    main()
