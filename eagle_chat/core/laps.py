"""Where the time of a cycle goes."""

from __future__ import annotations

import time

import torch

from eagle_chat.core.events import STAGES


class Laps:
    """Seconds by stage of one cycle. On an accelerator the stages are told apart only when traced, because that
    waits for the device after each of them."""

    def __init__(self, device: torch.device, exact: bool) -> None:
        self._wait = device if exact and device.type == "cuda" else None
        self.seconds = dict.fromkeys(STAGES, 0.0)
        self._last = time.perf_counter()

    def end(self, stage: str) -> None:
        """The time since the last call belongs to `stage`."""
        if self._wait is not None:
            torch.cuda.synchronize(self._wait)
        now = time.perf_counter()
        self.seconds[stage] += now - self._last
        self._last = now
