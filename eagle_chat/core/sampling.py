"""How one token is drawn from one row of logits: warpers, argmax, and Gumbel noise keyed by seed and position.

The noise makes losslessness an equality: argmax(logits + Gumbel noise) is a draw from softmax(logits) (the Gumbel-max
trick), and noise that depends on (seed, position) alone is the same whether the position is reached by a plain step
or inside a draft tree.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from enum import IntEnum

import torch
from torch import Tensor

from eagle_chat.core.config import SamplingConfig

Noise = Callable[[int], Tensor]
"""Gumbel noise [V] of the target's draw at an absolute position."""

_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15
_MIX_1 = 0xBF58476D1CE4E5B9
_MIX_2 = 0x94D049BB133111EB


class Stream(IntEnum):
    """Independent sources of noise under one seed."""

    TARGET = 0
    DRAFT = 1
    ACCEPT = 2
    RESIDUAL = 3


def _signed(value: int) -> int:
    value &= _MASK
    return value - (1 << 64) if value >> 63 else value


def _mix(value: int) -> int:
    """The finaliser of splitmix64 (Steele, Lea, Flood 2014): a bijection of 64-bit integers."""
    value = ((value ^ (value >> 30)) * _MIX_1) & _MASK
    value = ((value ^ (value >> 27)) * _MIX_2) & _MASK
    return value ^ (value >> 31)


def _key(seed: int, stream: Stream, position: int, index: int = 0) -> int:
    key = _mix((seed + _GOLDEN) & _MASK)
    for part in (int(stream), position, index):
        key = _mix((key + (part + 1) * _GOLDEN) & _MASK)
    return key


def uniform(seed: int, stream: Stream, position: int, index: int = 0) -> float:
    """One number in (0, 1), a function of its arguments."""
    return ((_key(seed, stream, position, index) >> 11) + 0.5) / (1 << 53)


def gumbel(seed: int, stream: Stream, position: int, size: int, device: torch.device | str = "cpu") -> Tensor:
    """Standard Gumbel noise, float64 [size]. The same numbers on every device, up to the rounding of its log."""
    counter = torch.arange(1, size + 1, dtype=torch.int64, device=device)
    bits = counter.mul_(_signed(_GOLDEN)).add_(_signed(_key(seed, stream, position)))
    # Two's complement wraps as splitmix64 wants; its right shifts are logical, hence the masks.
    bits ^= (bits >> 30) & ((1 << 34) - 1)
    bits *= _signed(_MIX_1)
    bits ^= (bits >> 27) & ((1 << 37) - 1)
    bits *= _signed(_MIX_2)
    bits ^= (bits >> 31) & ((1 << 33) - 1)
    uniforms = ((bits >> 11) & ((1 << 53) - 1)).double().add_(0.5).mul_(2.0**-53)
    return uniforms.log_().neg_().log_().neg_()


def warp(logits: Tensor, config: SamplingConfig) -> Tensor:
    """Logits [..., V] after temperature, top-k, top-p and min-p in transformers' order, float32; -inf is excluded.

    Each row is warped by itself. The temperature must be above 0.
    """
    scores = logits.float() / config.temperature
    vocabulary = scores.shape[-1]
    if 0 < config.top_k < vocabulary:
        smallest = scores.topk(config.top_k, dim=-1).values[..., -1:]
        scores = scores.masked_fill(scores < smallest, -torch.inf)
    if config.top_p < 1.0:
        ascending, order = scores.sort(dim=-1, descending=False)
        outside = ascending.softmax(dim=-1).cumsum(dim=-1) <= 1.0 - config.top_p
        outside[..., -1:] = False
        scores = scores.masked_fill(outside.scatter(-1, order, outside), -torch.inf)
    if config.min_p > 0.0:
        probabilities = scores.softmax(dim=-1)
        top = probabilities.max(dim=-1, keepdim=True).values
        scores = scores.masked_fill(probabilities < config.min_p * top, -torch.inf)
    return scores


def is_usable(row: Tensor) -> bool:
    """Whether logits [V] can be drawn from: no NaN, no +inf, not all -inf. (A maximum passes NaN on.)"""
    return math.isfinite(float(row[best(row)]))


def best(row: Tensor) -> int:
    """The first place of the largest of [V]; of a NaN where there is one."""
    if row.device.type == "cpu" and row.dtype is torch.float32:
        return int(row.numpy().argmax())  # a tenth of the time that torch takes
    return int(row.argmax())


def draw(row: Tensor, position: int, config: SamplingConfig, noise: Noise | None = None) -> int:
    """The target's token for absolute `position`, from logits [V]: argmax, or the keyed Gumbel draw.

    `noise` may give the noise [V] of a position where it was computed before.
    """
    if config.greedy:
        return best(row)
    noise = noise or target_noise(config, row)
    return int((warp(row, config).double() + noise(position)).argmax())


def target_noise(config: SamplingConfig, logits: Tensor) -> Noise:
    """The noise of the target's draws from logits [..., V], made anew at every call."""
    return lambda position: gumbel(config.seed, Stream.TARGET, position, logits.shape[-1], logits.device)
