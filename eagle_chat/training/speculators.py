"""A head in the layout of the `speculators` library, which vLLM starts from the head's folder alone.

The differences from the published layout: the shape of the layer is an object of its own, the target and the length
of the chain stand in the config, and the layer is called `layers.0`. Taps are inputs of layers, as in our config.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from eagle_chat.core.errors import UserError
from eagle_chat.core.heads.spec import HeadSpec

FORMAT_VERSION = "0.3.0"
"""Release of the library whose layout this is."""
_OF_THE_LAYER = (
    "hidden_act", "hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads", "head_dim",
    "num_hidden_layers", "rms_norm_eps", "rope_theta", "rope_scaling", "vocab_size", "max_position_embeddings",
    "attention_bias", "mlp_bias", "tie_word_embeddings", "pad_token_id", "bos_token_id", "eos_token_id",
)  # fmt: skip


def speculators_config(
    spec: HeadSpec, published: Mapping[str, Any], target: Mapping[str, Any], chain: int
) -> dict[str, Any]:
    """The `config.json`. `published`: that of the published layout. `chain`: drafted tokens a step.

    UserError for an `eagle` head: the layout described here is that of EAGLE-3.
    """
    if spec.architecture != "eagle3":
        raise UserError(f"an eagle3 head expected for --layout speculators, found {spec.architecture}: leave it out")
    layer = {name: published[name] for name in _OF_THE_LAYER if name in published}
    return {
        "architectures": ["Eagle3Speculator"],
        "speculators_model_type": "eagle3",
        "speculators_version": FORMAT_VERSION,
        "speculators_config": {
            "algorithm": "eagle3",
            "default_proposal_method": "greedy",
            "proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": chain, "verifier_accept_k": 1}],
            "verifier": {"name_or_path": target["name"], "architectures": [target["architecture"]]},
        },
        "transformer_layer_config": {"model_type": "llama", **layer},
        "draft_vocab_size": spec.draft_vocab_size,
        "target_hidden_size": None if spec.embedding_size == spec.hidden_size else spec.embedding_size,
        "eagle_aux_hidden_state_layer_ids": list(spec.taps),
        # All of them, also where they are off: what a reader takes for granted differs.
        "norm_before_residual": spec.norm_before_residual,
        "norm_before_fc": spec.num_fc_norms == 1,
        "fc_norm": spec.num_fc_norms > 1,
        "norm_output": spec.norm_output,
        "torch_dtype": published["torch_dtype"],
    }


def speculators_tensors(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors under the layout's names."""
    return {name.replace("midlayer.", "layers.0.", 1): value for name, value in tensors.items()}
