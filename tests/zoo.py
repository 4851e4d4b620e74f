"""One tiny random target of every architecture that the program promises: three layers, with what makes each of them
different from a Llama (soft caps, scalings, windows and blocks of attention, experts, latent attention)."""

from __future__ import annotations

import functools
from typing import Any

import torch
import transformers
from transformers import AutoModelForCausalLM

from eagle_chat.core.target import Target
from tests.tiny import COMMON

WINDOW = 8
SMALL = {"num_hidden_layers": 3, "intermediate_size": 32, "tie_word_embeddings": False}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
LOCAL_EXPERTS = {"num_local_experts": 4, "num_experts_per_tok": 2}
LATENT = {
    "q_lora_rank": 16, "kv_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 4, "v_head_dim": 12,
    "num_key_value_heads": 4,
}  # fmt: skip
MIXED = ["sliding_attention", "full_attention", "sliding_attention"]
LONGROPE = {
    "rope_type": "longrope", "rope_theta": 10000.0, "original_max_position_embeddings": 96,
    "short_factor": [1.0, 1.1, 1.2, 1.3], "long_factor": [2.0, 3.0, 4.0, 5.0],
}  # fmt: skip

CONFIGS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("LlamaConfig", {}),
    "mistral": ("MistralConfig", {"sliding_window": WINDOW}),
    "mixtral": ("MixtralConfig", LOCAL_EXPERTS),
    "qwen2": ("Qwen2Config", {}),
    "qwen2-mixed": ("Qwen2Config", {"use_sliding_window": True, "sliding_window": WINDOW, "max_window_layers": 1}),
    "qwen2-moe": ("Qwen2MoeConfig", {**EXPERTS, "shared_expert_intermediate_size": 32}),
    "qwen3": ("Qwen3Config", {}),
    "qwen3-moe": ("Qwen3MoeConfig", EXPERTS),
    "gemma2": (
        "Gemma2Config",
        {
            "sliding_window": WINDOW, "layer_types": MIXED, "query_pre_attn_scalar": 8,
            "attn_logit_softcapping": 3.0, "final_logit_softcapping": 5.0,
        },
    ),
    "gemma3": ("Gemma3TextConfig", {"sliding_window": WINDOW, "layer_types": MIXED, "query_pre_attn_scalar": 8}),
    "phi3": ("Phi3Config", {}),
    "phi3-longrope": ("Phi3Config", {"rope_parameters": LONGROPE, "original_max_position_embeddings": 96}),
    "olmoe": ("OlmoeConfig", {"num_experts": 4, "num_experts_per_tok": 2}),
    "granite": (
        "GraniteConfig",
        {"logits_scaling": 4.0, "residual_multiplier": 0.5, "embedding_multiplier": 3.0, "attention_multiplier": 0.2},
    ),
    "granitemoe": (
        "GraniteMoeConfig",
        {**LOCAL_EXPERTS, "logits_scaling": 4.0, "residual_multiplier": 0.5, "embedding_multiplier": 3.0},
    ),
    "gpt-oss": (
        "GptOssConfig",
        {
            **LOCAL_EXPERTS, "sliding_window": WINDOW, "layer_types": MIXED,
            "rope_parameters": {"rope_type": "default", "rope_theta": 150000.0},
        },
    ),
    "glm4-moe": ("Glm4MoeConfig", {**EXPERTS, "n_routed_experts": 4, "first_k_dense_replace": 1}),
    "glm4-moe-lite": (
        "Glm4MoeLiteConfig", {**LATENT, "n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
    ),
    "llama4": (
        "Llama4TextConfig",
        {
            "num_local_experts": 4, "num_experts_per_tok": 1, "intermediate_size_mlp": 32,
            "interleave_moe_layer_step": 2, "attention_chunk_size": WINDOW, "no_rope_layers": [1, 0, 1],
            "layer_types": ["chunked_attention", "full_attention", "chunked_attention"],
            "attn_temperature_tuning": True, "attn_scale": 1.0, "floor_scale": 4,
        },
    ),
    "minicpm3": ("MiniCPM3Config", {**LATENT, "scale_emb": 3, "dim_model_base": 16}),
}  # fmt: skip

EAGER_ONLY = ("gemma2", "gpt-oss")
"""transformers has no SDPA for these: soft-capped scores, attention sinks."""

PAIRS = [(name, way) for name in CONFIGS for way in ("sdpa", "eager") if way == "eager" or name not in EAGER_ONLY]
"""Every architecture with every way of attention it has."""


def make_model(name: str, attention: str | None = None, dtype: torch.dtype = torch.float32, **changes: Any) -> Any:
    """A fresh model; `attention` None is what transformers takes by itself."""
    kind, own = CONFIGS[name]
    config = getattr(transformers, kind)(**{**COMMON, **SMALL, **own, **changes})
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(config, attn_implementation=attention, dtype=dtype).eval()


@functools.cache
def target(name: str, attention: str = "eager", dtype: torch.dtype = torch.float32) -> Target:
    """The target, made once; nobody may change it."""
    return Target(make_model(name, attention, dtype), f"tiny-{name}")
