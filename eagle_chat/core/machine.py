"""What this machine is fast at: measured once, remembered in the cache folder."""

from __future__ import annotations

import contextlib
import json
import platform
import statistics
import time
from pathlib import Path
from typing import Any

import torch

from eagle_chat.core.config import cache_root
from eagle_chat.core.errors import EagleChatError
from eagle_chat.core.files import write_atomic

REPEATS = 5
WORKING_SET = 96 * 2**20
"""Bytes of float32 weights that are gone through, more than caches hold, because a model's weights are not cached."""


def best_cpu_dtype(hidden_size: int, intermediate_size: int, rows: int) -> torch.dtype:
    """bfloat16 or float32, whichever is faster on this CPU for matrices of these sizes and `rows` tokens a forward."""
    key = f"{machine_key()} {hidden_size}x{intermediate_size} {rows} rows"
    known = recall(key)
    if known in ("bfloat16", "float32"):
        chosen: torch.dtype = getattr(torch, known)
        return chosen
    seconds = _measure(hidden_size, intermediate_size, rows, (torch.float32, torch.bfloat16))
    best = min(seconds, key=lambda dtype: seconds[dtype])
    remember(key, str(best).removeprefix("torch."))
    return best


def recall(key: str) -> Any:
    """What was remembered under `key`, as JSON gives it back; None where nothing was, or the memory is damaged."""
    return _read(_memory()).get(key)


def remember(key: str, value: Any) -> None:
    """Keep a JSON-ready value for later runs on this machine, if the cache folder can be written."""
    _write(_memory(), _read(_memory()) | {key: value})


def _memory() -> Path:
    return cache_root() / "machine.json"


def machine_key() -> str:
    """What a measurement on the CPU belongs to."""
    cpu = platform.processor() or platform.machine()
    threads = torch.get_num_threads()
    return f"{cpu} {torch.backends.cpu.get_cpu_capability()} {threads} threads torch {torch.__version__}"


@torch.inference_mode()
def _measure(
    hidden_size: int, intermediate_size: int, rows: int, dtypes: tuple[torch.dtype, ...]
) -> dict[torch.dtype, float]:
    """Median seconds of one pass over a working set of matrices by dtype, interleaved."""
    count = max(2, WORKING_SET // (4 * hidden_size * intermediate_size))
    base = torch.randn(intermediate_size, hidden_size)
    weights = {dtype: [base.to(dtype).clone() for _ in range(count)] for dtype in dtypes}
    taken: dict[torch.dtype, list[float]] = {dtype: [] for dtype in dtypes}
    for repeat in range(REPEATS + 1):
        for dtype in dtypes:
            inputs = torch.ones(rows, hidden_size, dtype=dtype)
            start = time.perf_counter()
            for weight in weights[dtype]:
                torch.nn.functional.linear(inputs, weight)
            if repeat > 0:  # the first round warms up
                taken[dtype].append(time.perf_counter() - start)
    return {dtype: statistics.median(values) for dtype, values in taken.items()}


def _read(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}  # nothing remembered, or a damaged memory: measure again
    return found if isinstance(found, dict) else {}


def _write(path: Path, value: dict[str, Any]) -> None:
    # A memory that cannot be written costs a measurement at the next start, nothing else.
    with contextlib.suppress(OSError, EagleChatError):
        path.parent.mkdir(parents=True, exist_ok=True)  # with the mode of the other cache folders
        write_atomic(path, json.dumps(value, indent=1))
