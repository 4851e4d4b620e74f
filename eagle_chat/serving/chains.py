"""How long a chain of drafts pays, by what a head was measured to reach. Engines for many users draft chains."""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from eagle_chat.core.errors import UserError

UNMEASURED = 3
"""Chain length for a head of which nothing is known."""
LONGEST = 8
USUAL_COST = 0.1
"""A head's forward in target forwards, where the files' sizes are not at hand: one layer and an LM head of ten."""
FIGURES = "figures.json"
_PLACES = (
    ("live", "accept_by_depth"),
    ("accept_by_depth",),
    ("offline", "by_step"),
    ("held_out_top1_acceptance_by_step",),
)
"""Where acceptance by depth may stand in a head's figures, the most telling first."""


def expected_tau(acceptance: Sequence[float], length: int) -> float:
    """Tokens per target forward with a chain of `length`: 1 + a1 + a1 a2 + ... Past the last depth that was measured
    its acceptance is taken to stay."""
    shares = [*acceptance, *itertools.repeat(acceptance[-1], max(length - len(acceptance), 0))][:length]
    return 1.0 + sum(itertools.accumulate(shares, lambda product, share: product * share))


def best_length(acceptance: Sequence[float], cost: float) -> int:
    """The length with the highest speed-up τ / (1 + length · cost), at least 1. `cost`: a head's forward in target
    forwards."""
    return max(range(1, LONGEST + 1), key=lambda length: expected_tau(acceptance, length) / (1.0 + length * cost))


def weight_ratio(head: Path, target: Path) -> float:
    """Bytes of a head's weights over a target's: what a forward of few tokens costs is reading them."""
    sizes = [sum(file.stat().st_size for file in folder.glob("*.safetensors")) for folder in (head, target)]
    return sizes[0] / sizes[1] if all(sizes) else USUAL_COST


def measured_acceptance(head: Path) -> list[float] | None:
    """Acceptance by depth from the figures beside a head's weights; None where there are none."""
    try:
        figures = json.loads((head / FIGURES).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    for place in _PLACES:
        value: Any = figures
        for name in place:
            value = value.get(name) if isinstance(value, Mapping) else None
        if isinstance(value, list) and value and all(_is_share(share) for share in value):
            return [float(share) for share in value]
    return None


def parse_acceptance(text: str) -> list[float]:
    """Shares from "0.7,0.6"; UserError otherwise."""
    try:
        shares = [float(part) for part in text.split(",")]
    except ValueError:
        shares = []
    if not shares or not all(_is_share(share) for share in shares):
        raise UserError(f"shares from 0 to 1 such as 0.7,0.6,0.5 expected, found {text!r}: check --acceptance")
    return shares


def _is_share(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0.0 <= value <= 1.0
