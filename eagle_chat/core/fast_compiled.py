"""Decoder layers run by `kernels` from end to end: one call for all, for the rows of a draft tree or a plain step.

The layers as `fast_layers` runs them make fifteen calls into torch each. On a processor whose plain step takes 20 ms
those calls are a third of it.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from eagle_chat.core.cache import GROWTH_STEP, TreeCache
from eagle_chat.core.fast_layers import FOLDED_ROWS, FastLayer, Rotation
from eagle_chat.core.fast_linear import Panels
from eagle_chat.core.kernel_machine import CALL, LAYER, UNROLLED
from eagle_chat.core.kernels import DTYPES, Kernels, kernels

PLACE = {name: at for at, name in enumerate(LAYER)}
BUFFERS = slice(PLACE["keys"], PLACE["values"] + 1)


class CompiledLayers:
    """A model's or head's decoder layers, ready to be called."""

    def __init__(self, compiled: Kernels, layers: Sequence[FastLayer]) -> None:
        self.kernels, self._layers = compiled, layers  # which own the weights that are pointed to
        first = layers[0]
        self._sizes = first.hidden_size, first.num_heads, first.num_kv_heads, first.head_dim, first.inner_size
        self._local = threading.local()
        self._weights = np.zeros((len(layers), len(LAYER)), dtype=np.int64)
        # Where single rows have another layout, they are left to it.
        self._least = 1 if all(matrix.one is matrix.many for layer in layers for matrix in layer.matrices) else 2
        forms = list(DTYPES)
        for at, layer in enumerate(layers):
            for name, value in ({"form": forms.index(_alike(layer))} | _constants(layer)).items():
                self._weights[at, PLACE[name]] = value

    @classmethod
    def of(cls, layers: Sequence[FastLayer]) -> CompiledLayers | None:
        """None where the kernels do not know these layers, their sizes or the layout of a weight."""
        compiled = kernels()
        if compiled is None:
            return None
        lanes = compiled.machine.lanes
        for layer in layers:
            panels = _panels(layer)
            whole = (
                layer.head_dim % (UNROLLED * lanes) == 0 and layer.hidden_size % lanes == layer.inner_size % lanes == 0
            )
            if not whole or layer.has_head_norms or len(panels) < 4 or len({_width(one) for one in panels}) > 1:
                return None
        return cls(compiled, layers)

    @torch.inference_mode()
    def run(
        self, inputs: Tensor, hidden: Tensor, rotation: Rotation, masks: Sequence[Tensor | None], cache: TreeCache
    ) -> Tensor | None:
        """Hidden states [M, H] through all layers: [layers + 1, M, H], those before each and those after the last.

        `inputs` [M, any] is what the first layer's attention reads where that layer has no norm of its own, otherwise
        `hidden` again. `masks` [1, 1, M, L] by layer. Keys and values are staged in `cache`. None: too few or too
        many rows, or the cache is not one of theirs yet; nothing was done then.
        """
        rows, buffers = hidden.shape[0], cache.addresses()
        if buffers is None or not self._least <= rows <= FOLDED_ROWS:
            return None
        length = cache.filled + rows
        if length > cache.capacity or any(mask is not None and mask.shape[2:] != (rows, length) for mask in masks):
            return None  # what cannot be right is left to torch, which says so instead of reading beyond an end
        states = torch.empty(len(self._layers) + 1, rows, self._sizes[0])
        states[0] = hidden
        inputs = inputs.contiguous()
        frame = self._frame(rows, length)
        if frame.buffers is not buffers:
            frame.layers[:, BUFFERS], frame.buffers = buffers, buffers
        frame.layers[:, PLACE["mask"]] = [0 if mask is None else mask.data_ptr() for mask in masks]
        start, read = states.data_ptr(), inputs.data_ptr()
        angles = rotation.cos.data_ptr(), rotation.sin.data_ptr(), rotation.positions.data_ptr()
        counts = rows, cache.filled, cache.capacity, torch.get_num_threads()
        frame.call[:] = (start, start if inputs is hidden else read, *frame.places, *angles, *counts)
        self.kernels.layers(frame.call_address, frame.layers_address, len(self._layers))
        return states

    def _frame(self, rows: int, length: int) -> _Frame:
        """This thread's frame for so many rows that see up to `length` entries."""
        frames: dict[int, _Frame] = self._local.__dict__
        frame = frames.get(rows)
        if frame is None or frame.length < length:
            width, num_heads, num_kv_heads, size, inner = self._sizes
            length = -(-length // GROWTH_STEP) * GROWTH_STEP
            room = {
                "scores": num_heads * (length + self.kernels.machine.lanes),
                "normed": width,
                "qkv": (num_heads + 2 * num_kv_heads) * size,
                "attended": num_heads * size,
                "hidden": width,
                "both": 2 * inner,
                "inner": inner,
            }
            frame = frames[rows] = _Frame(self._weights.copy(), [rows * count for count in room.values()], length)
        return frame


class _Frame:
    """What a call of so many rows is made with, for up to `length` entries seen: kept, because to make it anew costs as
    much as a small layer."""

    def __init__(self, layers: npt.NDArray[np.int64], sizes: list[int], length: int) -> None:
        """`sizes`: numbers for each place to work in."""
        self.layers, self.length = layers, length
        self.call = np.zeros(len(CALL), dtype=np.int64)
        self.call_address, self.layers_address = self.call.ctypes.data, layers.ctypes.data
        self.buffers: npt.NDArray[np.int64] | None = None
        self._room = torch.empty(sum(sizes))
        self.places = [self._room.data_ptr() + 4 * before for before in itertools.accumulate(sizes[:-1], initial=0)]


def _panels(layer: FastLayer) -> list[Panels]:
    """The weights of a layer, those that lie in panels for several rows."""
    return [matrix.many for matrix in layer.matrices if isinstance(matrix.many, Panels)]


def _width(one: Panels) -> torch.dtype:
    """The dtype of the weights themselves; bytes without a sign hold bfloat16 in 12 bits."""
    return torch.bfloat16 if one.panels.dtype is torch.uint8 else one.panels.dtype


def _alike(layer: FastLayer) -> torch.dtype:
    """The form of all weights of a layer: where one did not fit in 12 bits a number, none has them."""
    panels = _panels(layer)
    if len({one.panels.dtype for one in panels}) > 1:
        for one in panels:
            if one.panels.dtype is torch.uint8:
                one.widen()
    return panels[0].panels.dtype


def _constants(layer: FastLayer) -> dict[str, int]:
    """What does not change from call to call. The layer keeps alive what is pointed to."""
    found = {
        "input_norm": layer.norm_weights[0],
        "mlp_norm": layer.norm_weights[1],
    }
    for name, matrix in zip(("qkv", "out", "up", "down"), layer.matrices, strict=True):
        form = matrix.many
        assert isinstance(form, Panels)
        found |= {f"{name}_weight": form.panels, f"{name}_bias": form.bias}
    numbers = {
        "depth": layer.matrices[0].shape[1],
        "hidden_size": layer.hidden_size,
        "heads": layer.num_heads,
        "kv_heads": layer.num_kv_heads,
        "head_size": layer.head_dim,
        "inner_size": layer.inner_size,
        "epsilon": _bits(layer.epsilon),
        "scale": _bits(layer.scale),
    }
    return {name: 0 if tensor is None else tensor.data_ptr() for name, tensor in found.items()} | numbers


def _bits(value: float) -> int:
    return int(np.float32(value).view(np.int32))
