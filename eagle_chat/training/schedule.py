"""How the learning rate, the unroll steps and the averaged weights go along a run."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from eagle_chat.training.config import TrainConfig


def learning_rate(config: TrainConfig, step: int, total: int) -> float:
    """The rate of optimiser step `step` of `total`, counted from 0: linear warm-up, then the schedule down to
    `final_rate` times the top."""
    warm = round(config.warmup * total)
    if step < warm:
        return config.learning_rate * (step + 1) / warm
    along = min(1.0, (step - warm) / max(1, total - 1 - warm))
    share = {"cosine": 0.5 * (1.0 + math.cos(math.pi * along)), "linear": 1.0 - along, "constant": 1.0}[config.schedule]
    return config.learning_rate * (config.final_rate + (1.0 - config.final_rate) * share)


def unroll_steps(config: TrainConfig, step: int, total: int) -> int:
    """Unroll steps at an optimiser step: the plan's entries over equal parts of the run."""
    part = step * len(config.unroll) // max(1, total)
    return config.unroll[min(part, len(config.unroll) - 1)]


def parameter_groups(module: nn.Module, weight_decay: float) -> list[dict[str, object]]:
    """Matrices decay, scales and biases do not."""
    parameters = [parameter for parameter in module.parameters() if parameter.requires_grad]
    matrices = [parameter for parameter in parameters if parameter.ndim > 1]
    others = [parameter for parameter in parameters if parameter.ndim <= 1]
    return [{"params": matrices, "weight_decay": weight_decay}, {"params": others, "weight_decay": 0.0}]


class Average:
    """Exponential moving average of a module's weights. Early on it follows faster, so that it forgets the start."""

    def __init__(self, module: nn.Module, decay: float) -> None:
        self.decay, self.updates = decay, 0
        self.values = {name: value.detach().clone() for name, value in module.named_parameters()}

    @torch.no_grad()
    def update(self, module: nn.Module) -> None:
        """Take in the weights after one more optimiser step."""
        self.updates += 1
        share = 1.0 - min(self.decay, self.updates / (self.updates + 10.0))
        for name, value in module.named_parameters():
            self.values[name].lerp_(value, share)

    @contextmanager
    def applied(self, module: nn.Module) -> Iterator[None]:
        """Inside, the module has the averaged weights."""
        own = {name: value.detach().clone() for name, value in module.named_parameters()}
        _put(module, self.values.items())
        try:
            yield
        finally:
            _put(module, own.items())


@torch.no_grad()
def _put(module: nn.Module, values: Iterable[tuple[str, Tensor]]) -> None:
    parameters = dict(module.named_parameters())
    for name, value in values:
        parameters[name].copy_(value)
