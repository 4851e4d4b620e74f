"""Memory that a pair takes, and how much is free."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import psutil
import torch
from torch import nn

from eagle_chat.core.fast_target import MODELS
from eagle_chat.core.heads.base import DraftHead
from eagle_chat.core.target import Target

CGROUP = Path("/sys/fs/cgroup")
CONTEXT = 4096
"""Tokens of a long chat, for the caches."""
BYTES_BY_BITS = {8: 1.0, 4: 0.5 + 1 / 64}
"""Bytes a weight when quantised; 4-bit has one 8-bit scale for each block of 64."""


@dataclass(frozen=True)
class Need:
    """Bytes: the target's weights, the head's, and the caches of both for `CONTEXT` tokens or the target's limit."""

    target: int
    head: int
    caches: int

    @property
    def total(self) -> int:
        """All of it."""
        return self.target + self.head + self.caches


def need(target: Target, head: DraftHead | None, bits: int | None, on_cpu: bool = False) -> Need:
    """What a pair on "meta" would take. `bits`: 8 or 4 where the target is to be quantised. `on_cpu`: it would run on a
    CPU, where models that `fast_target` knows keep keys and values in float32."""
    size: int = target.dtype.itemsize
    entry = 4 if on_cpu and bits is None and type(target.model).__name__ in MODELS else size
    head_weights = sum(parameter.numel() for parameter in head.parameters()) if head is not None else 0
    tokens = min(CONTEXT, target.context_limit)
    config = target.config
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    dim = getattr(config, "head_dim", None) or target.hidden_size // config.num_attention_heads
    caches = 2 * target.num_layers * heads * dim * tokens * entry
    if head is not None:
        caches += 2 * head.spec.num_layers * head.spec.num_kv_heads * head.spec.head_dim * tokens * entry
    return Need(weight_bytes(target, bits), head_weights * size, int(caches))


def weight_bytes(target: Target, bits: int | None) -> int:
    """Bytes of the target's weights. Quantised are the matrices of its linear layers but the LM head's."""
    size: int = target.dtype.itemsize
    lm_head = target.model.get_output_embeddings()
    total: int = sum(parameter.numel() for parameter in target.model.parameters())  # shared ones once
    if bits is None:
        return total * size
    linear = [m for m in target.model.modules() if isinstance(m, nn.Linear) and m is not lm_head]
    quantised = sum(module.weight.numel() for module in linear)
    return int(quantised * BYTES_BY_BITS[bits]) + (total - quantised) * size


def available(device: torch.device, spread: bool) -> tuple[int, str]:
    """Free bytes on the device and where, in words; with `spread` those of all accelerators together."""
    if device.type == "cuda":
        devices = range(torch.cuda.device_count()) if spread else [device.index or 0]
        return sum(torch.cuda.mem_get_info(one)[0] for one in devices), "free on the accelerator"
    if device.type == "mps":
        return torch.mps.recommended_max_memory() - torch.mps.driver_allocated_memory(), "free on the accelerator"
    free = int(psutil.virtual_memory().available)
    limit = container_room(CGROUP)
    return free if limit is None else min(free, limit), "free in main memory"


def container_room(group: Path) -> int | None:
    """What the limit of a container (cgroup v2) leaves, cached files not counted as used. None: there is no limit."""
    try:
        limit, used = (int((group / name).read_text()) for name in ("memory.max", "memory.current"))
        counts = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
        return limit - used + int(counts["file"])
    except (OSError, ValueError, KeyError):  # no such file, or the limit is the word "max"
        return None
