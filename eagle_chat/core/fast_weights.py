"""From the linear layers of a model to matrices in fast layouts, without holding weights twice where one copy will do.

A dense layout is shared: the layer's own parameter becomes a view of it, so the model stays what it was for everybody
else. One in blocks, oneDNN's or ours, cannot be shared; a layer that has nothing else left is replaced by one that
reads it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from eagle_chat.core.fast_linear import Matrix, Plan
from eagle_chat.core.fast_plan import Planner


class PackedLinear(nn.Module):
    """Rows `start` to `stop` of a matrix that lies in blocks, in the place of a linear layer, for the general path."""

    def __init__(self, matrix: Matrix, start: int, stop: int, bias: Tensor | None) -> None:
        super().__init__()
        self._matrix, self.bias = matrix, bias
        self._rows = slice(start, stop)

    @property
    def weight(self) -> Tensor:
        """The dense weight, unpacked anew at every call."""
        return self._matrix.many.copy()[self._rows]

    def forward(self, x: Tensor) -> Tensor:
        """[..., K] to [..., rows]."""
        if x.requires_grad and torch.is_grad_enabled():  # these products have no derivative
            return F.linear(x, self.weight, self.bias)
        output: Tensor = self._matrix(x.flatten(0, -2).float()).view(*x.shape[:-1], -1)
        return output[..., self._rows].to(x.dtype)


def is_plain(layer: Any) -> bool:
    """Whether this is a linear layer as torch has it: not quantised, adapted, or moved about by hooks."""
    return type(layer) is nn.Linear and not hasattr(layer, "_hf_hook")


def fused(layers: Sequence[Any], planner: Planner, plan: Plan | None = None) -> Matrix:
    """One matrix that gives the outputs of all these layers side by side, as a copy beside them, by `plan` or else by
    the planner's."""
    rows = layers[0].weight.detach() if len(layers) == 1 else torch.cat([layer.weight.detach() for layer in layers])
    return Matrix(rows, _bias(layers), plan or planner.plan((rows.shape[0], rows.shape[1]), rows.dtype))


def matrix_of(weight: Tensor, bias: Tensor | None) -> Matrix:
    """A single weight [N, K] in the layout that suits it; as it is where it is not on the CPU."""
    if weight.device.type != "cpu":
        return Matrix(weight, bias, Plan())
    planner = Planner(weight.numel() * weight.element_size())
    return Matrix(weight, bias, planner.plan((weight.shape[0], weight.shape[1]), weight.dtype))


def taken_over(owner: Any, names: Sequence[str], planner: Planner) -> Matrix:
    """The same for the layers `names` of the module `owner`, whose own weights are given up for it."""
    layers = [getattr(owner, name) for name in names]
    matrix = fused(layers, planner)
    dense, start = matrix.dense, 0
    for name, layer in zip(names, layers, strict=True):
        stop = start + layer.out_features
        if dense is not None:
            layer.weight.data = dense[start:stop]
        else:
            setattr(owner, name, PackedLinear(matrix, start, stop, layer.bias))
        start = stop
    return matrix


def _bias(layers: Sequence[Any]) -> Tensor | None:
    if layers[0].bias is None:
        return None
    bias: Tensor = torch.cat([layer.bias.detach() for layer in layers])
    return bias
