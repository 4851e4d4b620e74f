"""From names to a running engine: alias, hub id, folder or GGUF file to target, tokenizer and head."""

from __future__ import annotations

import logging
import os
import pickle
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors import SafetensorError
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from eagle_chat.core import hub, placement, quantization, registry
from eagle_chat.core.architectures import check_by_running, dtype_notes
from eagle_chat.core.chat import Chat
from eagle_chat.core.config import LoadConfig, TreeConfig
from eagle_chat.core.embedded import ensure_embedded
from eagle_chat.core.engine import Engine
from eagle_chat.core.errors import UserError, first_line
from eagle_chat.core.fast_target import best_cpu_dtype
from eagle_chat.core.heads.base import DraftHead
from eagle_chat.core.heads.checkpoint import build_head, check_taps, read_checkpoint
from eagle_chat.core.heads.trimming import trim
from eagle_chat.core.policies import CPU_TREE, embedded_defaults
from eagle_chat.core.target import Target

LOADING_ERRORS = (
    OSError, ValueError, KeyError, RuntimeError, ImportError, AttributeError, SafetensorError, pickle.UnpicklingError,
)  # fmt: skip
"""What transformers raises for a name, a file or a device that is not as it should be."""


def load_engine(config: LoadConfig) -> Engine:
    """Load what `config` names. UserError for wrong names, HeadMismatchError for a head that does not fit."""
    entry = find_entry(config.base)
    source = target_source(config, entry)
    head_name = find_head(config, entry)
    device, device_notes = choose_device(config)
    target = _load_target(source, config, device, drafts=head_name is not None)
    check_by_running(target)
    tokenizer = load_tokenizer(source)
    template = config.template or (entry.template if entry and not tokenizer.chat_template else None)
    chat = Chat(tokenizer, generation_stop_ids(target.model), template, config.thinking)
    placed = placement.placement_notes(placement.placed(target.model))
    notes = [*_security_notes(config), *device_notes, *placed, *dtype_notes(target.config, target.dtype)]
    return _engine(target, chat, head_name, config, notes)


def with_head(engine: Engine, config: LoadConfig, draft: str) -> Engine:
    """Another engine on the same target with the head `draft`, "none" for none: the target's weights are in memory
    once.

    UserError for a wrong name, HeadMismatchError for a head that does not fit.
    """
    return _engine(engine.target, engine.chat, None if draft == "none" else draft, config, [])


def _engine(target: Target, chat: Chat, head_name: str | None, config: LoadConfig, notes: list[str]) -> Engine:
    """An engine for a loaded target, with the head of this name, trimmed where that is asked for."""
    head: DraftHead | None = None
    if head_name is not None:
        head, found = _load_head(head_name, target, config)
        notes = [*notes, *found]
        head.rounds = config.draft_int8
        if config.draft_vocab is not None:
            notes.append(trim(head, target, config.draft_vocab, chat.stop_ids))
    entry = find_entry(config.base)
    embedded = entry is not None and entry.target.startswith("embedded:")
    tree = embedded_defaults(target.device.type) if embedded else _known_tree(head_name, target)
    label = head_name.removeprefix("asset:heads/") if head_name else None
    return Engine(target, chat, head, label, tree, notes)


def _known_tree(head_name: str | None, target: Target) -> TreeConfig | None:
    """The tree that the registry has for a head on an accelerator."""
    known = registry.find_head(head_name) if head_name and target.device.type != "cpu" else None
    return known.tree_config() if known else None


def _security_notes(config: LoadConfig) -> list[str]:
    if not config.trust_remote_code:
        return []
    pinned = "" if config.revision else "; pin what you have read with --revision COMMIT"
    return [f"warning: code from the repository of {config.base} runs with your rights (--trust-remote-code){pinned}"]


def find_entry(base: str) -> registry.Entry | None:
    """What the registry knows of a target's name. UserError for a name that is nothing at all."""
    # An alias means the alias, even where a folder of that name happens to lie in the working directory.
    by_name = registry.is_alias(base) or not _is_local(base)
    return registry.lookup(base) if by_name else None


def find_head_folder(config: LoadConfig) -> Path | None:
    """Where the files of the head are that `config` names, fetched where needed; None for plain decoding."""
    name = find_head(config, find_entry(config.base))
    return None if name is None else hub.head_folder(name, config.draft_revision)


def _is_local(name: str) -> bool:
    path = Path(name).expanduser()
    return path.is_dir() or path.suffix == ".gguf"


def target_source(config: LoadConfig, entry: registry.Entry | None) -> dict[str, Any]:
    """Arguments for transformers' `from_pretrained`: the name, and the file inside it for GGUF."""
    # Said outright: without it transformers would ask on the terminal whether to run the code of a stranger.
    return _named_source(config, entry) | {"trust_remote_code": config.trust_remote_code}


def _named_source(config: LoadConfig, entry: registry.Entry | None) -> dict[str, Any]:
    path = Path(config.base).expanduser()
    if entry is None and path.suffix == ".gguf":
        if not path.is_file():
            raise UserError(f"a GGUF file expected, found none at {path}: check --base")
        return {"pretrained_model_name_or_path": str(path.parent), "gguf_file": path.name}
    if entry is None and path.is_dir():
        return {"pretrained_model_name_or_path": str(path)}
    if entry is None and (config.base.startswith((".", "/", "~")) or config.base.count("/") != 1):
        raise UserError(
            f"a target's folder, GGUF file, alias or hub id expected, found none at {config.base!r}: check --base"
        )
    name = entry.target if entry else config.base
    if name.startswith("embedded:"):
        return {"pretrained_model_name_or_path": str(ensure_embedded())}
    return {"pretrained_model_name_or_path": name, "revision": config.revision or "main"}


def find_head(config: LoadConfig, entry: registry.Entry | None) -> str | None:
    """The head's name: as given, else the alias's own; None for plain decoding. UserError where none is known."""
    if config.draft == "none":
        return None
    name = config.draft or (entry.head if entry else None)
    if name is None:
        raise UserError(
            f"a draft head for {config.base} expected, found none known: give --draft with a folder or hub id, or "
            "--draft none for plain decoding"
        )
    return name


def choose_device(config: LoadConfig) -> tuple[torch.device, list[str]]:
    """The device that was asked for, or the best one that works; with notes for people.

    With a device map: the first of the devices that accelerate will spread over.
    """
    if config.device != "auto":
        if config.device_map is not None:
            raise UserError(
                f"one place for the target expected, found --device {config.device} and --device-map "
                f"{config.device_map}: give only one of the two"
            )
        reason = _unusable(config.device)
        if reason is not None:
            raise UserError(
                f"a device of this machine expected, found {config.device!r} ({reason}): use --device cpu or auto"
            )
        return torch.device(config.device), []
    if torch.cuda.is_available():
        return torch.device("cuda"), []
    if torch.backends.mps.is_available() and not quantization.wanted(config):
        reason = _unusable("mps")
        if reason is None:
            return torch.device("mps"), []
        return torch.device("cpu"), [f"the CPU is used: this machine's MPS device cannot do what is needed ({reason})"]
    return torch.device("cpu"), []


def _unusable(device: str) -> str | None:
    """Why nothing can be decoded on a device; None where it can.

    The noise of sampling is made of 64-bit integers and float64, so that it is the same everywhere. MPS lacks the
    latter.
    """
    try:
        bits = torch.arange(2, dtype=torch.int64, device=device) >> 1
        float((bits.double() @ bits.double()).log1p())
    except (RuntimeError, AssertionError, NotImplementedError, TypeError) as error:
        return first_line(error)
    return None


def _load_target(source: dict[str, Any], config: LoadConfig, device: torch.device, drafts: bool) -> Target:
    arguments: dict[str, Any] = {"attn_implementation": attention_asked(config), **source}
    with quiet_transformers():
        try:
            dtype = arguments["dtype"] = choose_dtype(source, config, device, drafts)
            if quantization.wanted(config):
                arguments["quantization_config"] = quantization.quantization_config(config, dtype, device)
            if config.device_map is not None:
                arguments["device_map"] = config.device_map
            elif device.type == "cuda" or quantization.wanted(config):
                # Straight to where it runs: quantised weights cannot move later, others would pass through main memory.
                arguments["device_map"] = {"": str(device)}
            loaded: Any = AutoModelForCausalLM.from_pretrained(**arguments, output_loading_info=True)
        except LOADING_ERRORS as error:
            raise not_loaded(source, error) from error
    model, report = loaded
    if report["missing_keys"]:  # transformers fills these with random numbers
        missing = ", ".join(sorted(report["missing_keys"])[:5])
        raise UserError(f"every weight of the target expected in its files, found none for {missing}: get it again")
    placement.check_placement(placement.placed(model))
    if "device_map" not in arguments:
        model.to(device)
    target = Target(model, config.base)
    quantization.guard(model)
    return target


def attention_asked(config: LoadConfig) -> str | None:
    """The attention backend as transformers takes it; None: SDPA where the architecture has it."""
    return None if config.attention == "auto" else config.attention


def choose_dtype(source: dict[str, Any], config: LoadConfig, device: torch.device, drafts: bool) -> torch.dtype:
    """The number format that was asked for, else the faster one on a CPU and the stored one elsewhere."""
    if config.dtype != "auto":
        dtype: torch.dtype = getattr(torch, config.dtype)
        return dtype
    model_config = AutoConfig.from_pretrained(**source).get_text_config()
    if device.type == "cpu":
        rows = CPU_TREE.total_tokens if drafts and CPU_TREE.total_tokens else 1
        return best_cpu_dtype(model_config, rows)
    stored = getattr(model_config, "dtype", None)
    return stored if isinstance(stored, torch.dtype) else torch.float16


def load_tokenizer(source: dict[str, Any]) -> Any:
    """The target's tokenizer. UserError where it cannot be loaded."""
    with quiet_transformers():
        try:
            return AutoTokenizer.from_pretrained(**source)
        except LOADING_ERRORS as error:
            raise not_loaded(source, error) from error


def _load_head(name: str, target: Target, config: LoadConfig) -> tuple[DraftHead, list[str]]:
    taps = check_taps(config.taps, target.num_layers) if config.taps else None
    return build_head(read_checkpoint(hub.head_folder(name, config.draft_revision)), target, taps)


def generation_stop_ids(model: Any) -> list[int]:
    """The model's own stop ids: one, several or none."""
    eos = getattr(getattr(model, "generation_config", None), "eos_token_id", None)
    if eos is None:
        return []
    return list(eos) if isinstance(eos, list) else [eos]


def not_loaded(source: dict[str, Any], error: Exception) -> UserError:
    """What a library's error means for the person who gave the name."""
    name = source["pretrained_model_name_or_path"]
    reason, remedy = first_line(error), "check --base" if Path(name).exists() else hub.remedy(error)
    if isinstance(error, pickle.UnpicklingError):  # torch's own advice there is to run what the file holds
        reason, remedy = "a file holds objects that are not tensors, or is damaged", "get a copy with safetensors"
    if "trust_remote_code" in str(error):
        reason, remedy = "its code is in its own repository", "read it there, then give --trust-remote-code to run it"
    if os.environ.get("HF_HUB_OFFLINE") and not Path(name).exists():
        remedy += " (HF_HUB_OFFLINE is set)"
    return UserError(f"the target {name} could not be loaded ({reason}): {remedy}")


class quiet_transformers:  # noqa: N801  a context manager, used like a function
    """Keeps transformers' progress bars and advice out of the terminal while something loads."""

    def __enter__(self) -> None:
        self._level = transformers.logging.get_verbosity()
        transformers.logging.set_verbosity(logging.ERROR)
        transformers.utils.logging.disable_progress_bar()  # type: ignore[no-untyped-call]

    def __exit__(self, *_: object) -> None:
        transformers.logging.set_verbosity(self._level)
        transformers.utils.logging.enable_progress_bar()  # type: ignore[no-untyped-call]
