"""What the target says about a batch of training text: features, final hidden states, its own choices."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from eagle_chat.core.target import Target
from eagle_chat.training.dataset import Sample
from eagle_chat.training.decode import last_logits_only

LOGIT_ROWS = 2048
"""Rows of full logits held at once; a row is as wide as the target's vocabulary."""


@dataclass(frozen=True)
class Batch:
    """`tokens` int64 [B, T], padded on the right; `mask` bool [B, T]: assistant tokens. `features` [B, T, F] are what
    the head reads, `final` [B, T, H] what the target's LM head reads; an eagle head's features are the final states.
    `best` int64 [B, T]: the target's most probable token after each position, known (not -1) where the token after
    it bears loss."""

    tokens: Tensor
    mask: Tensor
    features: Tensor
    final: Tensor
    best: Tensor

    @property
    def num_tokens(self) -> int:
        """Tokens that bear loss."""
        return int(self.mask.sum())


class FeatureSource(Protocol):
    """Gives the batch for some samples, on the training device."""

    def batch(self, numbers: Sequence[int]) -> Batch:
        """The batch of the samples with these numbers."""
        ...


def padded(samples: Sequence[Sample]) -> tuple[Tensor, Tensor]:
    """Tokens int64 [B, T] and mask bool [B, T], filled up with token 0 on the right, where no real token looks."""
    longest = max(len(sample) for sample in samples)
    tokens = np.zeros((len(samples), longest), dtype=np.int64)
    mask = np.zeros((len(samples), longest), dtype=np.bool_)
    for row, sample in enumerate(samples):
        tokens[row, : len(sample)] = sample.tokens
        mask[row, : len(sample)] = sample.mask
    return torch.from_numpy(tokens), torch.from_numpy(mask)


@torch.no_grad()
def run_target(target: Target, tokens: Tensor, mask: Tensor, taps: Sequence[int]) -> Batch:
    """One forward of the unmodified model over right-padded text. No mask is needed: attention is causal.

    `taps`: indices of `hidden_states` that make up the features, low to high.
    """
    embedding = next(target.model.get_input_embeddings().parameters()).device
    output = target.model(
        input_ids=tokens.to(embedding), use_cache=False, output_hidden_states=True, **last_logits_only(target.model)
    )
    states = output.hidden_states
    final = states[-1].to(target.device)
    chosen = [states[tap].to(target.device) for tap in taps]
    features = chosen[0] if len(chosen) == 1 else torch.cat(chosen, dim=-1)
    tokens, mask = tokens.to(target.device), mask.to(target.device)
    return Batch(tokens, mask, features, final, best_tokens(target, final, mask))


def best_tokens(target: Target, final: Tensor, mask: Tensor) -> Tensor:
    """The argmax of the target's logits [B, T] after each position whose next token is in `mask`; -1 elsewhere."""
    best = torch.full(mask.shape, -1, dtype=torch.long, device=final.device)
    rows, columns = mask[:, 1:].nonzero(as_tuple=True)  # the position before a token predicts it
    chosen = final[rows, columns]  # [M, H]
    parts = [target.lm_head(part).argmax(dim=-1) for part in torch.split(chosen, LOGIT_ROWS)]
    if parts:
        best[rows, columns] = torch.cat(parts)
    return best


class LiveFeatures:
    """Runs the target for every batch."""

    def __init__(self, target: Target, samples: Sequence[Sample], taps: Sequence[int]) -> None:
        self._target, self._samples, self._taps = target, samples, tuple(taps)

    def batch(self, numbers: Sequence[int]) -> Batch:
        """See `FeatureSource`."""
        tokens, mask = padded([self._samples[number] for number in numbers])
        return run_target(self._target, tokens, mask, self._taps)


class Teacher:
    """The target's logits over a vocabulary of its most frequent tokens, from final hidden states.

    `ids` int64 [Vd]: the target ids of that vocabulary; None for all.
    """

    def __init__(self, target: Target, ids: Tensor | None) -> None:
        self._target = target
        self.ids = ids.to(target.device) if ids is not None else None
        self._known = torch.ones(target.vocab_size, dtype=torch.bool, device=target.device)
        if self.ids is not None:
            self._known = torch.zeros_like(self._known).index_fill_(0, self.ids, True)
        self._rows: Tensor | None = None
        self._bias: Tensor | None = None
        layer = target.model.get_output_embeddings()
        # A plain matrix can be cut down to the rows that matter; a quantised one is run whole.
        if self.ids is not None and type(layer) is nn.Linear and layer.weight.is_floating_point():
            self._rows = layer.weight.detach()[self.ids]
            self._bias = _rows_of(layer.bias, self.ids)

    def logits(self, final: Tensor) -> Tensor:
        """Logits float32 [M, Vd] of final hidden states [M, H]; gradients go back to these alone."""
        final = final.to(self._target.dtype)
        if self._rows is not None:
            return self._target.adjust_logits(F.linear(final, self._rows, self._bias)).float()
        logits = self._target.lm_head(final)
        return (logits if self.ids is None else logits[:, self.ids]).float()

    def target_ids(self, places: Tensor) -> Tensor:
        """Target ids of places in the vocabulary, same shape."""
        return places if self.ids is None else self.ids[places]

    def knows(self, token_ids: Tensor) -> Tensor:
        """Which target ids the draft vocabulary holds, bool, same shape."""
        return self._known[token_ids]


def _rows_of(values: Tensor | None, ids: Tensor) -> Tensor | None:
    return None if values is None else values.detach()[ids]
