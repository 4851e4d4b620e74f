"""The fast path of a target on a CPU: the same forward as transformers', for the models whose layers are known here.

Every other model runs on the general path of `target.py`, which is also what this one is tested against.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from eagle_chat.core.cache import TreeCache
from eagle_chat.core.fast_compiled import CompiledLayers
from eagle_chat.core.fast_layers import FastLayer, Norm, Rope, Rotation, folded_mask
from eagle_chat.core.fast_linear import Matrix
from eagle_chat.core.fast_plan import Planner, best_dtype
from eagle_chat.core.fast_weights import fused, is_plain, taken_over

MODELS = ("LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM")
"""Classes of transformers whose decoder layer is the one of `FastLayer`."""
DTYPES = (torch.float32, torch.bfloat16)
"""Of weights; what is computed from them is float32."""

Mask = Tensor | dict[str, Tensor] | None


def supports(model: Any) -> bool:
    """Whether the fast path computes what this model does: class, device, dtype, activation, untouched layers."""
    config = model.config
    known = type(model).__name__ in MODELS and type(model).__module__.startswith("transformers.models.")
    if not known or config.hidden_act != "silu" or model.dtype not in DTYPES:
        return False
    if any(parameter.device.type != "cpu" or parameter.dtype != model.dtype for parameter in model.parameters()):
        return False
    layers = [module for module in model.modules() if isinstance(module, nn.Linear) or hasattr(module, "_hf_hook")]
    # Seven in every layer and the LM head: what is quantised or adapted is of another class, or there are more.
    return len(layers) == 7 * config.num_hidden_layers + 1 and all(is_plain(layer) for layer in layers)


def best_cpu_dtype(config: Any, num_rows: int) -> torch.dtype:
    """bfloat16 or float32, whichever this processor is faster with for a model of this config (transformers') and
    `num_rows` tokens a forward. Measured once per machine and shape."""
    known = any(name in MODELS for name in getattr(config, "architectures", None) or ())
    width = getattr(config, "intermediate_size", None) or config.hidden_size
    return best_dtype((width, config.hidden_size), num_rows, known)


class FastTarget:
    """A supported model's weights in fast layouts, and its forward. Takes the weights over: see `fast_weights`."""

    def __init__(self, model: Any) -> None:
        inner, config = model.model, model.config
        planner = Planner(sum(parameter.numel() * parameter.element_size() for parameter in model.parameters()))
        # Made outside of inference mode, so that the model they are shared with can still be trained through.
        with torch.inference_mode(False), torch.no_grad():
            self._layers = [_layer(layer, planner) for layer in inner.layers]
            self._norm = Norm(inner.norm)
            self.lm_head: Matrix = fused([model.lm_head], planner)
        self._compiled = CompiledLayers.of(self._layers)
        # The LM head's own weight stays whatever happens: it may be the embedding too, and heads train through it.
        copies = sum(layout != "rows" for layout in self.lm_head.plan.layouts)
        self.extra_bytes = copies * self.lm_head.num_bytes + sum(layer.extra_bytes for layer in self._layers)
        self._embed, self.rope = inner.embed_tokens, Rope(inner.rotary_emb)
        kinds = getattr(config, "layer_types", None)
        self._kinds: list[str | None] = list(kinds) if kinds else [None] * config.num_hidden_layers

    @torch.inference_mode()
    def forward(
        self, tokens: Tensor, positions: Tensor, mask: Mask, cache: TreeCache, taps: tuple[int, ...], last_only: bool
    ) -> tuple[Tensor, Tensor | None]:
        """As `Target.forward`, with its mask made in float32: logits [M or 1, V] before any adjustment, and features
        [M, F], both float32."""
        hidden: Tensor = self._embed(tokens).float()
        rotation = self.rope.at(positions)
        count = len(self._layers)
        wanted = {tap % (count + 1) for tap in taps}
        seen: dict[int, Tensor] = {}
        states = self._compiled_run(hidden, rotation, mask, cache)
        if states is not None:
            seen = {index: states[index] for index in wanted}
            hidden = states[count]
        else:
            masks = {kind: folded_mask(_mask_of(mask, kind), self._layers[0].group) for kind in set(self._kinds)}
            for index, (layer, kind) in enumerate(zip(self._layers, self._kinds, strict=True)):
                if index in wanted:
                    seen[index] = hidden
                hidden = layer(hidden, rotation, cache.tree_layers[index], masks[kind])
        normed = self._norm(hidden[-1:] if last_only and count not in wanted else hidden)
        seen[count] = normed
        logits = self.lm_head(normed[-1:] if last_only else normed)
        chosen = [seen[tap % (count + 1)] for tap in taps]
        return logits, torch.cat(chosen, dim=-1) if chosen else None

    def describe(self) -> str:
        """The layouts in use and what they cost beyond the model's own weights, for people."""
        kinds = {"q, k, v": "_qkv", "output": "_out", "gate, up": "_gate_up", "down": "_down"}
        plans = {name: getattr(self._layers[0], attribute).plan for name, attribute in kinds.items()}
        plans["LM head"] = self.lm_head.plan
        layouts = ", ".join(f"{name} {'/'.join(plan.layouts)}" for name, plan in plans.items())
        return f"layouts for one/more rows: {layouts}; {self.extra_bytes / 1e6:.0f} MB besides the model's weights"

    def _compiled_run(self, hidden: Tensor, rotation: Rotation, mask: Mask, cache: TreeCache) -> Tensor | None:
        if self._compiled is None:
            return None
        return self._compiled.run(hidden, hidden, rotation, [_mask_of(mask, kind) for kind in self._kinds], cache)


def _mask_of(mask: Mask, kind: str | None) -> Tensor | None:
    one = mask[kind] if isinstance(mask, dict) and kind is not None else mask
    assert not isinstance(one, dict)
    return one


def _layer(layer: Any, planner: Planner) -> FastLayer:
    attention, mlp = layer.self_attn, layer.mlp
    head_norms = (Norm(attention.q_norm), Norm(attention.k_norm)) if hasattr(attention, "q_norm") else None
    matrices = [
        taken_over(attention, ("q_proj", "k_proj", "v_proj"), planner),
        taken_over(attention, ("o_proj",), planner),
        taken_over(mlp, ("gate_proj", "up_proj"), planner),
        taken_over(mlp, ("down_proj",), planner),
    ]
    norms = (Norm(layer.input_layernorm), Norm(layer.post_attention_layernorm))
    return FastLayer(attention, matrices, norms, head_norms)
