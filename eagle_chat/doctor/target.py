"""The target's files, kind and number format."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from eagle_chat.core.config import LoadConfig
from eagle_chat.core.fast_target import best_cpu_dtype
from eagle_chat.core.policies import CPU_TREE
from eagle_chat.doctor.findings import Finding, ok
from eagle_chat.doctor.pair import Names, Shape
from eagle_chat.doctor.weights import defect, missing_shards, weight_files

GROUP = "target"


def check_files(names: Names) -> Iterator[Finding]:
    """Whether what is on the disk is whole."""
    folder, hub_id = names.folder, names.source["pretrained_model_name_or_path"]
    if folder is None:
        yield Finding(
            GROUP,
            "files",
            "note",
            f"{hub_id} is not on this machine yet",
            "it was never fetched",
            f"eagle-chat models pull {names.config.base}",
        )
        return
    missing = missing_shards(folder)
    if missing:
        yield Finding(
            GROUP,
            "files",
            "error",
            f"{len(missing)} files that the index names are not there: {', '.join(missing[:3])}",
            "the download ended early",
            f"get them again into {folder}",
            {"missing": missing},
        )
    gguf = names.source.get("gguf_file")
    files = [folder / gguf] if gguf else weight_files(folder)
    defects = [reason for reason in map(defect, files) if reason is not None]
    for reason in defects:
        yield Finding(GROUP, "files", "error", "a file of weights is not whole", reason, f"get it again into {folder}")
    if not files:
        yield Finding(
            GROUP,
            "files",
            "error",
            f"no file of weights in {folder}",
            "only the config was fetched, or this is another folder",
            "check --base, or get the model again",
        )
    if files and not missing and not defects:
        size = sum(file.stat().st_size for file in files)
        count = f"{len(files)} files" if len(files) > 1 else files[0].name
        yield ok(GROUP, "files", f"{count}, {size / 2**20:,.0f} MiB, whole as far as their headers tell", bytes=size)


def check_kind(shape: Shape) -> Iterator[Finding]:
    """What it is, in numbers."""
    target, config = shape.target, shape.target.config
    count = sum(parameter.numel() for parameter in target.model.parameters())
    yield ok(
        GROUP,
        "kind",
        f"{config.model_type}: {target.num_layers} layers of {target.hidden_size}, {target.vocab_size:,} tokens, "
        f"context {target.context_limit:,}, {count / 1e6:,.0f}M parameters",
        layers=target.num_layers,
        hidden_size=target.hidden_size,
        vocab_size=target.vocab_size,
        context=target.context_limit,
        parameters=count,
    )


def check_dtype(shape: Shape, config: LoadConfig, device: torch.device) -> Iterator[Finding]:
    """Whether the number format suits the model, and on a CPU whether another one is faster."""
    name = _name(shape.dtype)
    if shape.dtype == torch.float16 and shape.stored_dtype == torch.bfloat16:
        yield Finding(
            GROUP,
            "dtype",
            "warning",
            "it was made in bfloat16 and would run in float16",
            f"float16 ends at {torch.finfo(torch.float16).max:,.0f}; what is larger becomes infinite (Qwen2 is known "
            "for it)",
            "--dtype bfloat16",
        )
        return
    faster = _faster(shape, config, device)
    if faster is not None:
        cause = f"--dtype {name} was asked for; {faster} is faster on this processor for matrices of this size"
        remedy = "leave --dtype out" + (", unless exact sums are wanted" if name == "float32" else "")
        yield Finding(GROUP, "dtype", "note", f"{name} is not the fastest here", cause, remedy)
        return
    beside = "" if shape.stored_dtype in (None, shape.dtype) else f", the files hold {_name(shape.stored_dtype)}"
    yield ok(GROUP, "dtype", f"{name}{beside}", dtype=name)


def _faster(shape: Shape, config: LoadConfig, device: torch.device) -> str | None:
    """The faster format of a CPU, where another one was asked for. Measured once for a shape, and remembered."""
    if device.type != "cpu" or config.dtype == "auto":
        return None
    best = best_cpu_dtype(shape.target.config, CPU_TREE.total_tokens or 1)
    return _name(best) if best != shape.dtype else None


def _name(dtype: torch.dtype | None) -> str:
    return str(dtype).removeprefix("torch.")
