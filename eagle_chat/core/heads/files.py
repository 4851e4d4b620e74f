"""Reading a head's files: strict about what they hold, forgiving about how their writers named it."""

from __future__ import annotations

import json
import pickle
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from pydantic import BaseModel, Field, ValidationError
from safetensors.torch import load_file
from torch import Tensor

from eagle_chat.core.errors import HeadMismatchError, UserError, first_line

TAP_IDS = "eagle_aux_hidden_state_layer_ids"


class _EagleConfig(BaseModel):
    eagle_aux_hidden_state_layer_ids: list[int] | None = None
    norm_before_residual: bool | None = None
    norm_before_fc: bool | None = None
    fc_norm: bool | None = None
    norm_output: bool | None = None


class _HeadConfig(_EagleConfig):
    """The fields of a head's config that are read here, and what they may be. Others are left alone."""

    num_attention_heads: int = Field(ge=1)
    rms_norm_eps: float = Field(default=1e-6, ge=0)
    max_position_embeddings: int | None = Field(default=None, ge=1)
    hidden_act: Literal["silu", "gelu", "gelu_new", "gelu_pytorch_tanh", "relu"] = "silu"
    rope_theta: float | None = Field(default=None, gt=0)
    rope_scaling: dict[str, Any] | None = None
    rope_parameters: dict[str, Any] | None = None
    eagle_config: _EagleConfig | None = None


@dataclass(frozen=True)
class Checkpoint:
    """A head's files as read: `config` and `tensors` under the names of this package."""

    config: dict[str, Any]
    tensors: dict[str, Tensor]


def read_checkpoint(folder: Path) -> Checkpoint:
    """Config and tensors of a head's folder; safetensors before `.bin`. UserError where they cannot be read."""
    config = _read_config(folder / "config.json")
    return Checkpoint(config, {_canonical(name): value for name, value in _read_tensors(folder).items()})


def _read_config(file: Path) -> dict[str, Any]:
    if not file.is_file():
        raise UserError(f"a head's folder with config.json expected, found none in {file.parent}: check --draft")
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"{file} is not JSON ({error}): get the checkpoint again") from error
    if not isinstance(config, dict):
        raise UserError(f"{file} must hold an object, found {type(config).__name__}: get the checkpoint again")
    nested = config.pop("transformer_layer_config", None)
    return {**nested, **config} if isinstance(nested, dict) else config


def check_config(config: dict[str, Any]) -> None:
    """HeadMismatchError naming the first field of a head's config that cannot be what it says."""
    try:
        _HeadConfig.model_validate(config)
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(str(part) for part in first["loc"])
        found = "" if first["type"] == "missing" else f", found {first['input']!r}"
        raise HeadMismatchError(
            f"the head's config.json is wrong at {field}: {first['msg']}{found}; get the checkpoint again"
        ) from error


def _read_tensors(folder: Path) -> dict[str, Tensor]:
    names = (f"{name}{end}" for name in ("model.safetensors", "pytorch_model.bin") for end in ("", ".index.json"))
    path = next((folder / name for name in names if (folder / name).is_file()), None)
    if path is None:
        raise UserError(f"model.safetensors or pytorch_model.bin expected in {folder}, found neither: check --draft")
    try:
        found = _read_parts(path) if path.suffix == ".json" else _read_file(path)
    except Exception as error:  # a damaged pickle raises whatever it happens to spell
        reason = first_line(error)
        if isinstance(error, pickle.UnpicklingError):  # torch's own advice there is to run what the file holds
            reason = "it holds objects that are not tensors, or is damaged"
        raise UserError(f"{path} cannot be read as plain tensors ({reason}): get the checkpoint again") from error
    if not isinstance(found, dict) or not all(isinstance(value, Tensor) for value in found.values()):
        raise UserError(f"{path} must hold tensors by name, found something else: get the checkpoint again")
    return found


def _read_file(path: Path) -> Any:
    """What a file of weights holds. Pickles are read as plain tensors only."""
    if path.suffix == ".safetensors":
        return load_file(path)
    return torch.load(path, map_location="cpu", weights_only=True)


def _read_parts(index: Path) -> dict[str, Tensor]:
    """The tensors of all the parts that an index names, which lie beside it."""
    names = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
    strange = [name for name in names if Path(name).name != name]
    if strange:
        raise ValueError(f"parts in the same folder expected, found {strange[0]!r}")
    return {name: value for part in sorted(names) for name, value in _read_file(index.parent / part).items()}


def _canonical(name: str) -> str:
    """One name for a tensor whatever prefix its writer used."""
    name = name.removeprefix("model.")
    for old, new in (("input_norm.", "fc_norm.0."), ("fc_norm.weight", "fc_norm.0.weight")):
        if name.startswith(old):
            name = name.replace(old, new, 1)
    return name
