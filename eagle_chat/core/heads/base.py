"""What both head architectures share: borrowed parts of the target, positions, masks, the draft vocabulary."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from eagle_chat.core import fast_head, masks
from eagle_chat.core.cache import TreeCache
from eagle_chat.core.captured import MOST_ROWS, Steps, bucket
from eagle_chat.core.fast_head import FastHead
from eagle_chat.core.fast_layers import Rotation
from eagle_chat.core.heads.drafter import Drafter
from eagle_chat.core.heads.spec import HeadSpec

Function = Callable[[Tensor], Tensor]


class DraftHead(nn.Module):
    """Predicts the target's next feature and token from a feature and the token after it.

    Position t holds the feature of token t and the embedding of token t+1, has position id t, and its output
    predicts token t+2. `draft_ids`: target id of every draft id, or None where they are the same.
    """

    draft_ids: Tensor | None

    def __init__(self, spec: HeadSpec, embed: Function, lm_head: Function, draft_ids: Tensor | None = None) -> None:
        super().__init__()
        self.spec = spec
        self._target_parts = (embed, lm_head)  # a tuple, so that the target's weights are not counted as the head's
        self.register_buffer("draft_ids", draft_ids, persistent=False)
        self.rotary = LlamaRotaryEmbedding(spec.llama_config())
        self.steps = Steps()
        self.rounds = True
        """Whether the fast path may round the weights, see `FastHead`."""
        self._fast: FastHead | None = None
        self._fast_version: fast_head.Key = ()
        self.table: Tensor | None = None
        """The target's embeddings [V, E], where it has them as plain numbers."""
        self.embed_tokens = nn.Embedding(spec.vocab_size, spec.embedding_size) if spec.own_embedding else None

    def new_cache(self, capacity: int) -> TreeCache:
        """An empty cache for this head."""
        return TreeCache(self.spec.num_layers, capacity)

    def embed(self, tokens: Tensor) -> Tensor:
        """Embeddings [M, E] of target ids [M]."""
        return self._target_parts[0](tokens) if self.embed_tokens is None else self.embed_tokens(tokens)

    @abstractmethod
    def fuse(self, features: Tensor) -> Tensor:
        """Target features [M, F] to the head's hidden input [M, H]."""

    @abstractmethod
    def logits(self, hidden: Tensor) -> Tensor:
        """Draft logits [M, Vd] of outputs [M, H]."""

    @abstractmethod
    def run_layers(self, embedded: Tensor, hidden: Tensor, **layer_inputs: object) -> Tensor:
        """The head's layers on embeddings [1, M, E] and hidden inputs [1, M, H], giving outputs [1, M, H]."""

    @abstractmethod
    def watched(self) -> tuple[Tensor, ...]:
        """A few parameters whose change tells that the weights are new: going through all at every call costs more
        than a small tree's attention."""

    @abstractmethod
    def make_fast(self) -> FastHead:
        """The fast path over copies of the present weights."""

    @abstractmethod
    def run_fast(
        self,
        fast: FastHead,
        embedded: Tensor,
        hidden: Tensor,
        rotation: Rotation,
        mask: Tensor | None,
        cache: TreeCache,
    ) -> Tensor:
        """`run_layers` on the fast path, [M, E] and [M, H] to [M, H]."""

    def fast_path(self) -> FastHead | None:
        """The fast path over the present weights; None where gradients may be wanted or it does not know the head."""
        if not torch.is_inference_mode_enabled():
            return None
        version = fast_head.version_of(self.watched())
        if version != self._fast_version:
            self._fast = self.make_fast() if fast_head.supports(self, self.spec.hidden_act) else None
            self._fast_version = version
        return self._fast

    def drafter(self) -> Drafter:
        """What runs the head for a draft on the host, with its present weights."""
        return Drafter(self)

    def forward(
        self, tokens: Tensor, hidden: Tensor, positions: Tensor, among_new: Tensor | None, cache: TreeCache
    ) -> Tensor:
        """Run M entries (token t+1 and hidden input of t, [M] and [M, H]) behind what the cache has filled.

        `among_new` bool [M, S + M]: who sees whom among the S staged and the M new entries; committed ones are seen
        by all. None: a single new entry that sees everything, which needs no mask. The entries are left staged.
        Returns [M, H].
        """
        fast = self.fast_path()
        count = tokens.shape[0]
        if fast is None and self.steps.suit(cache.filled - cache.length + bucket(count), cache, self.device):
            output = self._fixed(tokens, hidden, positions, among_new, cache)
        else:
            # The fast path computes in float32, whatever the dtype of the weights and of what the target gave.
            dtype = self.dtype if fast is None else torch.float32
            mask = None
            if among_new is not None:
                mask = masks.additive(masks.tree_visibility(among_new, positions, cache.length), dtype)
            if fast is None:
                output = self._general(tokens, hidden, positions, mask, cache)
            else:
                embedded, hidden = self.embed(tokens).to(dtype), hidden.to(dtype)
                output = self.run_fast(fast, embedded, hidden, fast.rope.at(positions), mask, cache)
        cache.stage(count)
        return output

    def _general(
        self, tokens: Tensor, hidden: Tensor, positions: Tensor, mask: Tensor | None, cache: TreeCache
    ) -> Tensor:
        """The layers as transformers has them."""
        embedded, hidden = self.embed(tokens).to(self.dtype), hidden.to(self.dtype)
        rotation = self.rotary(hidden, position_ids=positions[None])
        return self.run_layers(
            embedded[None], hidden[None], attention_mask=mask, position_embeddings=rotation, cache=cache
        )[0]

    def _fixed(
        self, tokens: Tensor, hidden: Tensor, positions: Tensor, among_new: Tensor | None, cache: TreeCache
    ) -> Tensor:
        """`_general` as a step of fixed shape."""
        count, reach = tokens.shape[0], cache.filled - cache.length + tokens.shape[0]
        rows = bucket(count)
        seen = torch.ones(count, reach, dtype=torch.bool, device=tokens.device) if among_new is None else among_new
        cache.reserve(cache.filled + rows)

        def step(tokens: Tensor, hidden: Tensor, positions: Tensor, among: Tensor, at: Tensor) -> tuple[Tensor, ...]:
            own = (at[1] - at[0]) + torch.arange(rows, device=at.device)  # places behind the committed entries
            among = among | (own[:, None] == torch.arange(MOST_ROWS, device=at.device))
            visible = masks.placed_visibility(among, positions, at[:1], cache.capacity)
            cache.slots = at[:1] + own
            output = self._general(tokens, hidden, positions, masks.additive(visible, self.dtype), cache)
            cache.make_finite(cache.slots)
            cache.slots = None
            return (output,)

        def ordinary() -> tuple[Tensor, ...]:
            visible = masks.tree_visibility(seen, positions, cache.length)
            return (self._general(tokens, hidden, positions, masks.additive(visible, self.dtype), cache),)

        shapes = ((rows,), (rows, hidden.shape[1]), (rows,), (rows, MOST_ROWS), (2,))
        values = (tokens, hidden, positions, seen, torch.tensor([cache.length, cache.filled]))
        output: Tensor = self.steps.run(cache, (rows,), step, shapes, values, ordinary, count, self.device)[0]
        return output

    def target_ids(self, draft_ids: Tensor) -> Tensor:
        """Target ids of draft ids, same shape."""
        return draft_ids if self.draft_ids is None else self.draft_ids[draft_ids]

    @property
    def dtype(self) -> torch.dtype:
        """Of its weights."""
        return next(self.parameters()).dtype

    @property
    def device(self) -> torch.device:
        """Where the head runs."""
        return next(self.parameters()).device


def set_output_bias(layer: Any, spec: HeadSpec) -> None:
    """Give the attention's output the bias it has in the file: Qwen2's layers have one at q, k and v only."""
    old = layer.self_attn.o_proj
    layer.self_attn.o_proj = nn.Linear(old.in_features, old.out_features, bias=spec.output_bias)
