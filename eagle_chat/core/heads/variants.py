"""Flags and tensors of heads that would change what they compute: each is built, or refused by its name."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import Tensor

from eagle_chat.core.errors import HeadMismatchError

COMMON_FLAGS: dict[str, Any] = {
    "use_mtp_layernorm": False,
    "parallel_draft_step": 1,
    "layernorms": False,
    "partial_rotary_factor": 1,
    "use_sliding_window": False,
    "quantization_config": None,
}
FLAGS: dict[str, dict[str, Any]] = {
    "eagle": {**COMMON_FLAGS, "use_input_layernorm_in_first_layer": False, "use_last_layernorm": False},
    "eagle3": {
        **COMMON_FLAGS,
        "use_aux_hidden_state": True,
        "use_input_layernorm_in_first_layer": True,
        "use_last_layernorm": True,
    },
}
"""By architecture, the only value under which a head is what this package builds. From the configs of speculators,
vLLM, SGLang and NVIDIA's ModelOpt; the root of the config and its `eagle_config` are looked at."""

COPIED = (
    "attention_multiplier",
    "attn_logit_softcapping",
    "dim_model_base",
    "embedding_multiplier",
    "final_logit_softcapping",
    "logit_scale",
    "logits_scaling",
    "residual_multiplier",
    "scale_depth",
    "scale_emb",
    "sliding_window",
)
"""Fields that configs of heads inherit from their target's and that no published head of these layouts computes."""

IGNORED = ("rotary_emb.inv_freq",)
"""Buffers that old files carry and that are computed here."""


def flag(config: dict[str, Any], name: str) -> Any:
    """A flag of the config's root, or of its `eagle_config`."""
    return config.get(name, (config.get("eagle_config") or {}).get(name))


def check_flags(architecture: str, config: dict[str, Any]) -> list[str]:
    """HeadMismatchError for a flag that is not built here; a note for people on fields that are not applied."""
    for name, wanted in FLAGS[architecture].items():
        found = flag(config, name)
        if found is not None and found != wanted:
            shown = found if isinstance(found, bool | int | float | str) else f"a {type(found).__name__}"
            raise HeadMismatchError(
                f"an {architecture} head with {name} {wanted} expected, found {shown} in its config.json: this variant "
                "is not supported, choose another head"
            )
    kinds = set(config.get("layer_types") or ()) - {"full_attention"}
    if kinds:
        raise HeadMismatchError(f"a head of full attention expected, found layer_types {', '.join(sorted(kinds))}")
    copied = [name for name in COPIED if config.get(name) is not None]
    if not copied:
        return []
    return [f"the head's config.json has {', '.join(copied)} of its target, which heads of this kind do not apply"]


def check_matrices(tensors: dict[str, Tensor], names: Iterable[str]) -> None:
    """HeadMismatchError for a tensor, of those that say how large the head is, that is no matrix."""
    for name in names:
        shape = tuple(tensors[name].shape)
        if len(shape) != 2 or 0 in shape:
            raise HeadMismatchError(f"a matrix expected in {name}, found shape {shape}: get the checkpoint again")


def check_attention(num_heads: int, query_rows: int, key_rows: int) -> None:
    """HeadMismatchError where `num_attention_heads` of the config does not go with the rows of the file."""
    head_dim, rest = divmod(query_rows, num_heads)
    fits = rest == 0 and head_dim % 2 == 0 and head_dim > 0 and key_rows % head_dim == 0
    if not fits or num_heads % (key_rows // head_dim):
        raise HeadMismatchError(
            f"num_attention_heads that divides {query_rows} rows of queries and {key_rows} of keys expected in the "
            f"head's config, found {num_heads}: get the checkpoint again"
        )


def check_surplus(names: Iterable[str]) -> list[str]:
    """A note on tensors that are not used. HeadMismatchError where they lie inside a layer: it computes more than is
    built here (norms of q and k, experts, scales of quantised weights)."""
    surplus = sorted(name for name in names if not name.endswith(IGNORED))
    inside = [name for name in surplus if name.startswith(("midlayer.", "layers."))]
    if inside:
        raise HeadMismatchError(
            f"a head whose layer is a Llama's expected, found also {listed(inside)}: this variant is not supported, "
            "choose another head"
        )
    return [f"the head's file holds tensors that are not used: {listed(surplus)}"] if surplus else []


def lacking(missing: Iterable[str], surplus: Iterable[str] = ()) -> HeadMismatchError:
    """The error for tensors that are not there, with those that are there and were not expected."""
    others = sorted(name for name in surplus if not name.endswith(IGNORED))
    instead = f" and holds {listed(others)} instead" if others else ""
    return HeadMismatchError(f"the head's file lacks {listed(sorted(missing))}{instead}: get the checkpoint again")


def listed(names: list[str], most: int = 6) -> str:
    """Names for a line, not all of a long list."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more
