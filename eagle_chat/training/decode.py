"""Many answers at once from the plain transformers model: left padding, one forward a token for all rows."""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from eagle_chat.core.target import Target, cache_keyword

COMPACT_BELOW = 0.75
"""Rows that have ended are taken out of the batch when fewer than this share of its rows still runs."""


@dataclass(frozen=True)
class Request:
    """One text to continue: prompt ids, how, and how far. `key` names its noise, so that a text does not depend on
    its neighbours in the batch (up to rounding). Temperature 0 is greedy; `min_p` as in transformers, 0 is off."""

    tokens: tuple[int, ...]
    key: str
    temperature: float = 0.0
    min_p: float = 0.0


@dataclass(frozen=True)
class Continuation:
    """New tokens without the stop token; `ended` is false where the budget cut them."""

    tokens: tuple[int, ...]
    ended: bool


def last_logits_only(model: Any) -> dict[str, int]:
    """Arguments that keep a model from computing logits for every position, where it can do without."""
    return {"logits_to_keep": 1} if "logits_to_keep" in inspect.signature(model.forward).parameters else {}


@torch.inference_mode()
def continue_all(
    target: Target, requests: Sequence[Request], stop_ids: Collection[int], max_new_tokens: int, seed: int
) -> list[Continuation]:
    """Continue every request by at most `max_new_tokens`, all in one batch.

    Prompts of different lengths are padded on the left: the mask hides the padding, and position ids count from each
    row's first real token.
    """
    if not requests:
        return []
    device = target.device
    batch = _Batch(target, requests, max_new_tokens)
    uniforms = torch.stack([_uniforms(seed, request.key, max_new_tokens) for request in requests]).to(device)  # [B, L]
    warm = torch.tensor([request.temperature for request in requests], device=device)  # [B]
    min_p = torch.tensor([request.min_p for request in requests], device=device)
    stops = torch.tensor(sorted(stop_ids), device=device)
    written: list[list[int]] = [[] for _ in requests]
    ended = [False] * len(requests)
    running = torch.arange(len(requests))  # request of every row in the batch
    for step in range(max_new_tokens):
        rows = running.to(device)
        drawn = draw(batch.logits, warm[rows], min_p[rows], uniforms[rows, step])  # [rows]
        stopped = torch.isin(drawn, stops).tolist()
        alive = [not ended[at] for at in running.tolist()]
        for at, token, stop, live in zip(running.tolist(), drawn.tolist(), stopped, alive, strict=True):
            if live and stop:
                ended[at] = True
            elif live:
                written[at].append(token)
        live_rows = [row for row, at in enumerate(running.tolist()) if not ended[at]]
        if not live_rows or step + 1 == max_new_tokens:
            break
        if len(live_rows) < COMPACT_BELOW * len(running):
            batch.keep(live_rows)
            running, drawn = running[live_rows], drawn[live_rows]
        batch.step(drawn)
    return [Continuation(tuple(tokens), end) for tokens, end in zip(written, ended, strict=True)]


def draw(logits: Tensor, temperature: Tensor, min_p: Tensor, uniform: Tensor) -> Tensor:
    """One token for each row of logits [B, V]: the argmax where `temperature` [B] is 0, else by inverse CDF.

    `uniform` [B] in (0, 1) decides; tokens less probable than `min_p` [B] times the best are left out.
    """
    best = logits.argmax(dim=-1)
    warm = (temperature > 0).nonzero()[:, 0]
    if warm.numel() == 0:
        return best
    # float64: in float32 the sum over a large vocabulary is off by more than rare tokens are worth.
    weights = (logits[warm].float() / temperature[warm, None]).softmax(dim=-1).double()
    top = weights.max(dim=-1, keepdim=True).values
    weights = weights.masked_fill(weights < min_p[warm, None] * top, 0.0)
    cumulative = weights.cumsum(dim=-1)
    threshold = uniform[warm, None].double() * cumulative[:, -1:]
    best[warm] = torch.searchsorted(cumulative, threshold, right=True)[:, 0].clamp_(max=logits.shape[-1] - 1)
    return best


def _uniforms(seed: int, key: str, count: int) -> Tensor:
    """`count` numbers in [0, 1) that depend on seed and key alone, float32."""
    digest = hashlib.sha256(f"{seed} {key}".encode()).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(digest[:8], "big") >> 1)
    return torch.rand(count, generator=generator)


class _Batch:
    """The rows of one batch with their cache; `logits` [rows, V] predict each row's next token."""

    def __init__(self, target: Target, requests: Sequence[Request], max_new_tokens: int) -> None:
        self._model = target.model
        self._device = next(target.model.get_input_embeddings().parameters()).device
        self._keyword = cache_keyword(target.model.forward)
        self._last_only = last_logits_only(target.model)
        lengths = [len(request.tokens) for request in requests]
        width = max(lengths)
        # Room for all of it from the start: a cache that grows by copying copies all its rows at every token.
        self._cache = target.new_cache(width + max_new_tokens)
        tokens = torch.zeros(len(requests), width, dtype=torch.long)
        mask = torch.zeros(len(requests), width, dtype=torch.long)
        for row, request in enumerate(requests):
            tokens[row, width - lengths[row] :] = torch.tensor(request.tokens)
            mask[row, width - lengths[row] :] = 1
        self._mask = mask.to(self._device)  # [rows, tokens so far]
        self._next = torch.tensor(lengths, device=self._device)  # [rows]: position of the next token
        positions = (self._mask.cumsum(dim=-1) - 1).clamp_(min=0)
        self.logits = self._forward(tokens.to(self._device), positions)

    def step(self, tokens: Tensor) -> None:
        """Run one new token [rows] for every row."""
        self._mask = torch.cat((self._mask, self._mask.new_ones(self._mask.shape[0], 1)), dim=-1)
        self.logits = self._forward(tokens.to(self._device)[:, None], self._next[:, None])
        self._next = self._next + 1

    def keep(self, rows: list[int]) -> None:
        """Forget every other row."""
        index = torch.tensor(rows, device=self._device)
        self._cache.keep_rows(index)
        self._mask, self._next = self._mask[index], self._next[index]

    def _forward(self, tokens: Tensor, positions: Tensor) -> Tensor:
        output = self._model(
            input_ids=tokens,
            attention_mask=self._mask,
            position_ids=positions,
            use_cache=True,
            **{self._keyword: self._cache},
            **self._last_only,
        )
        self._cache.stage(tokens.shape[1])
        logits: Tensor = output.logits[:, -1]
        return logits
