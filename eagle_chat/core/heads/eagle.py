"""The head of EAGLE-1 and EAGLE-2 (arXiv 2401.15077, section 3.1; 2406.16858 uses the same weights)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers.models.llama.modeling_llama import LlamaDecoderLayer

from eagle_chat.core.cache import TreeCache
from eagle_chat.core.fast_head import FastHead
from eagle_chat.core.fast_layers import Rotation
from eagle_chat.core.heads.base import DraftHead, Function, set_output_bias
from eagle_chat.core.heads.spec import HeadSpec
from eagle_chat.core.target import cache_keyword


class EagleHead(DraftHead):
    """`fc` maps [embedding, feature] to H; decoder layers, the first without input norm; the output is the next
    feature itself, and the target's LM head reads it."""

    def __init__(self, spec: HeadSpec, embed: Function, lm_head: Function, draft_ids: Tensor | None = None) -> None:
        super().__init__(spec, embed, lm_head, draft_ids)
        self.trimmed_lm_head: Function | None = None
        self.fc = nn.Linear(spec.embedding_size + spec.feature_size, spec.hidden_size, bias=spec.fc_bias)
        config = spec.llama_config()
        self.layers = nn.ModuleList(LlamaDecoderLayer(config, index) for index in range(spec.num_layers))
        for layer in self.layers:
            set_output_bias(layer, spec)
        self.layers[0].input_layernorm = nn.Identity()
        self._cache_keyword = cache_keyword(LlamaDecoderLayer.forward)

    def fuse(self, features: Tensor) -> Tensor:
        """Features are used as they are."""
        return features

    def run_layers(self, embedded: Tensor, hidden: Tensor, **layer_inputs: Any) -> Tensor:
        """See `DraftHead.run_layers`."""
        layer_inputs[self._cache_keyword] = layer_inputs.pop("cache")
        output: Tensor = self.fc(torch.cat((embedded, hidden), dim=-1))
        for layer in self.layers:
            output = layer(output, **layer_inputs)
        return output

    def watched(self) -> tuple[Tensor, ...]:
        """See `DraftHead.watched`."""
        first: Any = self.layers[0]
        return self.fc.weight, first.mlp.down_proj.weight

    def make_fast(self) -> FastHead:
        """See `DraftHead.make_fast`."""
        return FastHead(self, list(self.layers), rounds=self.rounds)

    def run_fast(
        self,
        fast: FastHead,
        embedded: Tensor,
        hidden: Tensor,
        rotation: Rotation,
        mask: Tensor | None,
        cache: TreeCache,
    ) -> Tensor:
        """See `DraftHead.run_fast`."""
        start = fast.fc(torch.cat((embedded, hidden), dim=-1))
        return fast.run(start, start, rotation, mask, cache)

    def logits(self, hidden: Tensor) -> Tensor:
        """The target's LM head on predicted features, or the part of it that `trimming` chose."""
        return (self.trimmed_lm_head or self._target_parts[1])(hidden)
