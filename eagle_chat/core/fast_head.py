"""The fast path of a draft head on a CPU: its layers from `FastLayer`, for inference only.

A head may still be trained: its own parameters are left alone and copied, and a copy is made anew when they change.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from eagle_chat.core.cache import TreeCache
from eagle_chat.core.fast_compiled import CompiledLayers
from eagle_chat.core.fast_layers import FastLayer, Norm, Rope, Rotation, folded_mask
from eagle_chat.core.fast_linear import Plan
from eagle_chat.core.fast_plan import Planner
from eagle_chat.core.fast_target import DTYPES
from eagle_chat.core.fast_weights import fused, is_plain
from eagle_chat.core.kernels import kernels

INT8 = Plan("int8", "int8")
Key = tuple[tuple[int, int], ...]


def supports(head: nn.Module, hidden_act: str) -> bool:
    """Whether the layers of this head can be run here: device, dtype, activation."""
    parameters = list(head.parameters())
    same = {(parameter.device.type, parameter.dtype) for parameter in parameters}
    return (
        hidden_act == "silu"
        and len(same) == 1
        and all(device == "cpu" and dtype in DTYPES for device, dtype in same)
        and all(is_plain(module) for module in head.modules() if isinstance(module, nn.Linear))
    )


def version_of(parameters: Iterable[Tensor]) -> Key:
    """Changes whenever a parameter is replaced, moved or written to."""
    return tuple((p.data_ptr(), 0 if p.is_inference() else p._version) for p in parameters)  # noqa: SLF001


class FastHead:
    """`fc`, `lm_head` (where the head has one) and the decoder layers of a head, in fast layouts."""

    def __init__(self, head: Any, layers: Sequence[Any], lm_head: Any = None, rounds: bool = False) -> None:
        """`rounds`: weights that are read from memory for every level are rounded to int8, which halves what a level
        of a bfloat16 head reads. A draft is a guess anyway: what it says is verified."""
        planner = Planner(sum(parameter.numel() * parameter.element_size() for parameter in head.parameters()))
        linear = [module for module in head.modules() if isinstance(module, nn.Linear)]
        plan = INT8 if rounds and not planner.is_small and can_round(linear) else None
        self.is_rounded = plan is not None
        with torch.inference_mode(False), torch.no_grad():
            self.fc = fused([head.fc], planner, plan)
            self.lm_head = fused([lm_head], planner, plan) if lm_head is not None else None
            self.layers = [_layer(layer, planner, plan) for layer in layers]
        self.rope = Rope(head.rotary)
        self.compiled = CompiledLayers.of(self.layers)

    def run(
        self, inputs: Tensor, residual: Tensor, rotation: Rotation, mask: Tensor | None, cache: TreeCache
    ) -> Tensor:
        """All layers in their order, to hidden states [M, H]. `inputs` [M, any]: what the first one's attention reads,
        its own norm, if it has one, still to be applied; `residual` [M, H]. `mask` [1, 1, M, L]."""
        if self.compiled is not None:
            states = self.compiled.run(inputs, residual, rotation, [mask] * len(self.layers), cache)
            if states is not None:
                return states[-1]
        folded = folded_mask(mask, self.layers[0].group)
        hidden = residual
        for at, (layer, entry) in enumerate(zip(self.layers, cache.tree_layers, strict=True)):
            hidden = layer.run(layer.normed(inputs if at == 0 else hidden), hidden, rotation, entry, folded)
        return hidden


def can_round(layers: Iterable[nn.Linear]) -> bool:
    """Whether there are kernels for rounded weights of all these layers."""
    compiled = kernels()
    return compiled is not None and all(layer.out_features % compiled.machine.panel == 0 for layer in layers)


def _layer(layer: Any, planner: Planner, plan: Plan | None) -> FastLayer:
    attention, mlp = layer.self_attn, layer.mlp
    matrices = [
        fused([attention.q_proj, attention.k_proj, attention.v_proj], planner, plan),
        fused([attention.o_proj], planner, plan),
        fused([mlp.gate_proj, mlp.up_proj], planner, plan),
        fused([mlp.down_proj], planner, plan),
    ]
    first = getattr(layer, "input_layernorm", None)
    # The first layer of an `eagle` head has an identity there, and an `eagle3` head norms both parts by itself.
    before = Norm(first) if hasattr(first, "weight") and not hasattr(layer, "hidden_norm") else None
    return FastLayer(attention, matrices, (before, Norm(layer.post_attention_layernorm)))
