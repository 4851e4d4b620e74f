"""What a draft head is, read from its weights first and its config second."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from transformers import LlamaConfig

Architecture = Literal["eagle", "eagle3"]
DEFAULT_ROPE_THETA = 10000.0


@dataclass(frozen=True)
class HeadSpec:
    """Shape of one head. Sizes come from the tensors, the rest from `config.json`.

    `hidden_size` H of the head, `embedding_size` E of the token embeddings it reads, `feature_size` F of one fused
    target feature (all taps), `draft_vocab_size` Vd. `rope`: transformers' rope parameters, from the head's own
    config. `attention_bias` is that of q, k and v, `output_bias` that of the attention's output. `num_fc_norms`: RMS
    norms before `fc`, 1 over all taps or one for each (EAGLE-3.1); `norm_before_residual`: the residual takes the
    normed hidden; `norm_output`: the normed output is fed back (EAGLE-3.1). `shares_lm_head`: an EAGLE-3 head without
    an LM head of its own takes the target's.
    """

    architecture: Architecture
    hidden_size: int
    embedding_size: int
    feature_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    num_layers: int
    vocab_size: int
    draft_vocab_size: int
    rms_norm_eps: float
    rope: dict[str, Any]
    max_positions: int
    hidden_act: str = "silu"
    taps: tuple[int, ...] = (-1,)
    fc_bias: bool = False
    attention_bias: bool = False
    output_bias: bool = False
    mlp_bias: bool = False
    norm_before_residual: bool = False
    num_fc_norms: int = 0
    norm_output: bool = False
    own_embedding: bool = False
    shares_lm_head: bool = False

    def llama_config(self) -> LlamaConfig:
        """The library's config of the decoder layers inside the head."""
        config = LlamaConfig(
            hidden_size=self.hidden_size,
            intermediate_size=self.intermediate_size,
            num_hidden_layers=self.num_layers,
            num_attention_heads=self.num_heads,
            num_key_value_heads=self.num_kv_heads,
            head_dim=self.head_dim,
            rms_norm_eps=self.rms_norm_eps,
            rope_parameters=dict(self.rope),
            max_position_embeddings=self.max_positions,
            hidden_act=self.hidden_act,
            attention_bias=self.attention_bias,
            mlp_bias=self.mlp_bias,
            vocab_size=self.vocab_size,
        )
        config._attn_implementation = "sdpa"  # noqa: SLF001  no public setter exists
        return config


def rope_parameters(config: dict[str, Any]) -> dict[str, Any]:
    """transformers 5's rope parameters from either spelling of a head's config; theta 10000 where absent."""
    given = dict(config.get("rope_scaling") or {}) | dict(config.get("rope_parameters") or {})
    theta = given.pop("rope_theta", None) or config.get("rope_theta") or DEFAULT_ROPE_THETA
    kind = given.pop("rope_type", None) or given.pop("type", None) or "default"
    given.pop("type", None)
    return {"rope_type": kind, "rope_theta": float(theta), **given}


def default_taps(num_layers: int) -> tuple[int, int, int]:
    """The three `hidden_states` indices of EAGLE-3 for a target of `num_layers` layers: 2, n//2, n-3, low to high."""
    low, middle, high = sorted((2, num_layers // 2, num_layers - 3))
    return (low, middle, high)
