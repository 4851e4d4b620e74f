"""The head of EAGLE-3 (arXiv 2503.01840, section 3) and its published variants."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers.models.llama.modeling_llama import LlamaDecoderLayer, LlamaRMSNorm

from eagle_chat.core.cache import TreeCache
from eagle_chat.core.fast_draft import CompiledDrafter
from eagle_chat.core.fast_head import FastHead
from eagle_chat.core.fast_layers import Norm, Rotation
from eagle_chat.core.heads.base import DraftHead, Function, set_output_bias
from eagle_chat.core.heads.drafter import Drafter
from eagle_chat.core.heads.spec import HeadSpec
from eagle_chat.core.target import cache_keyword


class Eagle3Layer(LlamaDecoderLayer):  # type: ignore[no-untyped-call]  # its class hook is untyped
    """A Llama layer whose attention reads [norm(embedding), norm(hidden)] while the residual keeps the hidden."""

    def __init__(self, spec: HeadSpec) -> None:
        super().__init__(spec.llama_config(), 0)
        width = spec.embedding_size + spec.hidden_size
        for name in ("q_proj", "k_proj", "v_proj"):
            old = getattr(self.self_attn, name)
            setattr(self.self_attn, name, nn.Linear(width, old.out_features, bias=spec.attention_bias))
        set_output_bias(self, spec)
        self.input_layernorm = LlamaRMSNorm(spec.embedding_size, eps=spec.rms_norm_eps)
        self.hidden_norm = LlamaRMSNorm(spec.hidden_size, eps=spec.rms_norm_eps)
        self.norm_before_residual = spec.norm_before_residual

    def forward(self, embedded: Tensor, hidden: Tensor, **attention_inputs: Any) -> Tensor:
        """[1, M, E] and [1, M, H] to [1, M, H]."""
        normed = self.hidden_norm(hidden)
        residual = normed if self.norm_before_residual else hidden
        attended, _ = self.self_attn(torch.cat((self.input_layernorm(embedded), normed), dim=-1), **attention_inputs)
        hidden = residual + attended
        output: Tensor = hidden + self.mlp(self.post_attention_layernorm(hidden))
        return output


class Eagle3Head(DraftHead):
    """`fc` maps the taps to H once per committed token; the layer's own output is fed back as the next hidden."""

    def __init__(self, spec: HeadSpec, embed: Function, lm_head: Function, draft_ids: Tensor | None = None) -> None:
        super().__init__(spec, embed, lm_head, draft_ids)
        self.fc = nn.Linear(spec.feature_size, spec.hidden_size, bias=spec.fc_bias)
        sizes = [spec.feature_size // spec.num_fc_norms] * spec.num_fc_norms if spec.num_fc_norms else []
        self.fc_norm = nn.ModuleList(LlamaRMSNorm(size, eps=spec.rms_norm_eps) for size in sizes)
        self.midlayer = Eagle3Layer(spec)
        self.norm = LlamaRMSNorm(spec.hidden_size, eps=spec.rms_norm_eps)
        own = None if spec.shares_lm_head else nn.Linear(spec.hidden_size, spec.draft_vocab_size, bias=False)
        self.lm_head = own
        self._cache_keyword = cache_keyword(LlamaDecoderLayer.forward)
        self._drafter: Drafter | None = None

    def fuse(self, features: Tensor) -> Tensor:
        """[M, F] to [M, H]; the taps normed first, together or each, where the head asks for it (EAGLE-3.1)."""
        fast = self.fast_path()
        features = features.to(self.dtype if fast is None else torch.float32)
        if len(self.fc_norm) > 0:
            parts = features.chunk(len(self.fc_norm), dim=-1)
            features = torch.cat([norm(part) for norm, part in zip(self.fc_norm, parts, strict=True)], dim=-1)
        fused: Tensor = self.fc(features) if fast is None else fast.fc(features.float())
        return fused

    def run_layers(self, embedded: Tensor, hidden: Tensor, **layer_inputs: Any) -> Tensor:
        """See `DraftHead.run_layers`. With `norm_output` (EAGLE-3.1) the normed output is what is fed back."""
        layer_inputs[self._cache_keyword] = layer_inputs.pop("cache")
        output: Tensor = self.midlayer(embedded, hidden, **layer_inputs)
        return self.norm(output) if self.spec.norm_output else output

    def watched(self) -> tuple[Tensor, ...]:
        """See `DraftHead.watched`."""
        return self.fc.weight, self.midlayer.mlp.down_proj.weight

    def make_fast(self) -> FastHead:
        """See `DraftHead.make_fast`."""
        fast = FastHead(self, [self.midlayer], self.lm_head, self.rounds)
        self._drafter = None
        self._fast_norms = (Norm(self.midlayer.input_layernorm), Norm(self.midlayer.hidden_norm), Norm(self.norm))
        return fast

    def drafter(self) -> Drafter:
        """See `DraftHead.drafter`."""
        fast = self.fast_path()
        if fast is None:
            return super().drafter()
        if self._drafter is None:
            self._drafter = CompiledDrafter.of(self, fast, self._fast_norms) or super().drafter()
        return self._drafter

    def run_fast(
        self,
        fast: FastHead,
        embedded: Tensor,
        hidden: Tensor,
        rotation: Rotation,
        mask: Tensor | None,
        cache: TreeCache,
    ) -> Tensor:
        """See `DraftHead.run_fast` and `Eagle3Layer.forward`."""
        embedding_norm, hidden_norm, output_norm = self._fast_norms
        normed = hidden_norm(hidden)
        both = torch.cat((embedding_norm(embedded), normed), dim=-1)
        residual = normed if self.spec.norm_before_residual else hidden
        output = fast.run(both, residual, rotation, mask, cache)
        return output_norm(output) if self.spec.norm_output else output

    def logits(self, hidden: Tensor) -> Tensor:
        """The head's own LM head, over the draft vocabulary, or the target's where it has none."""
        fast = self.fast_path()
        norm = self.norm if fast is None else self._fast_norms[2]
        normed = hidden if self.spec.norm_output else norm(hidden)
        own = self.lm_head if fast is None else fast.lm_head
        logits: Tensor = self._target_parts[1](normed) if own is None else own(normed)
        return logits
