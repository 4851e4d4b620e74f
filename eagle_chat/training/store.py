"""Features on disk: the target runs once over the text, and every epoch reads what it said.

One safetensors file for each stretch of samples, written whole or not at all, so a killed pass goes on where it was.
A file is named by the text it is about: a run on more text, or on the same text in another folder of runs, finds there
what was computed before.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from eagle_chat.core.errors import UserError
from eagle_chat.core.files import PUBLIC, make_folder, read_object, write_atomic
from eagle_chat.core.target import Target
from eagle_chat.training.dataset import Sample
from eagle_chat.training.features import Batch, padded, run_target
from eagle_chat.training.timing import duration

SHARD_SAMPLES = 256
FORWARD_TOKENS = 4096
"""Tokens of one forward while features are computed."""
FREE_SPACE_LEFT = 2**28
SAMPLED = 16
"""Numbers of every parameter by which a target's weights are known again."""
SETTINGS = "features.json"
FINAL = (-1,)
"""The taps of an eagle head: the final states, which a folder holds whatever its taps are."""

Say = Callable[[str], None]
Report = Callable[[str, float], None]


def data_hash(samples: Sequence[Sample]) -> str:
    """A name for this very text and loss mask, in this order."""
    digest = hashlib.sha256()
    for sample in samples:
        digest.update(len(sample).to_bytes(4, "big"))
        digest.update(sample.tokens.tobytes())
        digest.update(np.packbits(sample.mask).tobytes())
    return digest.hexdigest()


def bytes_per_token(target: Target, taps: Sequence[int]) -> int:
    """On disk: the features where they are not the final states themselves, the final states, the best token."""
    states = 1 + (len(taps) if tuple(taps) != FINAL else 0)
    return 2 * states * target.hidden_size + 4


class StoredFeatures:
    """Reads what `compute` wrote."""

    def __init__(self, folder: Path, samples: Sequence[Sample], taps: Sequence[int], device: torch.device) -> None:
        self._samples, self._device = samples, device
        self._files = shard_files(folder, samples)
        self._starts = _starts(samples)
        self._features = tuple(taps) != FINAL
        self._open: dict[int, Any] = {}

    def batch(self, numbers: Sequence[int]) -> Batch:
        """See `FeatureSource`."""
        tokens, mask = padded([self._samples[number] for number in numbers])
        parts = [self._sample(number) for number in numbers]
        final = _pad([part["final"] for part in parts])
        features = _pad([part["features"] for part in parts]) if self._features else final
        best = _pad([part["best"] for part in parts]).long()
        moved = [part.to(self._device) for part in (tokens, mask, features, final, best)]
        return Batch(*moved)

    def _sample(self, number: int) -> dict[str, Tensor]:
        shard = number // SHARD_SAMPLES
        if shard not in self._open:
            self._open[shard] = safe_open(self._files[shard], framework="pt")
        file, start = self._open[shard], self._starts[number]
        stop = start + len(self._samples[number])
        names = ("final", "best", "features") if self._features else ("final", "best")
        return {name: file.get_slice(name)[start:stop] for name in names}


def compute(
    target: Target,
    samples: Sequence[Sample],
    taps: Sequence[int],
    folder: Path,
    dtype: torch.dtype,
    say: Say,
    report: Report,
    revision: str | None = None,
) -> None:
    """Write the features of all samples that are not there yet, or not whole; says before how much space and time that
    takes. `revision`: of the target, as it was asked for.

    UserError where the folder holds those of another target, or the disk has no room.
    """
    taps = _claim(folder, target, revision, taps, dtype)
    files = shard_files(folder, samples)
    missing = [shard for shard, file in enumerate(files) if not _is_whole(file, _of_shard(samples, shard))]
    if not missing:
        return
    waiting = sum(len(sample) for shard in missing for sample in _of_shard(samples, shard))
    size = waiting * bytes_per_token(target, taps)
    rate = _measured_rate(target, samples, taps)
    say(f"features of {waiting:,} tokens: {size / 2**20:,.0f} MiB in {folder}, about {duration(waiting / rate)}")
    free = shutil.disk_usage(folder).free
    if size + FREE_SPACE_LEFT > free:
        raise UserError(
            f"{size / 2**20:,.0f} MiB free expected for features in {folder}, found {free / 2**20:,.0f}: give "
            "--features-folder on another disk, or --features live"
        )
    done, start = 0, time.perf_counter()
    for shard in missing:
        tensors = _computed(target, _of_shard(samples, shard), taps, dtype)
        write_atomic(files[shard], save(tensors), PUBLIC)
        done += tensors["best"].shape[0]
        speed = done / (time.perf_counter() - start)
        words = f"features of {done:,} of {waiting:,} tokens, {speed:,.0f} tokens/s"
        report(f"{words}, {duration((waiting - done) / speed)} left", done / waiting)


def _is_whole(file: Path, samples: Sequence[Sample]) -> bool:
    """Whether a shard's file is there as it was written; a full disk or a broken copy can cut it."""
    try:
        with safe_open(file, framework="pt") as shard:
            rows: int = shard.get_slice("best").get_shape()[0]
    except (OSError, SafetensorError):
        return False
    return rows == sum(map(len, samples))


def fingerprint(target: Target) -> str:
    """A name for the target's weights, by a few numbers of every parameter: any training of it changes some of them."""
    digest = hashlib.sha256()
    for name, parameter in target.model.named_parameters():
        values = parameter.data.reshape(-1)
        digest.update(f"{name} {tuple(parameter.shape)} {parameter.dtype}".encode())
        if not values.is_meta:  # those are kept on disk by accelerate, and come when they are needed
            places = torch.arange(SAMPLED, device=values.device) * (len(values) - 1) // (SAMPLED - 1)
            digest.update(values[places].view(torch.uint8).cpu().numpy().tobytes())
    return digest.hexdigest()


def _claim(
    folder: Path, target: Target, revision: str | None, taps: Sequence[int], dtype: torch.dtype
) -> tuple[int, ...]:
    """Make the folder ours, or check that it is; the taps of what is to be written there."""
    settings = {
        "target": target.name,
        "revision": revision,
        "weights": fingerprint(target),
        "target_dtype": str(target.dtype),
        "taps": list(taps),
        "dtype": str(dtype),
        "shard_samples": SHARD_SAMPLES,
    }
    path = folder / SETTINGS
    make_folder(folder)
    for leftover in folder.glob(".*.tmp"):
        leftover.unlink()
    if not path.is_file():
        write_atomic(path, (json.dumps(settings, indent=1) + "\n"), PUBLIC)
        return tuple(taps)
    remedy = "give another --features-folder, or remove that one"
    found = read_object(path, "what features are of", remedy)
    if tuple(taps) == FINAL:
        # Whatever they are, the final states stand beside them.
        settings["taps"] = found.get("taps") or settings["taps"]
    changed = sorted(name for name in settings if settings[name] != found.get(name))
    if changed:
        raise UserError(
            f"features of this run expected in {folder}, found some with another {', '.join(changed)}: {remedy}"
        )
    return tuple(found["taps"])


def _measured_rate(target: Target, samples: Sequence[Sample], taps: Sequence[int]) -> float:
    """Tokens a second of one small forward; the first of two warms up."""
    few = sorted(samples[:16], key=len)[-4:]
    tokens, mask = padded(few)
    for _ in range(2):
        start = time.perf_counter()
        run_target(target, tokens, mask, taps).best.sum().item()
        seconds = time.perf_counter() - start
    return tokens.numel() / seconds


def _computed(target: Target, samples: Sequence[Sample], taps: Sequence[int], dtype: torch.dtype) -> dict[str, Tensor]:
    """Everything of one shard, its samples one after another: [tokens, F], [tokens, H], [tokens]."""
    parts: dict[int, Batch] = {}
    rows: dict[int, int] = {}
    for numbers in _by_length(samples):
        tokens, mask = padded([samples[number] for number in numbers])
        batch = run_target(target, tokens, mask, taps)
        for row, number in enumerate(numbers):
            parts[number], rows[number] = batch, row
    order = range(len(samples))

    def joined(name: str, kind: torch.dtype) -> Tensor:
        cut = [getattr(parts[at], name)[rows[at], : len(samples[at])] for at in order]
        return torch.cat(cut).to(kind).cpu().contiguous()

    tensors = {"final": joined("final", dtype), "best": joined("best", torch.int32)}
    if tuple(taps) != FINAL:
        tensors["features"] = joined("features", dtype)
    return tensors


def _by_length(samples: Sequence[Sample]) -> list[list[int]]:
    groups: list[list[int]] = [[]]
    for number in sorted(range(len(samples)), key=lambda at: len(samples[at])):
        if groups[-1] and len(samples[number]) * (len(groups[-1]) + 1) > FORWARD_TOKENS:
            groups.append([])
        groups[-1].append(number)
    return groups


def _of_shard(samples: Sequence[Sample], shard: int) -> Sequence[Sample]:
    return samples[shard * SHARD_SAMPLES : (shard + 1) * SHARD_SAMPLES]


def _starts(samples: Sequence[Sample]) -> list[int]:
    """First row of every sample in its shard."""
    starts: list[int] = []
    for number in range(len(samples)):
        first = number % SHARD_SAMPLES == 0
        starts.append(0 if first else starts[-1] + len(samples[number - 1]))
    return starts


def shard_files(folder: Path, samples: Sequence[Sample]) -> list[Path]:
    """The file of every stretch of samples."""
    stretches = range(-(-len(samples) // SHARD_SAMPLES))
    return [folder / f"{data_hash(_of_shard(samples, shard))[:24]}.safetensors" for shard in stretches]


def _pad(parts: Sequence[Tensor]) -> Tensor:
    return torch.nn.utils.rnn.pad_sequence(list(parts), batch_first=True)
