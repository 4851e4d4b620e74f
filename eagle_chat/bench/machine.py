"""The machine that the figures belong to, and how much memory an answer takes at most."""

from __future__ import annotations

import contextlib
import os
import platform
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from eagle_chat.core.engine import Engine

_STATUS, _CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")
_RESET_PEAK = "5"
"""What Linux wants written to `clear_refs` to forget the highest memory use so far (proc(5))."""


def describe_machine(engine: Engine) -> dict[str, Any]:
    """Processor, threads, memory, device, number format and versions, as JSON-ready values."""
    about = engine.describe()
    device = torch.device(about["device"])
    return {
        "system": f"{platform.system()} {platform.machine()}",
        "cpu": cpu_name(),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "threads": torch.get_num_threads(),
        "memory_bytes": _total_memory(),
        "device": about["device"],
        "device_name": torch.cuda.get_device_name(device) if device.type == "cuda" else None,
        "dtype": about["dtype"],
        "python": platform.python_version(),
        "versions": about["versions"],
    }


def cpu_name() -> str:
    """The processor as its maker calls it, or its kind where the system does not tell."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines():
            name, _, value = line.partition(":")
            if name.strip() == "model name":
                return value.strip()
    return platform.processor() or platform.machine()


def _total_memory() -> int | None:
    with contextlib.suppress(ValueError, OSError, AttributeError):
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return None


class PeakMemory:
    """The highest memory use between `reset` and `read`: of torch on a CUDA device, else of the whole process.

    Where the system cannot forget its highest mark, the reading is that since the start of the process.
    """

    def __init__(self, device: str) -> None:
        self._cuda = torch.device(device) if torch.device(device).type == "cuda" else None

    def reset(self) -> None:
        """Forget the highest mark."""
        if self._cuda is not None:
            torch.cuda.reset_peak_memory_stats(self._cuda)
            return
        with contextlib.suppress(OSError):
            _CLEAR.write_text(_RESET_PEAK, encoding="ascii")

    def read(self) -> int | None:
        """Bytes; None where the system does not tell."""
        if self._cuda is not None:
            return torch.cuda.max_memory_allocated(self._cuda)
        with contextlib.suppress(OSError):
            for line in _STATUS.read_text(encoding="ascii", errors="replace").splitlines():
                if line.startswith("VmHWM:"):
                    return int(line.split()[1]) * 1024
        return _highest_ever()


def _highest_ever() -> int | None:
    try:
        import resource
    except ImportError:  # there is none on Windows
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024  # bytes there, kilobytes elsewhere
