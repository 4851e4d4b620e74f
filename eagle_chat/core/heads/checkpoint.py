"""From a head's files to the head. The weights say what it is; the config adds the rest."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from eagle_chat.core.errors import HeadMismatchError
from eagle_chat.core.heads.base import DraftHead
from eagle_chat.core.heads.eagle import EagleHead
from eagle_chat.core.heads.eagle3 import Eagle3Head
from eagle_chat.core.heads.files import TAP_IDS, Checkpoint, check_config, read_checkpoint
from eagle_chat.core.heads.spec import HeadSpec, default_taps, rope_parameters
from eagle_chat.core.heads.variants import (
    check_attention,
    check_flags,
    check_matrices,
    check_surplus,
    flag,
    lacking,
)
from eagle_chat.core.heads.vocabulary import draft_ids
from eagle_chat.core.target import Target

__all__ = ["Checkpoint", "architecture_of", "build_head", "check_taps", "read_checkpoint"]


def architecture_of(tensors: dict[str, Tensor]) -> str:
    """ "eagle" or "eagle3", from the tensors' names. HeadMismatchError where they are neither's."""
    if "fc.weight" not in tensors:
        if any(name.startswith("layers.1.") for name in tensors):
            raise HeadMismatchError("a draft head expected, found a whole model (no fc.weight): check --draft")
        raise HeadMismatchError("a draft head expected, but the tensor fc.weight is missing: get the checkpoint again")
    of_eagle3 = any(name.startswith("midlayer.") or name.endswith("hidden_norm.weight") for name in tensors)
    return "eagle3" if of_eagle3 else "eagle"


def build_head(
    checkpoint: Checkpoint, target: Target, taps: tuple[int, int, int] | None = None
) -> tuple[DraftHead, list[str]]:
    """The head for this target, in its dtype, on its last device; and notes for people (surplus tensors).

    HeadMismatchError where it does not fit, naming what was expected and found.
    """
    tensors = dict(checkpoint.tensors)
    architecture = architecture_of(tensors)
    check_config(checkpoint.config)
    check_matrices(tensors, ["fc.weight"])
    notes = check_flags(architecture, checkpoint.config)
    if architecture == "eagle3":
        tensors = {_as_midlayer(name): value for name, value in tensors.items()}
    spec = _spec(architecture, checkpoint.config, tensors, target, taps)
    d2t, t2d = tensors.pop("d2t", None), tensors.pop("t2d", None)
    if spec.shares_lm_head:
        notes.append("the head's file has no LM head: the target's is used")
    ids = None
    if architecture == "eagle3":
        ids = draft_ids(d2t, t2d, spec.draft_vocab_size, target.vocab_size)
    _check_rope(spec)
    with torch.device("meta"):
        head_class = Eagle3Head if architecture == "eagle3" else EagleHead
        head = head_class(spec, target.embed, target.lm_head)
    notes += _fill(head, tensors)
    # The rotary tables are computed, not stored: made anew off "meta", and after `to` so that they stay in float32.
    rotary = type(head.rotary)(spec.llama_config())
    head.rotary, head.draft_ids = rotary, ids
    head = head.to(device=target.device, dtype=target.dtype).eval()
    head.rotary = type(rotary)(spec.llama_config()).to(target.device)
    head.table = target.embedding_table
    return head, notes


def _check_rope(spec: HeadSpec) -> None:
    """HeadMismatchError where the kind of RoPE lacks a parameter or cannot use one."""
    try:
        LlamaRotaryEmbedding(spec.llama_config())
    except (KeyError, TypeError, ValueError, AttributeError, ZeroDivisionError, RuntimeError) as error:
        raise HeadMismatchError(
            f"complete parameters of RoPE expected in the head's config, found {spec.rope} "
            f"({type(error).__name__}: {' '.join(str(error).split())[:100]}): get the checkpoint again"
        ) from error


def _as_midlayer(name: str) -> str:
    return name.replace("layers.0.", "midlayer.", 1) if name.startswith("layers.0.") else name


def _fill(head: DraftHead, tensors: dict[str, Tensor]) -> list[str]:
    """Put the tensors in place; names of surplus ones as notes, HeadMismatchError for missing or misshapen ones."""
    wanted = head.state_dict()
    surplus = set(tensors) - set(wanted)
    if missing := set(wanted) - set(tensors):
        raise lacking(missing, surplus)
    for name, parameter in wanted.items():
        if tensors[name].shape != parameter.shape:
            raise HeadMismatchError(
                f"{name} of shape {tuple(parameter.shape)} expected, found {tuple(tensors[name].shape)}: "
                "this head was made for another target"
            )
        if not tensors[name].is_floating_point():
            raise HeadMismatchError(f"{name} of floating-point numbers expected, found {tensors[name].dtype}")
    notes = check_surplus(surplus)
    head.load_state_dict({name: tensors[name] for name in wanted}, assign=True)
    return notes


def _spec(
    architecture: str,
    config: dict[str, Any],
    tensors: dict[str, Tensor],
    target: Target,
    taps: tuple[int, int, int] | None,
) -> HeadSpec:
    layer = "midlayer." if architecture == "eagle3" else "layers.0."
    essential = [f"{layer}self_attn.{p}_proj.weight" for p in "qkvo"] + [f"{layer}mlp.gate_proj.weight"]
    shares_lm_head = architecture == "eagle3" and _shares_lm_head(config, tensors, target)
    if architecture == "eagle3":
        essential += ["norm.weight"] if shares_lm_head else ["lm_head.weight", "norm.weight"]
    missing = [name for name in essential if name not in tensors]
    if missing:
        others = {name for name in tensors if ".mlp." in name or ".self_attn." in name}
        raise lacking(missing, others - set(essential))
    _refuse_unknown_variants(architecture, config, tensors)
    own_embedding = "embed_tokens.weight" in tensors
    check_matrices(tensors, [*essential[:5], *({"lm_head.weight", "embed_tokens.weight"} & tensors.keys())])
    query, key = (tensors[f"{layer}self_attn.{p}_proj.weight"] for p in "qk")
    hidden, fc_in = tensors["fc.weight"].shape
    num_heads = int(config["num_attention_heads"])
    check_attention(num_heads, query.shape[0], key.shape[0])
    head_dim = query.shape[0] // num_heads
    if own_embedding and tensors["embed_tokens.weight"].shape[0] < target.vocab_size:
        raise HeadMismatchError(
            f"embeddings of the target's {target.vocab_size} tokens expected in the head's file, found "
            f"{tensors['embed_tokens.weight'].shape[0]}: this head was made for another target"
        )
    rope = rope_parameters(config)
    if rope["rope_type"] not in ("default", *ROPE_INIT_FUNCTIONS):
        raise HeadMismatchError(f"a known rope_type expected in the head's config, found {rope['rope_type']!r}")
    embedding = tensors["embed_tokens.weight"].shape[1] if own_embedding else target.hidden_size
    spec = HeadSpec(
        architecture="eagle",
        hidden_size=hidden,
        embedding_size=embedding,
        feature_size=fc_in - embedding,
        intermediate_size=tensors[f"{layer}mlp.gate_proj.weight"].shape[0],
        num_heads=num_heads,
        num_kv_heads=key.shape[0] // head_dim,
        head_dim=head_dim,
        num_layers=sum(name.endswith("self_attn.q_proj.weight") for name in tensors),
        vocab_size=tensors["embed_tokens.weight"].shape[0] if own_embedding else target.vocab_size,
        draft_vocab_size=target.vocab_size,
        rms_norm_eps=float(config.get("rms_norm_eps", 1e-6)),
        rope=rope,
        max_positions=int(config.get("max_position_embeddings") or target.context_limit),
        hidden_act=config.get("hidden_act", "silu"),
        fc_bias="fc.bias" in tensors,
        attention_bias=f"{layer}self_attn.q_proj.bias" in tensors,
        output_bias=f"{layer}self_attn.o_proj.bias" in tensors,
        mlp_bias=f"{layer}mlp.gate_proj.bias" in tensors,
        own_embedding=own_embedding,
    )
    if architecture == "eagle":
        return _checked_eagle(spec, target)
    chosen = taps or _taps(config, target)
    spec = replace(
        spec,
        architecture="eagle3",
        feature_size=fc_in,
        draft_vocab_size=target.vocab_size if shares_lm_head else tensors["lm_head.weight"].shape[0],
        shares_lm_head=shares_lm_head,
        taps=chosen,
        num_fc_norms=sum(name.startswith("fc_norm.") for name in tensors),
        norm_before_residual=bool(flag(config, "norm_before_residual")),
        norm_output=bool(flag(config, "norm_output")),
    )
    return _checked_eagle3(spec, query.shape[1], target)


def _shares_lm_head(config: dict[str, Any], tensors: dict[str, Tensor], target: Target) -> bool:
    """Whether a head without an LM head is meant to take the target's: nothing names a draft vocabulary (SGLang's rule;
    nvidia/gpt-oss-120b-Eagle3 is of this kind), and its hidden states have the target's size."""
    if {"lm_head.weight", "d2t", "t2d"} & tensors.keys() or config.get("tie_word_embeddings"):
        return False
    named = config.get("draft_vocab_size") not in (None, target.vocab_size)
    return not named and tensors["fc.weight"].shape[0] == target.hidden_size


def _refuse_unknown_variants(architecture: str, config: dict[str, Any], tensors: dict[str, Tensor]) -> None:
    layers = {name.split(".")[1] for name in tensors if name.startswith("layers.")}
    if architecture == "eagle3" and layers:
        raise HeadMismatchError(
            f"an eagle3 head of one layer expected, found further layers {', '.join(sorted(layers))}: not supported"
        )
    norms = sum(name.startswith("fc_norm.") for name in tensors)
    asked = [name for name in ("norm_before_fc", "fc_norm") if flag(config, name)]
    if asked and norms == 0:
        raise HeadMismatchError(f"the head's config asks for {asked[0]}, but its file holds no such norm")


def _checked_eagle(spec: HeadSpec, target: Target) -> HeadSpec:
    expected = target.hidden_size
    if spec.hidden_size != expected or spec.feature_size != expected:
        raise HeadMismatchError(
            f"an eagle head for hidden size {expected} expected, found output {spec.hidden_size} and feature "
            f"{spec.feature_size}: this head was made for another target"
        )
    return spec


def _checked_eagle3(spec: HeadSpec, query_inputs: int, target: Target) -> HeadSpec:
    wanted = len(spec.taps) * target.hidden_size
    if spec.feature_size != wanted:
        raise HeadMismatchError(
            f"an eagle3 head that reads {len(spec.taps)} features of {target.hidden_size} ({wanted}) expected, found "
            f"{spec.feature_size}: this head was made for another target"
        )
    if query_inputs != spec.embedding_size + spec.hidden_size:
        raise HeadMismatchError(
            f"attention over embedding {spec.embedding_size} and hidden {spec.hidden_size} expected, found "
            f"{query_inputs} inputs: the head needs its own embed_tokens or another target"
        )
    return spec


def _taps(config: dict[str, Any], target: Target) -> tuple[int, int, int]:
    """Indices of `hidden_states`; ids in the config's root are inputs of layers, those under eagle_config outputs."""
    root = config.get(TAP_IDS)
    nested = (config.get("eagle_config") or {}).get(TAP_IDS)
    given = root or ([index + 1 for index in nested] if nested else None)
    return check_taps(tuple(given) if given else default_taps(target.num_layers), target.num_layers)


def check_taps(taps: tuple[int, ...], num_layers: int) -> tuple[int, int, int]:
    """The taps from low to high, if there are three distinct ones within the target's `hidden_states`; else
    HeadMismatchError. (Every engine joins them in the order of the layers, however a config lists them.)"""
    if len(set(taps)) != 3 or len(taps) != 3 or min(taps) < 0 or max(taps) > num_layers:
        raise HeadMismatchError(
            f"three different taps of 0 to {num_layers} expected, found {list(taps)} for a target of {num_layers} "
            "layers: give --taps a,b,c or choose a deeper target"
        )
    low, middle, high = sorted(taps)
    return (low, middle, high)
