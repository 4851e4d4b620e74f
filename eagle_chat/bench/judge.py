"""Is a difference between two answers a numerical tie, or a fault?

The same token has slightly different logits when the target computes it alone, in a chunk or with the whole text,
because sums are rounded in another order. How much is measured, on this machine and this text, without any draft: the
same prefix is run in several ways. Two tokens tie where each of them is the target's choice up to that noise.

In float32 nothing is granted: two tokens tie only where the target alone chooses each of them in one of these ways, or
where their logits are equal. Any other difference is a fault, however small the gap.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

from eagle_chat.core import masks, sampling
from eagle_chat.core.config import SamplingConfig
from eagle_chat.core.engine import PREFILL_CHUNK
from eagle_chat.core.sampling import Stream

if TYPE_CHECKING:
    from eagle_chat.core.target import Target

Verdict = Literal["equal", "tie", "fault"]
PIECES = (1, 4, 16)
"""Answer tokens that the target sees at once, one way of computing each; the whole text at once is one more."""
LEAST_POSITIONS = 48
"""Positions of the text at which the noise is measured, or as many as there are."""
MARGIN = 2.0
"""The noise is the largest difference seen between these few ways; a tree is one more way and may go beyond."""
LEAST_ULPS = 1.0
"""Two neighbouring numbers of the format always tie."""


@dataclass(frozen=True)
class Judgement:
    """`gap`: between the scores of the two tokens, in logits; the same in ulps of the target's number format at the
    size of those logits. `tolerance_ulps`: the gap up to which the target's own noise explains the difference."""

    verdict: Verdict
    gap: float | None
    gap_ulps: float | None
    tolerance_ulps: float


@torch.inference_mode()
def answer_rows(target: Target, prompt: Sequence[int], answer: Sequence[int], piece: int | None = None) -> Tensor:
    """The target's logits for every answer token, [len(answer), V] float32, from plain causal forwards.

    `piece`: answer tokens a forward, after the prompt; None: prompt and answer as one text.
    """
    tokens = [*prompt, *answer[:-1]]
    start = len(prompt) if piece else len(tokens)
    ends = [*range(PREFILL_CHUNK, start, PREFILL_CHUNK), start]
    if piece:
        ends += [*range(start + piece, len(tokens), piece), len(tokens)] if len(tokens) > start else []
    cache = target.new_cache(len(tokens))
    rows: list[Tensor] = []
    for begin, end in zip([0, *ends], ends, strict=False):
        count = end - begin
        positions = torch.arange(begin, end)
        ids = torch.tensor(tokens[begin:end])
        output = target.forward(ids, positions, masks.causal_matrix(count), cache, last_only=end < len(prompt))
        cache.commit(list(range(count)))
        rows.append(output.logits.float())
    return torch.cat(rows)[-len(answer) :]


def chosen_tokens(rows: Tensor, first_position: int, config: SamplingConfig) -> list[int]:
    """The target's choice at each row [n, V]; row i decides the token at absolute `first_position` + i."""
    return [sampling.draw(row, first_position + index, config) for index, row in enumerate(rows)]


class Reference:
    """The target alone on one text: `prompt` and the `answer` that plain decoding gave under `config`."""

    def __init__(self, target: Target, prompt: Sequence[int], answer: Sequence[int], config: SamplingConfig) -> None:
        # A short answer says little about the noise: the end of the prompt is looked at too.
        self._extra = min(max(LEAST_POSITIONS - len(answer), 0), len(prompt) - 1)
        cut = len(prompt) - self._extra
        self._start = cut
        self._target, self._config = target, config
        self._prompt, self._answer = list(prompt[:cut]), [*prompt[cut:], *answer]
        self._ways: list[Tensor] | None = None

    def judge(self, at: int, pair: tuple[int, int]) -> Judgement:
        """Answer token `at` was chosen in two ways, after the same tokens: a tie or a fault."""
        dtype = self._target.dtype
        ways, place = self._all_ways(), at + self._extra
        scores = [_scores(rows, self._start, self._config) for rows in ways]
        tolerance = 0.0 if dtype == torch.float32 else self._tolerance(ways, scores)
        here = torch.stack([way[place] for way in scores])  # [ways, V]
        ulp = _ulp(ways[0][place, list(pair)], dtype)
        gap = abs(float(here[0, pair[0]] - here[0, pair[1]]))
        behind = (here.amax(dim=-1, keepdim=True) - here[:, list(pair)]) / ulp  # [ways, 2]
        chosen = behind.amin(dim=0) == 0.0  # in one of the ways it is the best, or as good as that
        known = math.isfinite(gap)  # a warper may exclude one of the two
        verdict: Verdict = "tie" if bool((chosen | (behind[0] <= tolerance)).all()) else "fault"
        return Judgement(verdict, gap if known else None, gap / ulp if known else None, tolerance)

    def _tolerance(self, ways: Sequence[Tensor], scores: Sequence[Tensor]) -> float:
        """How many ulps the target's own rounding explains, over the whole text."""
        noise = max(_noise(ways, scores, row, self._target.dtype) for row in range(len(ways[0])))
        return max(LEAST_ULPS, MARGIN * noise)

    def _all_ways(self) -> list[Tensor]:
        """Logits of every position, [positions, V], for each way of computing them; remembered."""
        if self._ways is None:
            self._ways = [answer_rows(self._target, self._prompt, self._answer, piece) for piece in (*PIECES, None)]
        return self._ways


def _scores(rows: Tensor, start: int, config: SamplingConfig) -> Tensor:
    """What the largest of is chosen, [n, V], in logits: with the draw's noise where it is not greedy."""
    if config.greedy:
        return rows
    noise = [
        sampling.gumbel(config.seed, Stream.TARGET, start + index, rows.shape[-1], rows.device)
        for index in range(len(rows))
    ]
    scores: Tensor = (sampling.warp(rows, config).double() + torch.stack(noise)) * config.temperature
    return scores


def _noise(ways: Sequence[Tensor], scores: Sequence[Tensor], place: int, dtype: torch.dtype) -> float:
    """How far the gap of the two best tokens at one position differs between the ways of computing it, in ulps."""
    best = scores[0][place].topk(2).indices
    gaps = [float(way[place, best[0]] - way[place, best[1]]) for way in scores]
    if not all(map(math.isfinite, gaps)):
        return 0.0
    return (max(gaps) - min(gaps)) / _ulp(ways[0][place, best], dtype)


def _ulp(logits: Tensor, dtype: torch.dtype) -> float:
    """The distance of neighbouring numbers of `dtype` at the larger of these logits."""
    largest = max(float(logits.abs().max()), torch.finfo(dtype).tiny)
    return float(torch.finfo(dtype).eps) * 2.0 ** math.floor(math.log2(largest))
