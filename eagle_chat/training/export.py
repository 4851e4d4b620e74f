"""A trained head in the published layout: `config.json`, `model.safetensors`, and a card.

The layout is the one that the authors' code, vLLM, SGLang and `core.heads.checkpoint` read.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors.torch import save
from torch import Tensor

from eagle_chat.core.errors import UserError
from eagle_chat.core.files import PUBLIC, make_folder, read_object, write_atomic
from eagle_chat.core.heads.spec import HeadSpec, default_taps
from eagle_chat.core.target import Target
from eagle_chat.training.card import card
from eagle_chat.training.checkpoints import BEST, LAST, RunFolder
from eagle_chat.training.speculators import speculators_config, speculators_tensors

Layout = Literal["published", "speculators"]
CHAIN = 3
"""Drafted tokens a step, where nothing else is said."""


def target_facts(target: Target, revision: str | None) -> dict[str, Any]:
    """What a head's config and card say about its target, as JSON-ready values."""
    config: Any = target.config
    eos = getattr(config, "eos_token_id", None)
    return {
        "name": target.name,
        "revision": revision,
        "architecture": type(target.model).__name__,
        "dtype": str(target.dtype).removeprefix("torch."),
        "layers": target.num_layers,
        "vocab_size": target.vocab_size,
        "bos_token_id": getattr(config, "bos_token_id", None),
        "eos_token_id": eos[0] if isinstance(eos, list) and eos else eos,
        "pad_token_id": getattr(config, "pad_token_id", None),
    }


def export(
    run: Path,
    out: Path,
    weights: str = BEST,
    figures: Mapping[str, Any] | None = None,
    layout: Layout = "published",
    chain: int = CHAIN,
) -> dict[str, Any]:
    """Write the head of a run's folder into `out`; what was exported, for people.

    `weights`: `BEST` by validation, or `LAST`. `figures`: results of `evaluate` for the card. `chain`: drafted tokens a
    step, which the layout "speculators" holds. UserError where the run has no such weights, or
    `out` is its folder.
    """
    if out.resolve() == run.resolve():
        raise UserError(
            f"a folder for the head beside that of the run expected, found {out} for both: give another --out"
        )
    folder = RunFolder(run)
    told = folder.read()
    path = run / weights
    if weights == BEST and not path.is_file():
        path = run / LAST  # nothing was held out, or no validation was reached yet
    if told is None or not path.is_file():
        raise UserError(
            f"a training run with {weights} expected in {run}, found none: run `eagle-chat train fit` first"
        )
    saved = folder.load(path)
    spec = HeadSpec(**{**saved["spec"], "taps": tuple(saved["spec"]["taps"])})
    tensors = published_tensors(spec, saved["weights"], saved["draft_ids"], told["target"]["vocab_size"])
    config = published_config(spec, told["target"])
    if layout == "speculators":
        tensors, config = speculators_tensors(tensors), speculators_config(spec, config, told["target"], chain)
    make_folder(out)
    write_atomic(out / "model.safetensors", save(tensors, {"format": "pt"}), PUBLIC)
    write_atomic(out / "config.json", (json.dumps(config, indent=1) + "\n"), PUBLIC)
    write_atomic(out / "README.md", card(spec, told, saved, folder.curve(), figures), PUBLIC)
    return {"folder": str(out), "step": saved["step"], "parameters": sum(value.numel() for value in tensors.values())}


def published_tensors(
    spec: HeadSpec, weights: Mapping[str, Tensor], draft_ids: Tensor | None, vocab_size: int
) -> dict[str, Tensor]:
    """Weights in bfloat16; for an eagle3 head also `d2t` int64 [Vd] (offsets) and `t2d` bool [V]."""
    tensors = {name: value.to(torch.bfloat16).contiguous() for name, value in weights.items()}
    if spec.architecture == "eagle3":
        ids = torch.arange(vocab_size) if draft_ids is None else draft_ids.cpu().long()
        tensors["d2t"] = ids - torch.arange(ids.shape[0])
        tensors["t2d"] = torch.zeros(vocab_size, dtype=torch.bool).index_fill_(0, ids, True)
    return tensors


def published_config(spec: HeadSpec, target: Mapping[str, Any]) -> dict[str, Any]:
    """The `config.json` of a head."""
    rope = dict(spec.rope)
    config: dict[str, Any] = {
        "architectures": ["LlamaForCausalLMEagle3" if spec.architecture == "eagle3" else "LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_act": spec.hidden_act,
        "hidden_size": spec.hidden_size,
        "intermediate_size": spec.intermediate_size,
        "num_attention_heads": spec.num_heads,
        "num_key_value_heads": spec.num_kv_heads,
        "head_dim": spec.head_dim,
        "num_hidden_layers": spec.num_layers,
        "rms_norm_eps": spec.rms_norm_eps,
        "rope_theta": rope.pop("rope_theta"),
        "vocab_size": target["vocab_size"],
        "max_position_embeddings": spec.max_positions,
        "tie_word_embeddings": False,
        **{name: target[name] for name in ("pad_token_id", "bos_token_id", "eos_token_id") if target[name] is not None},
        "torch_dtype": "bfloat16",
        "bias": spec.fc_bias,
        "attention_bias": spec.attention_bias,
        "mlp_bias": spec.mlp_bias,
    }
    if rope.get("rope_type", "default") != "default":
        config["rope_scaling"] = rope
    if spec.architecture == "eagle3":
        config["draft_vocab_size"] = spec.draft_vocab_size
        if spec.taps != default_taps(target["layers"]):  # in the config's root: id i is the input of layer i
            config["eagle_aux_hidden_state_layer_ids"] = list(spec.taps)
        # One norm over all taps and one for each have different names in vLLM.
        flags = {"norm_before_fc": spec.num_fc_norms == 1, "fc_norm": spec.num_fc_norms > 1}
        flags["norm_output"] = spec.norm_output
        flags["norm_before_residual"] = spec.norm_before_residual
        config |= {name: True for name, on in flags.items() if on}
    return config


def read_figures(path: Path) -> dict[str, Any]:
    """The output of `evaluate --json` as lines for a card. UserError where it is not that."""
    read = read_object(path, "the output of `train evaluate --json`", "make it again")
    figures: dict[str, Any] = {}
    for name, value in read.items():
        inner = value.items() if isinstance(value, dict) else [(None, value)]
        figures |= {f"{name}, {part}" if part else name: figure for part, figure in inner if figure is not None}
    return figures
