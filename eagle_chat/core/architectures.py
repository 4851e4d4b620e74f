"""What is known of transformers' architectures: which can verify a draft tree, how far each layer sees, where a
model's positions end, what stands between its LM head and its logits."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from eagle_chat.core import masks
from eagle_chat.core.errors import UserError

if TYPE_CHECKING:
    from eagle_chat.core.target import Target, TargetOutput

FULL, SLIDING, CHUNKED = "full_attention", "sliding_attention", "chunked_attention"

TESTED = frozenset(
    {
        "gemma2",
        "gemma3_text",
        "glm4_moe",
        "glm4_moe_lite",
        "gpt_oss",
        "granite",
        "granitemoe",
        "llama",
        "llama4_text",
        "minicpm3",
        "mistral",
        "mixtral",
        "olmoe",
        "phi3",
        "qwen2",
        "qwen2_moe",
        "qwen3",
        "qwen3_moe",
    }
)
"""Model types (of the text config) whose losslessness the tests check; others are tried when they are loaded."""

_MULTIPLIES = frozenset({"cohere", "cohere2", "cohere2_moe", "hyperclovax"})
"""Model types that multiply their logits by what others divide them by."""

_OVERFLOW_IN_FLOAT16 = frozenset({"gemma2", "gemma3_text", "qwen2", "qwen2_moe", "qwen3", "qwen3_moe"})
"""Model types whose hidden states pass 65,504, float16's largest number."""

_CLEARLY_WRONG = 0.5
"""Share of what a fault would change, above which a node's logits are no longer those of its path."""
_TRIAL_PARENTS = [-1, 0, *range(21)]
"""Two branches of one root, in turn: along each of them the places in the flattened tree are twice the positions."""


def check_interface(model: Any) -> None:
    """UserError with the reason where a causal LM of transformers cannot run a draft tree by its very interface."""
    kind = model.config.get_text_config().model_type
    taken = inspect.signature(model.forward).parameters
    reason = None
    if model._is_stateful:  # noqa: SLF001  transformers' own mark of recurrent states has no public name
        reason = "it keeps a recurrent state, which cannot go back to where a rejected branch began"
    elif model.config.is_encoder_decoder:
        reason = "it is an encoder-decoder"
    elif "position_ids" not in taken:
        reason = "it takes no position ids, so the nodes of one level cannot share a position"
    elif not {"cache", "past_key_values"} & set(taken):
        reason = "it takes no key/value cache"
    if reason:
        raise UserError(
            f"an attention-only decoder with position ids expected, found {kind}: {reason}; choose another target"
        )


def attention_windows(config: Any) -> dict[str, int | None]:
    """For each kind of attention layer in the model, how many positions it sees (None: all): the window of sliding
    layers, the block of chunked ones. UserError for kinds that cannot verify a tree."""
    window, chunk = getattr(config, "sliding_window", None), getattr(config, "attention_chunk_size", None)
    kinds = set(getattr(config, "layer_types", None) or [SLIDING if window else FULL])
    unknown = kinds - {FULL, SLIDING, CHUNKED}
    if unknown:
        raise UserError(
            f"layers of full, sliding or chunked attention expected, found {', '.join(sorted(unknown))} in "
            f"{config.model_type}: a draft tree cannot be verified there, choose another target"
        )
    return {kind: {FULL: None, SLIDING: window, CHUNKED: chunk}[kind] for kind in sorted(kinds)}


def context_limit(config: Any) -> int:
    """Most tokens of a conversation.

    Where RoPE changes all its angles beyond the original length (longrope), that is where the context ends: keys
    already cached could not follow, and a tree across the border would see other angles than a single token.
    """
    limit: int | None = getattr(config, "max_position_embeddings", None)
    if limit is None:
        raise UserError(
            f"max_position_embeddings expected in the target's config, found none in {config.model_type}: its "
            "positions may be no position ids; choose another target"
        )
    rope = getattr(config, "rope_parameters", None) or {}
    if rope.get("rope_type") == "longrope":
        limit = min(limit, rope["original_max_position_embeddings"])
    return limit


def adjust_logits(config: Any, logits: Tensor) -> Tensor:
    """The model's own scaling and soft cap, element by element, of what its LM head's matrix gives."""
    scaling = getattr(config, "logits_scaling", None) or getattr(config, "logit_scale", None)
    if scaling:
        logits = logits * scaling if config.model_type in _MULTIPLIES else logits / scaling
    cap = getattr(config, "final_logit_softcapping", None)
    return torch.tanh(logits / cap) * cap if cap else logits


def dtype_notes(config: Any, dtype: torch.dtype) -> list[str]:
    """A warning for people where an architecture is known to overflow in a number format."""
    if dtype != torch.float16 or config.model_type not in _OVERFLOW_IN_FLOAT16:
        return []
    return [f"warning: {config.model_type} overflows in float16, answers can be noise: use --dtype bfloat16"]


def counts_cached_tokens(config: Any) -> bool:
    """Whether some layers take their queries' positions from the cache's length instead of the position ids, as
    Llama 4 does for the temperature of its layers without RoPE."""
    return config.model_type == "llama4_text" and bool(config.attn_temperature_tuning)


@torch.inference_mode()
def check_by_running(target: Target) -> None:
    """Run one small tree on an architecture that the tests do not know; UserError where it is not verified rightly.

    The last node's logits must be those of its path run as a chain. What a mask or positions that are not obeyed
    would change is measured beside it, so that the rounding of half precision is told apart from a wrong result.
    """
    if target.config.model_type in TESTED:
        return
    size = len(_TRIAL_PARENTS)
    tokens, path, taps = torch.arange(size) % target.vocab_size, [0, *range(2, size, 2)], (-1,)

    def run(tokens: Tensor, positions: Tensor, among: Tensor) -> TargetOutput:
        return target.forward(tokens, positions, among, target.new_cache(size), taps)

    try:
        depths = torch.tensor(masks.depths(_TRIAL_PARENTS))
        found = run(tokens, depths, masks.ancestor_matrix(_TRIAL_PARENTS))
        right = run(tokens[path], depths[path], masks.causal_matrix(len(path)))
        faults = [
            run(tokens, depths, masks.causal_matrix(size)),
            run(tokens[path], torch.tensor(path), masks.causal_matrix(len(path))),
        ]
    except (TypeError, ValueError, RuntimeError, AttributeError, IndexError, KeyError, NotImplementedError) as error:
        raise _unsuitable(target, f"{type(error).__name__}: {error}") from error
    expected = right.logits[-1].float()
    missed = _distance(found, expected)
    if not missed <= _CLEARLY_WRONG * min(_distance(fault, expected) for fault in faults):
        raise _unsuitable(target, f"a node's logits differ by {missed:.3g} from those of its path")
    assert right.features is not None
    by_head = target.lm_head(right.features[-1:])[0].float()
    if not torch.allclose(by_head, expected, rtol=0.05, atol=0.05 * float(expected.abs().max())):
        raise _unsuitable(target, "its LM head does not give its logits from its last hidden state")


def _distance(output: TargetOutput, expected: Tensor) -> float:
    return float((output.logits[-1].float() - expected).abs().max())


def _unsuitable(target: Target, reason: str) -> UserError:
    return UserError(
        f"a target that verifies a draft tree expected, found {target.config.model_type}, which failed a trial run "
        f"({reason}): choose another target"
    )
