"""Which hidden states the head accepts most from: the two numberings in the wild differ by one layer."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from eagle_chat.core.engine import Engine
from eagle_chat.core.heads.spec import default_taps
from eagle_chat.doctor.findings import Finding, ok
from eagle_chat.doctor.numbers import Pass, head_logits

GROUP = "run"
DECISIVE = 3.0
"""Standard errors between two taps from which on one is better (McNemar's test on the positions where they differ).
Several taps are tried, hence more than two."""
HINT = 2.0
"""The same from which on it is worth a remark: a layer's shift costs a head a few positions in a hundred only."""
LEAST_TOKENS = 16


@dataclass(frozen=True)
class Reading:
    """What the head gets right with some taps. `right`: for each judged position whether its first choice is the
    target's."""

    taps: tuple[int, ...]
    name: str
    right: tuple[bool, ...]

    @property
    def rate(self) -> float:
        """Share of positions."""
        return sum(self.right) / len(self.right) if self.right else 0.0


def candidates(taps: tuple[int, ...], num_layers: int) -> list[tuple[tuple[int, ...], str]]:
    """The taps in use, the same one layer later and earlier, and the defaults; each once, none out of range."""
    choices = [
        (taps, "in use"),
        (tuple(tap + 1 for tap in taps), "as outputs of layers"),
        (tuple(tap - 1 for tap in taps), "as inputs of layers"),
        (default_taps(num_layers), "the default"),
    ]
    kept: dict[tuple[int, ...], str] = {}
    for one, name in choices:
        if min(one) >= 0 and max(one) <= num_layers and len(set(one)) == len(one):
            kept.setdefault(one, name)
    return list(kept.items())


@torch.inference_mode()
def read(engine: Engine, passes: Sequence[tuple[Pass, int]], taps: tuple[int, ...], name: str) -> Reading:
    """The head's first choices against the target's, for tokens behind the given position of each text."""
    head = engine.head
    assert head is not None
    right: list[bool] = []
    for seen, start in passes:
        chosen = head.target_ids(head_logits(engine, seen, taps).argmax(dim=-1)).tolist()
        best = seen.logits.argmax(dim=-1).tolist()
        # Row t of the head predicts token t + 2, and so does row t + 1 of the target.
        right += [chosen[row] == best[row + 1] for row in range(max(start - 1, 0), len(chosen))]
    return Reading(taps, name, tuple(right))


def better(one: Reading, other: Reading) -> float:
    """Standard errors by which `one` is better: McNemar's statistic (1947), 0 where they never differ."""
    gained = sum(mine and not theirs for mine, theirs in zip(one.right, other.right, strict=True))
    lost = sum(theirs and not mine for mine, theirs in zip(one.right, other.right, strict=True))
    return (gained - lost) / math.sqrt(gained + lost) if gained + lost else 0.0


def check_taps_measured(engine: Engine, passes: Sequence[tuple[Pass, int]]) -> Iterator[Finding]:
    """Accuracy with the taps in use, and whether others are clearly better."""
    head = engine.head
    if head is None or sum(len(seen.tokens) - start for seen, start in passes) < LEAST_TOKENS:
        return
    if head.spec.architecture == "eagle":
        only = read(engine, passes, head.spec.taps, "in use")
        yield ok(GROUP, "first choice", f"right at {only.rate:.0%} of {len(only.right)} positions", rate=only.rate)
        return
    readings = [read(engine, passes, taps, name) for taps, name in candidates(head.spec.taps, engine.target.num_layers)]
    own, best = readings[0], max(readings, key=lambda one: one.rate)
    figures = {
        "positions": len(own.right),
        "readings": [{"taps": list(one.taps), "name": one.name, "rate": one.rate} for one in readings],
    }
    shown = f"taps {_shown(own.taps)}: first choice right at {own.rate:.0%} of {len(own.right)} positions"
    lead = better(best, own)
    if lead < HINT:
        others = ", ".join(f"{_shown(one.taps)} {one.rate:.0%}" for one in readings[1:])
        yield ok(GROUP, "taps", f"{shown}{f' ({others})' if others else ''}", **figures)
        return
    yield Finding(
        GROUP,
        "taps",
        "warning" if lead >= DECISIVE else "note",
        f"{shown}, with {_shown(best.taps)} at {best.rate:.0%}",
        _cause(own.taps, best) if lead >= DECISIVE else f"by chance, or {_cause(own.taps, best)}",
        f"--taps {_shown(best.taps)}",
        figures,
    )


def _cause(own: tuple[int, ...], best: Reading) -> str:
    if best.taps == tuple(tap + 1 for tap in own):
        return "the ids in its config count the outputs of layers and were read as inputs"
    if best.taps == tuple(tap - 1 for tap in own):
        return "the ids in its config count the inputs of layers and were read as outputs"
    return "its config or --taps name other layers than those it was trained on"


def _shown(taps: Sequence[int]) -> str:
    return ",".join(map(str, taps))
