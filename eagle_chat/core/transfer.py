"""Between host and device: values travel so that the host waits once in a cycle, to read what came of it.

A copy from ordinary memory to a CUDA device waits until the device has done all it was asked for before. One from
pinned memory takes its turn like any other work.
"""

from __future__ import annotations

import torch
from torch import Tensor


def runs_apart(device: torch.device) -> bool:
    """Whether a look at a number waits for a device."""
    return device.type != "cpu"


def pinned(values: Tensor, device: torch.device) -> Tensor:
    """Values from where a copy to `device` need not wait; torch keeps that memory until the copy is done."""
    return values.pin_memory() if device.type == "cuda" and values.device.type == "cpu" else values


def sent(values: Tensor, device: torch.device) -> Tensor:
    """The values on `device`, without waiting for it."""
    return pinned(values, device).to(device, non_blocking=True)
