"""What can be known of a pair before any weight of the target is read: names, files, and its shape."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig

from eagle_chat.core import hub, registry
from eagle_chat.core.config import LoadConfig
from eagle_chat.core.errors import EagleChatError
from eagle_chat.core.loading import (
    LOADING_ERRORS,
    attention_asked,
    choose_dtype,
    find_entry,
    find_head,
    not_loaded,
    quiet_transformers,
    target_source,
)
from eagle_chat.core.target import Target


@dataclass(frozen=True)
class Names:
    """`source`: arguments for transformers. `folder`: the target's files, None where none are on this machine yet."""

    config: LoadConfig
    entry: registry.Entry | None
    source: dict[str, Any]
    folder: Path | None


@dataclass(frozen=True)
class Shape:
    """The target without weights: its parameters are on "meta". `dtype`: what it would be loaded in."""

    target: Target
    dtype: torch.dtype
    stored_dtype: torch.dtype | None


def names(config: LoadConfig) -> Names:
    """What the options stand for. UserError for a target that is nowhere."""
    entry = find_entry(config.base)
    source = target_source(config, entry)
    return Names(config, entry, source, _folder(source))


def _folder(source: dict[str, Any]) -> Path | None:
    name = source["pretrained_model_name_or_path"]
    if Path(name).is_dir():
        return Path(name)
    from huggingface_hub import try_to_load_from_cache

    found = try_to_load_from_cache(name, "config.json", revision=source.get("revision"))
    return Path(found).parent if isinstance(found, str) else None


def shape(found: Names, device: torch.device, drafts: bool) -> Shape:
    """The target as its config describes it. UserError where transformers or the engine cannot run it."""
    with quiet_transformers():
        try:
            dtype = choose_dtype(found.source, found.config, device, drafts)
            model_config = AutoConfig.from_pretrained(**found.source)
            stored = getattr(model_config.get_text_config(), "dtype", None)  # before the model is given another one
            with torch.device("meta"):
                made: Any = AutoModelForCausalLM.from_config  # it has no types
                model = made(model_config, dtype=dtype, attn_implementation=attention_asked(found.config))
        except LOADING_ERRORS as error:
            raise not_loaded(found.source, error) from error
    with contextlib.suppress(*LOADING_ERRORS):  # a model without one has what its config says
        name, revision = found.source["pretrained_model_name_or_path"], found.source.get("revision", "main")
        model.generation_config = GenerationConfig.from_pretrained(name, revision=revision)
    return Shape(Target(model, found.config.base), dtype, stored if isinstance(stored, torch.dtype) else None)


def head_place(found: Names) -> tuple[str | None, Path | None, EagleChatError | None]:
    """Name and folder of the head; the error instead of the folder where it is nowhere. None: none was asked for."""
    name: str | None = found.config.draft
    try:
        name = find_head(found.config, found.entry)
        return name, hub.head_folder(name, found.config.draft_revision) if name is not None else None, None
    except EagleChatError as error:
        return name, None, error
