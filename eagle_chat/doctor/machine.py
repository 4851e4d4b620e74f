"""The machine: device, processors, how busy it is, versions."""

from __future__ import annotations

import importlib.metadata
import os
import shutil
from collections.abc import Iterator

import torch
from packaging.requirements import InvalidRequirement, Requirement

from eagle_chat.bench.machine import cpu_name
from eagle_chat.doctor.findings import Finding, ok

GROUP = "machine"
BUSY = 1.5
"""Programs that want to run, by processor, from which on measured speeds say little."""
CHECKED_VERSIONS = ("torch", "transformers", "tokenizers", "safetensors", "accelerate")


def check_machine(device: torch.device, notes: list[str]) -> Iterator[Finding]:
    """Everything that needs no model. `notes`: remarks of the choice of the device."""
    if device.type == "cuda":
        yield ok(GROUP, "device", f"{torch.cuda.get_device_name(device)} ({torch.cuda.device_count()} in all)")
    else:
        yield from _check_cpu(device)
    for note in notes:
        yield Finding(
            GROUP, "device", "note", note, "the accelerator lacks an operation", "nothing, or another machine"
        )
    yield from _check_versions()


def _check_cpu(device: torch.device) -> Iterator[Finding]:
    usable, threads = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1, 0
    threads = torch.get_num_threads()
    kind = f"{cpu_name()}, {torch.backends.cpu.get_cpu_capability()}, {threads} threads"
    yield ok(GROUP, "device", kind if device.type == "cpu" else f"{device.type} beside {kind}", threads=threads)
    if _has_nvidia() and device.type == "cpu" and torch.version.cuda is None:
        yield Finding(
            GROUP,
            "cuda",
            "warning",
            "an NVIDIA driver is here, but the CPU is used",
            f"torch {torch.__version__} was built without CUDA",
            "install torch 2.13.0 with CUDA (pytorch.org gives the line)",
        )
    if threads < usable // 2:
        yield Finding(
            GROUP,
            "threads",
            "warning",
            f"{threads} of {usable} processors are used",
            "OMP_NUM_THREADS is set" if os.environ.get("OMP_NUM_THREADS") else "torch was told to use few threads",
            f"unset it, or set OMP_NUM_THREADS={usable // 2} (the number of real cores)",
            {"threads": threads, "processors": usable},
        )
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0
    if load > BUSY * usable:
        yield Finding(
            GROUP,
            "load",
            "warning",
            f"{load:.1f} programs want to run on {usable} processors",
            "other programs use this machine",
            "stop them, or take the measured speeds below for what they are",
            {"load": load, "processors": usable},
        )


def _has_nvidia() -> bool:
    return os.path.exists("/proc/driver/nvidia/version") or shutil.which("nvidia-smi") is not None  # noqa: PTH110


def _check_versions() -> Iterator[Finding]:
    """Installed versions against the ranges that this program is tested with."""
    try:
        wanted = importlib.metadata.requires("eagle-chat") or []
    except importlib.metadata.PackageNotFoundError:
        wanted = []
    shown = []
    for line in wanted:
        try:
            requirement = Requirement(line)
            found = importlib.metadata.version(requirement.name)
        except (InvalidRequirement, importlib.metadata.PackageNotFoundError):
            continue
        if requirement.name not in CHECKED_VERSIONS:
            continue
        shown.append(f"{requirement.name} {found}")
        if not requirement.specifier.contains(found, prereleases=True):
            yield Finding(
                GROUP,
                "versions",
                "warning",
                f"{requirement.name} {found} is installed",
                f"this program is tested with {requirement.specifier}",
                f"pip install '{requirement.name}{requirement.specifier}'",
            )
    if shown:
        yield ok(GROUP, "versions", ", ".join(shown))
