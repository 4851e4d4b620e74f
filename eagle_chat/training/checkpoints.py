"""A run's folder: what it was told, its curve, and checkpoints from which it goes on exactly."""

from __future__ import annotations

import dataclasses
import io
import json
import pickle
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from eagle_chat.core.errors import UserError, first_line
from eagle_chat.core.files import PUBLIC, read_object, write_atomic
from eagle_chat.training.config import FREE_TO_CHANGE, TrainConfig

RUN, CURVE, BEST, LAST = "run.json", "curve.jsonl", "best.pt", "last.pt"
_CHECKPOINT = re.compile(r"checkpoint-(\d+)\.pt")
_OF_CHECKPOINT = {"weights", "optimiser", "position", "average", "scaler", "draft_ids"}
_OF_WEIGHTS = {"weights", "spec", "draft_ids", "step", "answer_tokens", "seconds"}
# What torch.load raises for bytes that are none of its own: it depends on where it stumbles.
_BROKEN = (OSError, RuntimeError, EOFError, LookupError, ValueError, TypeError, AttributeError, pickle.UnpicklingError)


@dataclasses.dataclass
class Position:
    """Where a run stands: optimiser steps done, and the next batch of its data. Noise is keyed by the step, so there
    is no generator state to keep."""

    step: int = 0
    epoch: int = 0
    batch: int = 0
    tokens: int = 0
    seconds: float = 0.0
    best_tau: float = 0.0


class RunFolder:
    """Reads and writes a run's files; every file is replaced whole."""

    def __init__(self, folder: Path) -> None:
        self.path = folder

    def open(self, config: TrainConfig, facts: Mapping[str, Any]) -> None:
        """Begin a run, or check that it is the same: config and `facts` (hash of the data, draft vocabulary).

        UserError naming what differs.
        """
        wanted = {"config": dataclasses.asdict(config), **facts}
        wanted = json.loads(json.dumps(wanted))
        found = self.read()
        if found is not None:
            self._compare(found, wanted)
            for leftover in self.path.glob(".*.tmp"):
                leftover.unlink()
        write_atomic(self.path / RUN, (json.dumps(wanted, indent=1) + "\n"), PUBLIC)

    def read(self) -> dict[str, Any] | None:
        """What a run was told, or None where there is none."""
        path = self.path / RUN
        if not path.is_file():
            return None
        what, remedy = "the settings of a run", "give another --out, or take the file from a copy of the run"
        found = read_object(path, what, remedy)
        if not all(isinstance(found.get(name), dict) for name in ("config", "target")):
            raise UserError(f"{what} expected in {path}, found JSON without config and target: {remedy}")
        return found

    def _compare(self, found: dict[str, Any], wanted: dict[str, Any]) -> None:
        old, new = found["config"], wanted["config"]
        fixed = [name for name in new if name not in FREE_TO_CHANGE]
        # What is off may be False, or not said, in a run that an earlier version began.
        differ = [name for name in fixed if (old.get(name) or None) != (new[name] or None)]
        changed = [f"{name} {old.get(name)!r} (now {new[name]!r})" for name in differ]
        changed += [name for name in ("data", "validation_data") if found.get(name) != wanted.get(name)]
        if changed:
            raise UserError(
                f"the run in {self.path} was begun with {', '.join(changed)}: use the same, or another --out"
            )

    def newest(self) -> dict[str, Any] | None:
        """The newest checkpoint's content, or None."""
        numbered = self._numbered()
        return self.load(numbered[-1]) if numbered else None

    def load(self, path: Path) -> dict[str, Any]:
        """A checkpoint or a set of weights. UserError where it cannot be read."""
        content: Any = None
        try:
            content = torch.load(path, map_location="cpu", weights_only=True)
        except _BROKEN as error:
            reason = first_line(error)
        else:
            wanted = _OF_CHECKPOINT if _CHECKPOINT.fullmatch(path.name) else _OF_WEIGHTS
            missing = wanted - content.keys() if isinstance(content, dict) else wanted
            reason = f"no {', '.join(sorted(missing))}" if missing else ""
        if reason:
            raise UserError(
                f"a file of this program's training expected at {path}, found another or a broken one ({reason}): "
                "remove it, and the run goes on from what is left"
            )
        read: dict[str, Any] = content
        return read

    def save(self, content: Mapping[str, Any], step: int, keep: int) -> None:
        """Write checkpoint `step` and drop all but the newest `keep`."""
        write_atomic(self.path / f"checkpoint-{step:08d}.pt", _serialised(content), PUBLIC)
        for old in self._numbered()[:-keep]:
            old.unlink()

    def save_weights(self, name: str, content: Mapping[str, Any]) -> None:
        """Write a head's weights alone, as `BEST` or `LAST`."""
        write_atomic(self.path / name, _serialised(content), PUBLIC)

    def _numbered(self) -> list[Path]:
        return sorted(path for path in self.path.glob("checkpoint-*.pt") if _CHECKPOINT.fullmatch(path.name))

    def add_to_curve(self, row: Mapping[str, Any]) -> None:
        """One more line of the curve."""
        with (self.path / CURVE).open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")

    def curve(self) -> list[dict[str, Any]]:
        """Every whole line of the curve. A kill can tear the last one."""
        path = self.path / CURVE
        lines = path.read_bytes().split(b"\n") if path.is_file() else []
        return [row for row in map(_whole_row, lines) if row is not None]

    def cut_curve(self, step: int) -> None:
        """Forget what the curve tells of steps that a resumed run will do again."""
        rows = [row for row in self.curve() if row["step"] <= step]
        write_atomic(self.path / CURVE, "".join(json.dumps(row) + "\n" for row in rows), PUBLIC)


def _whole_row(line: bytes) -> dict[str, Any] | None:
    try:
        row = json.loads(line)
    except ValueError:
        return None
    return row if isinstance(row, dict) else None


def _serialised(content: Mapping[str, Any]) -> bytes:
    buffer = io.BytesIO()
    torch.save(dict(content), buffer)
    return buffer.getvalue()
