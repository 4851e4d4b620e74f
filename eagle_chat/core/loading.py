"""From names to a running engine: alias, hub id, folder or GGUF file to target, tokenizer and head."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors import SafetensorError
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from eagle_chat.core import registry
from eagle_chat.core.assets import asset_path
from eagle_chat.core.chat import Chat
from eagle_chat.core.config import LoadConfig
from eagle_chat.core.embedded import ensure_embedded
from eagle_chat.core.engine import Engine
from eagle_chat.core.errors import UserError
from eagle_chat.core.heads.base import DraftHead
from eagle_chat.core.heads.checkpoint import build_head, check_taps, read_checkpoint
from eagle_chat.core.machine import best_cpu_dtype
from eagle_chat.core.policies import CPU_TREE
from eagle_chat.core.target import Target

LOADING_ERRORS = (OSError, ValueError, KeyError, RuntimeError, SafetensorError)
"""What transformers raises for a name, a file or a device that is not as it should be."""
HEAD_FILES = ("config.json", "*.safetensors", "pytorch_model.bin")


def load_engine(config: LoadConfig) -> Engine:
    """Load what `config` names. UserError for wrong names, HeadMismatchError for a head that does not fit."""
    # An alias means the alias, even where a folder of that name happens to lie in the working directory.
    by_name = config.base in registry.entries() or not _is_local(config.base)
    entry = registry.lookup(config.base) if by_name else None
    source = _target_source(config, entry)
    head_name = _head_name(config, entry)
    device = _device(config.device)
    target = _load_target(source, config, device, drafts=head_name is not None)
    tokenizer = _load_tokenizer(source)
    template = config.template or (entry.template if entry and not tokenizer.chat_template else None)
    chat = Chat(tokenizer, _generation_stop_ids(target.model), template)
    head, notes = (None, []) if head_name is None else _load_head(head_name, target, config)
    return Engine(target, chat, head, _label(head_name), None, notes)


def change_head(engine: Engine, name: str, config: LoadConfig) -> Engine:
    """An engine on the same target with another head (a folder, a hub id, "none"). Errors as in `load_engine`."""
    if name == "none":
        return Engine(engine.target, engine.chat)
    head, notes = _load_head(name, engine.target, config)
    return Engine(engine.target, engine.chat, head, _label(name), None, notes)


def _label(head_name: str | None) -> str | None:
    return head_name.removeprefix("asset:heads/") if head_name else None


def _is_local(name: str) -> bool:
    path = Path(name).expanduser()
    return path.is_dir() or path.suffix == ".gguf"


def _target_source(config: LoadConfig, entry: registry.Entry | None) -> dict[str, Any]:
    """Arguments for transformers' `from_pretrained`: the name, and the file inside it for GGUF."""
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


def _head_name(config: LoadConfig, entry: registry.Entry | None) -> str | None:
    if config.draft == "none":
        return None
    name = config.draft or (entry.head if entry else None)
    if name is None:
        raise UserError(
            f"a draft head for {config.base} expected, found none known: give --draft with a folder or hub id, or "
            "--draft none for plain decoding"
        )
    return name


def _device(asked: str) -> torch.device:
    if asked != "auto":
        try:
            device = torch.device(asked)
            torch.empty(1, device=device)
        except (RuntimeError, AssertionError, NotImplementedError) as error:
            raise UserError(f"a device of this machine expected, found {asked!r}: use --device cpu or auto") from error
        return device
    if torch.cuda.is_available():
        return torch.device("cuda")
    return torch.device("mps" if torch.backends.mps.is_available() else "cpu")


def _load_target(source: dict[str, Any], config: LoadConfig, device: torch.device, drafts: bool) -> Target:
    arguments: dict[str, Any] = {"attn_implementation": config.attention, **source}
    if config.load_in_8bit or config.load_in_4bit:
        from eagle_chat.core.quantization import quantization_config

        arguments["quantization_config"] = quantization_config(config)
    if config.device_map is not None:
        arguments["device_map"] = config.device_map
    with _quiet_transformers():
        try:
            arguments["dtype"] = _dtype(source, config, device, drafts)
            loaded: Any = AutoModelForCausalLM.from_pretrained(**arguments, output_loading_info=True)
        except LOADING_ERRORS as error:
            raise _not_loaded(source, error) from error
    model, report = loaded
    if report["missing_keys"]:  # transformers fills these with random numbers
        missing = ", ".join(sorted(report["missing_keys"])[:5])
        raise UserError(f"every weight of the target expected in its files, found none for {missing}: get it again")
    if config.device_map is None and not (config.load_in_8bit or config.load_in_4bit):
        model.to(device)
    return Target(model, config.base)


def _dtype(source: dict[str, Any], config: LoadConfig, device: torch.device, drafts: bool) -> torch.dtype:
    if config.dtype != "auto":
        dtype: torch.dtype = getattr(torch, config.dtype)
        return dtype
    model_config = AutoConfig.from_pretrained(**source).get_text_config()
    if device.type == "cpu":
        rows = CPU_TREE.total_tokens if drafts and CPU_TREE.total_tokens else 1
        return best_cpu_dtype(model_config.hidden_size, model_config.intermediate_size, rows)
    stored = getattr(model_config, "dtype", None)
    return stored if isinstance(stored, torch.dtype) else torch.float16


def _load_tokenizer(source: dict[str, Any]) -> Any:
    with _quiet_transformers():
        try:
            return AutoTokenizer.from_pretrained(**source)
        except LOADING_ERRORS as error:
            raise _not_loaded(source, error) from error


def _load_head(name: str, target: Target, config: LoadConfig) -> tuple[DraftHead, list[str]]:
    taps = check_taps(config.taps, target.num_layers) if config.taps else None
    return build_head(read_checkpoint(_head_folder(name)), target, taps)


def _head_folder(name: str) -> Path:
    if name.startswith("asset:"):
        return asset_path(*name.removeprefix("asset:").split("/"))
    path = Path(name).expanduser()
    if path.is_dir():
        return path
    if name.count("/") != 1 or name.startswith((".", "/", "~")):
        raise UserError(f"a head's folder or hub id expected, found {name!r}: check --draft")
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    try:
        return Path(snapshot_download(name, allow_patterns=list(HEAD_FILES)))
    except (HfHubHTTPError, LocalEntryNotFoundError, OSError) as error:
        reason = str(error).splitlines()[0]
        raise UserError(f"the head {name} could not be fetched ({reason}): check --draft and the network") from error


def _generation_stop_ids(model: Any) -> list[int]:
    """The model's own stop ids: one, several or none."""
    eos = getattr(getattr(model, "generation_config", None), "eos_token_id", None)
    if eos is None:
        return []
    return list(eos) if isinstance(eos, list) else [eos]


def _not_loaded(source: dict[str, Any], error: Exception) -> UserError:
    name = source["pretrained_model_name_or_path"]
    reason = next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
    remedy = "check --base" if Path(name).exists() else "check --base and the network"
    if os.environ.get("HF_HUB_OFFLINE") and not Path(name).exists():
        remedy += " (HF_HUB_OFFLINE is set)"
    return UserError(f"the target {name} could not be loaded ({reason}): {remedy}")


class _quiet_transformers:  # noqa: N801  a context manager, used like a function
    """Keeps transformers' progress bars and advice out of the terminal while something loads."""

    def __enter__(self) -> None:
        self._level = transformers.logging.get_verbosity()
        transformers.logging.set_verbosity(logging.ERROR)
        transformers.utils.logging.disable_progress_bar()  # type: ignore[no-untyped-call]

    def __exit__(self, *_: object) -> None:
        transformers.logging.set_verbosity(self._level)
        transformers.utils.logging.enable_progress_bar()  # type: ignore[no-untyped-call]
