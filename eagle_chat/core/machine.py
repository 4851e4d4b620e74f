"""What this machine is fast at: measured once, remembered in the cache folder."""

from __future__ import annotations

import contextlib
import json
import platform
from pathlib import Path
from typing import Any

import torch

from eagle_chat.core.config import cache_root
from eagle_chat.core.errors import EagleChatError
from eagle_chat.core.files import write_atomic


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
