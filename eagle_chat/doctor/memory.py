"""Memory that a pair needs, against what is there."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from eagle_chat.core.config import LoadConfig
from eagle_chat.core.heads.base import DraftHead
from eagle_chat.core.memory import available, need
from eagle_chat.core.target import Target
from eagle_chat.doctor.findings import Finding, ok

GROUP = "memory"
TIGHT = 0.85
"""Share of the memory from which on it is tight: forwards need room too."""
GIB = 2**30


def check_memory(config: LoadConfig, target: Target, head: DraftHead | None, device: torch.device) -> Iterator[Finding]:
    """Need against what is free. An error where loading would end in swapping or a killed process."""
    bits = 8 if config.load_in_8bit else 4 if config.load_in_4bit else None
    wanted = need(target, head, bits, on_cpu=device.type == "cpu")
    free, where = available(device, spread=config.device_map is not None)
    figures = {"target": wanted.target, "head": wanted.head, "caches": wanted.caches, "total": wanted.total}
    parts = f"target {_gib(wanted.target)}, head {_gib(wanted.head)}, caches {_gib(wanted.caches)}"
    figures |= {"available": free}
    found = f"{_gib(wanted.total)} needed ({parts}), {_gib(free)} {where}"
    if wanted.total <= TIGHT * free:
        yield ok(GROUP, "memory", found, **figures)
        return
    too_much = wanted.total > free
    smaller = _smaller(target, head, bits, free)
    cause = "the pair is larger than the memory" if too_much else "little is left for the forwards themselves"
    yield Finding(GROUP, "memory", "error" if too_much else "warning", found, cause, smaller, figures)


def _smaller(target: Target, head: DraftHead | None, bits: int | None, free: int) -> str:
    """What would fit."""
    if bits != 4:
        in_four = need(target, head, 4).total
        if in_four <= TIGHT * free:
            return f"--load-in-4bit needs {_gib(in_four)}"
    return "a smaller target, or a machine with more memory"


def _gib(size: int) -> str:
    return f"{size / GIB:.1f} GiB" if size >= GIB / 2 else f"{size / 2**20:.0f} MiB"
