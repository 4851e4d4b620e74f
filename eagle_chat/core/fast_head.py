"""The fast path of a draft head on a CPU: its layers from `FastLayer`, for inference only.

A head may still be trained: its own parameters are left alone and copied, and a copy is made anew when they change.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from eagle_chat.core.cache import TreeCache
from eagle_chat.core.fast_compiled import CompiledLayers
from eagle_chat.core.fast_layers import FastLayer, Norm, Rotation, folded_mask
from eagle_chat.core.fast_plan import Planner
from eagle_chat.core.fast_target import DTYPES
from eagle_chat.core.fast_weights import fused, is_plain

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

    def __init__(self, head: Any, layers: Iterable[Any], lm_head: Any = None) -> None:
        planner = Planner(sum(parameter.numel() * parameter.element_size() for parameter in head.parameters()))
        with torch.inference_mode(False), torch.no_grad():
            self.fc = fused([head.fc], planner)
            self.lm_head = fused([lm_head], planner) if lm_head is not None else None
            self.layers = [_layer(layer, planner) for layer in layers]
        self._compiled = CompiledLayers.of(self.layers)

    def rotation(self, rotary: Any, like: Tensor, positions: Tensor) -> Rotation:
        """RoPE of M rows at `positions` [M]."""
        return Rotation.of(rotary, like, positions)

    def run(
        self, inputs: Tensor, residual: Tensor, rotation: Rotation, mask: Tensor | None, cache: TreeCache
    ) -> Tensor:
        """All layers in their order, to hidden states [M, H]. `inputs` [M, any]: what the first one's attention reads,
        its own norm, if it has one, still to be applied; `residual` [M, H]. `mask` [1, 1, M, L]."""
        if self._compiled is not None:
            states = self._compiled.run(inputs, residual, rotation, [mask] * len(self.layers), cache)
            if states is not None:
                return states[-1]
        folded = folded_mask(mask, self.layers[0].group)
        hidden = residual
        for at, (layer, entry) in enumerate(zip(self.layers, cache.tree_layers, strict=True)):
            hidden = layer.run(layer.normed(inputs if at == 0 else hidden), hidden, rotation, entry, folded)
        return hidden


def _layer(layer: Any, planner: Planner) -> FastLayer:
    attention, mlp = layer.self_attn, layer.mlp
    matrices = [
        fused([attention.q_proj, attention.k_proj, attention.v_proj], planner),
        fused([attention.o_proj], planner),
        fused([mlp.gate_proj, mlp.up_proj], planner),
        fused([mlp.down_proj], planner),
    ]
    first = getattr(layer, "input_layernorm", None)
    # The first layer of an `eagle` head has an identity there, and an `eagle3` head norms both parts by itself.
    before = Norm(first) if hasattr(first, "weight") and not hasattr(layer, "hidden_norm") else None
    return FastLayer(attention, matrices, (before, Norm(layer.post_attention_layernorm)))
