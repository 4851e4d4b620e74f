"""What this machine is fast at: measured once, while nothing else runs, and remembered in the cache folder."""

from __future__ import annotations

import contextlib
import json
import platform
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import torch

from eagle_chat.core.config import cache_root
from eagle_chat.core.errors import EagleChatError
from eagle_chat.core.files import write_atomic

T = TypeVar("T")

SWITCHES = 5
SWITCHES_A_SECOND = 60.0
"""More often than this, and more than so many times in all, a program is taken off its processor only where others want
it too: about 20 a second on a quiet machine of two threads, over 200 beside a program that is always busy."""


def once(key: str, parse: Callable[[Any], T | None], measure: Callable[[], T], as_json: Callable[[T], Any]) -> T:
    """What was remembered under `key`, else what `measure` gives, which is remembered if no other program was in the
    way. `parse` makes it of what `as_json` made, or None where that is damaged."""
    known = parse(recall(key))
    if known is not None:
        return known
    start, before = time.perf_counter(), _switches()
    found = measure()
    if _switches() - before <= max(SWITCHES, SWITCHES_A_SECOND * (time.perf_counter() - start)):
        remember(key, as_json(found))
    return found


def _switches() -> int:
    """How often this program was made to wait for others; 0 where nobody knows."""
    try:
        import resource
    except ImportError:  # Windows
        return 0
    return resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw


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
