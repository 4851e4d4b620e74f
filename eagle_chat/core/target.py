"""The target: an unmodified transformers model, reached through three seams.

The seams are an additive 4D mask with position ids, our own cache, and the hidden states it is asked for.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from eagle_chat.core import architectures, masks
from eagle_chat.core.architectures import CHUNKED
from eagle_chat.core.cache import TreeCache
from eagle_chat.core.captured import Steps, bucket
from eagle_chat.core.errors import UserError
from eagle_chat.core.fast_target import FastTarget, supports
from eagle_chat.core.fast_weights import is_plain, matrix_of
from eagle_chat.core.placement import last_layer_device, placed, run_device
from eagle_chat.core.transfer import sent

DENSE_MASK_BACKENDS = ("sdpa", "eager")


def cache_keyword(forward: Any) -> str:
    """The name under which a transformers forward takes its cache (renamed during transformers 5)."""
    return "cache" if "cache" in inspect.signature(forward).parameters else "past_key_values"


@dataclass(frozen=True)
class TargetOutput:
    """`logits` [R, V] for the rows asked for; `features` [M, F] where taps were given: those hidden states side by
    side, F = len(taps) * H."""

    logits: Tensor
    features: Tensor | None


class Target:
    """Runs (tokens, positions, visibility, cache) -> logits and features. Batch 1."""

    def __init__(self, model: Any, name: str, fast: bool = True, fixed_shapes: bool | None = None) -> None:
        """`fast`: whether models known to `fast_target` take the fast path; the general one runs any.
        `fixed_shapes`: whether short forwards are steps of fixed shape (see `captured`); None: on CUDA."""
        architectures.check_interface(model)
        config = model.config.get_text_config()
        backend = config._attn_implementation  # noqa: SLF001  no public getter exists
        if backend not in DENSE_MASK_BACKENDS:
            raise UserError(
                f"an attention backend that takes a dense mask expected ({', '.join(DENSE_MASK_BACKENDS)}), found "
                f"{backend}: a draft tree needs such a mask, use --attention sdpa"
            )
        self.model = model.eval()
        self.name = name
        self.config = config
        self.windows = architectures.attention_windows(config)
        self.dtype: torch.dtype = model.dtype
        self.num_layers: int = config.num_hidden_layers
        self.hidden_size: int = config.hidden_size
        self.context_limit = architectures.context_limit(config)
        self.vocab_size: int = model.get_output_embeddings().weight.shape[0]
        self._embedding: nn.Module = model.get_input_embeddings()
        self._lm_head: nn.Module = model.get_output_embeddings()
        self._input_device: torch.device = run_device(self._embedding)
        self._output_device: torch.device = last_layer_device(model)
        signature = inspect.signature(model.forward).parameters
        self._cache_keyword = cache_keyword(model.forward)
        self._counts_cached_tokens = architectures.counts_cached_tokens(config)
        self._fast: FastTarget | None = None
        self._may_be_fast = fast and supports(model)
        one_place = self._input_device == self._output_device and len(set(placed(model).values())) < 2
        self.steps = Steps(fixed_shapes if one_place else False)
        self._last_only: dict[str, Any] = {"logits_to_keep": 1} if "logits_to_keep" in signature else {}

    @property
    def device(self) -> torch.device:
        """Where logits and features appear: the device of the last layer."""
        return self._output_device

    def new_cache(self, capacity: int) -> TreeCache:
        """An empty cache for this model with room for `capacity` tokens."""
        return TreeCache(self.num_layers, capacity)

    def forward(
        self,
        tokens: Tensor,
        positions: Tensor,
        among_new: Tensor,
        cache: TreeCache,
        taps: tuple[int, ...] = (),
        last_only: bool = False,
    ) -> TargetOutput:
        """Run M new tokens [M] at `positions` [M] behind what the cache has filled, and leave them staged.

        `among_new` bool [M, M] says who sees whom among them; all see the cached tokens, up to the layer's window.
        `taps`: indices of transformers' `hidden_states` to return as features. `last_only`: logits of the last row
        alone, [1, V], otherwise [M, V].
        """
        fast = self._fast_path()
        count = tokens.shape[0]
        if fast is not None:
            mask = self._mask(among_new, positions, cache.filled, torch.float32)
            raw, features = fast.forward(tokens, positions, mask, cache, taps, last_only)
            cache.stage(count)
            return TargetOutput(self.adjust_logits(raw), features)
        if not last_only and self.steps.suit(count, cache, self.device):
            output = self._fixed(tokens, positions, among_new, cache, taps)
        else:
            mask = self._mask(among_new, positions, cache.filled, self.dtype)
            output = self._general(tokens, positions, mask, cache, taps, last_only)
        cache.stage(count)
        return output

    def _general(
        self, tokens: Tensor, positions: Tensor, mask: Any, cache: TreeCache, taps: tuple[int, ...], last_only: bool
    ) -> TargetOutput:
        """The model's own forward."""
        positions = sent(positions, self._input_device)
        if self._counts_cached_tokens:
            cache.show_positions(positions)
        output = self.model(
            input_ids=sent(tokens, self._input_device)[None],
            position_ids=positions[None],
            attention_mask=mask,
            use_cache=True,
            output_hidden_states=bool(taps),
            **{self._cache_keyword: cache},
            **(self._last_only if last_only else {}),
        )
        logits = (output.logits[0, -1:] if last_only else output.logits[0]).to(self._output_device)
        return TargetOutput(logits, self._features(output.hidden_states, taps) if taps else None)

    def _fixed(
        self, tokens: Tensor, positions: Tensor, among_new: Tensor, cache: TreeCache, taps: tuple[int, ...]
    ) -> TargetOutput:
        """`_general` as a step of fixed shape."""
        count = tokens.shape[0]
        rows = bucket(count)
        cache.reserve(cache.filled + rows)

        def step(tokens: Tensor, positions: Tensor, among: Tensor, filled: Tensor) -> tuple[Tensor, ...]:
            itself = torch.arange(rows, device=filled.device)
            among = among | (itself[:, None] == itself)  # so that no row of the padding sees nothing
            by_kind = {
                kind: masks.additive(
                    masks.placed_visibility(among, positions, filled, cache.capacity, window, kind == CHUNKED),
                    self.dtype,
                )
                for kind, window in self.windows.items()
            }
            mask = by_kind if len(by_kind) > 1 else next(iter(by_kind.values()))
            cache.slots = filled + itself
            output = self._general(tokens, positions, mask, cache, taps, last_only=False)
            cache.make_finite(cache.slots)
            cache.slots = None
            return (output.logits,) if output.features is None else (output.logits, output.features)

        def ordinary() -> tuple[Tensor, ...]:
            mask = self._mask(among_new, positions, cache.filled, self.dtype)
            output = self._general(tokens, positions, mask, cache, taps, last_only=False)
            return (output.logits,) if output.features is None else (output.logits, output.features)

        shapes = ((rows,), (rows,), (rows, rows), (1,))
        values = (tokens, positions, among_new, torch.tensor([cache.filled]))
        logits, *features = self.steps.run(
            cache, (rows, taps), step, shapes, values, ordinary, count, self._output_device
        )
        return TargetOutput(logits, features[0] if features else None)

    def _fast_path(self) -> FastTarget | None:
        """The fast path, made when it is first needed; None where the model is not known to it."""
        if self._fast is None and self._may_be_fast:
            self._fast = FastTarget(self.model)
        return self._fast

    def embed(self, tokens: Tensor) -> Tensor:
        """Input embeddings [M, H] of target ids [M], on the output device."""
        embedded: Tensor = self._embedding(sent(tokens, self._input_device))
        return embedded.to(self._output_device)

    @property
    def embedding_table(self) -> Tensor | None:
        """The weights behind `embed`, [V, H]; None where it does more than look up plain numbers on a CPU."""
        layer: Any = self._embedding
        plain = type(layer) is nn.Embedding and layer.max_norm is None and not hasattr(layer, "_hf_hook")
        weight: Tensor | None = layer.weight.detach() if plain else None
        on_cpu = self._input_device.type == self._output_device.type == "cpu"
        return weight if on_cpu and weight is not None and weight.is_contiguous() else None

    def lm_head(self, hidden: Tensor) -> Tensor:
        """Logits [M, V] of normed final hidden states [M, H], with the model's own scaling and soft cap."""
        if self._fast is not None and torch.is_inference_mode_enabled():
            return self.adjust_logits(self._fast.lm_head(hidden.float()))
        # An LM head that shares the embedding's weights rests beside the first layer, wherever the last one is.
        logits: Tensor = self._lm_head(hidden.to(self.dtype)).to(self._output_device)
        return self.adjust_logits(logits)

    def lm_head_part(self, ids: Tensor) -> Callable[[Tensor], Tensor]:
        """`lm_head` for the tokens `ids` [n] alone, from a copy of their rows: [M, H] to [M, n]. UserError where the
        LM head is quantised or adapted, so that it has no rows to copy."""
        layer: Any = self._lm_head
        if not is_plain(layer):
            raise UserError(
                f"an LM head of plain numbers expected for a trimmed draft vocabulary, found {type(layer).__name__}: "
                "leave --draft-vocab out"
            )
        ids = ids.to(self._output_device)
        bias = None if layer.bias is None else layer.bias.detach()[ids]
        matrix = matrix_of(layer.weight.detach()[ids], bias)
        return lambda hidden: self.adjust_logits(matrix(hidden.float()))

    def adjust_logits(self, logits: Tensor) -> Tensor:
        """The model's own scaling and soft cap, element by element, of what its LM head's matrix gives."""
        return architectures.adjust_logits(self.config, logits)

    def _features(self, hidden_states: tuple[Tensor, ...], taps: tuple[int, ...]) -> Tensor:
        chosen = [hidden_states[tap][0].to(self._output_device) for tap in taps]
        return chosen[0] if len(chosen) == 1 else torch.cat(chosen, dim=-1)

    def _mask(
        self, among_new: Tensor, positions: Tensor, num_cached: int, dtype: torch.dtype
    ) -> Tensor | dict[str, Tensor] | None:
        """The mask for each kind of layer, or None where a single token sees everything."""
        reach = num_cached + among_new.shape[0]
        hidden = {kind: window for kind, window in self.windows.items() if window is not None and window < reach}
        if among_new.shape[0] == 1 and not hidden:
            return None
        among_new, positions = sent(among_new, self._input_device), sent(positions, self._input_device)
        by_kind = {
            kind: masks.additive(
                masks.tree_visibility(among_new, positions, num_cached, hidden.get(kind), chunked=kind == CHUNKED),
                dtype,
                self._input_device,
            )
            for kind in self.windows
        }
        return by_kind if len(by_kind) > 1 else next(iter(by_kind.values()))
