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
STATES, ANGLES = CALL.index("normed"), CALL.index("cos")
"""Where in a call the places to work in begin and end."""
KEPT = 2**22
"""Numbers of a place to work in that is kept for fewer rows than it was made for."""
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
        frame = self.frame(hidden.shape[0], rotation, masks, cache)
        if frame is None:
            return None
        states = torch.empty(len(self._layers) + 1, *hidden.shape)
        states[0] = hidden
        inputs = inputs.contiguous()
        frame.call[:STATES] = states.data_ptr(), states.data_ptr() if inputs is hidden else inputs.data_ptr()
        self.kernels.layers(frame.call_address, frame.layers_address, len(self._layers))
        return states

    def takes(self, rows: int, cache: TreeCache) -> bool:
        """Whether a call of so many rows can be made, with masks that fit."""
        has_room = cache.addresses() is not None and cache.filled + rows <= cache.capacity
        return has_room and self._least <= rows <= FOLDED_ROWS

    def frame(self, rows: int, rotation: Rotation, masks: Sequence[Tensor | None], cache: TreeCache) -> Frame | None:
        """This thread's arguments of a call, all but the first `STATES`; valid until the next one. None: see `run`."""
        buffers, length = cache.addresses(), cache.filled + rows
        if buffers is None or not self.takes(rows, cache):
            return None
        if any(mask is not None and mask.shape[2:] != (rows, length) for mask in masks):
            return None  # what cannot be right is left to torch, which says so instead of reading beyond an end
        frame: Frame | None = getattr(self._local, "frame", None)
        if frame is None:
            frame = self._local.frame = Frame(self._weights.copy())
        if frame.rows != rows or frame.length < length:
            frame.make_room(*self._room(rows, length + GROWTH_STEP), rows, length + GROWTH_STEP)
        if frame.buffers is not buffers:
            frame.layers[:, BUFFERS], frame.buffers = buffers, buffers
        frame.layers[:, PLACE["mask"]] = [0 if mask is None else mask.data_ptr() for mask in masks]
        angles = rotation.cos.data_ptr(), rotation.sin.data_ptr(), rotation.positions.data_ptr()
        frame.call[ANGLES:] = (*angles, rows, cache.filled, cache.capacity, torch.get_num_threads())
        return frame

    def _room(self, rows: int, length: int) -> tuple[list[int], int]:
        """Numbers for each place to work in, in the order of `CALL`, and those for the scores, the last of them."""
        width, num_heads, num_kv_heads, size, inner = self._sizes
        by_row = width, (num_heads + 2 * num_kv_heads) * size, num_heads * size, width, 2 * inner, inner
        return [rows * count for count in by_row], rows * num_heads * (length + self.kernels.machine.lanes)


class Frame:
    """Arguments of a call: kept, because to make them anew costs as much as a small layer. `call` holds the numbers
    named in `CALL`, `layers` those named in `LAYER`, for as many layers as there are."""

    def __init__(self, layers: npt.NDArray[np.int64]) -> None:
        self.layers, self.call = layers, np.zeros(len(CALL), dtype=np.int64)
        self.call_address, self.layers_address = self.call.ctypes.data, layers.ctypes.data
        self.buffers: npt.NDArray[np.int64] | None = None
        self.rows, self.length, self._room = 0, 0, torch.empty(0)

    def make_room(self, sizes: list[int], scores: int, rows: int, length: int) -> None:
        """Places to work in, for `rows` that see up to `length` entries."""
        needed = sum(sizes) + scores
        if not needed <= self._room.shape[0] <= max(4 * needed, KEPT):
            self._room = torch.empty(needed)
        place = self._room.data_ptr()
        self.call[STATES:ANGLES] = [place + 4 * before for before in itertools.accumulate(sizes, initial=0)]
        self.rows, self.length = rows, length


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
        "epsilon": bits(layer.epsilon),
        "scale": bits(layer.scale),
    }
    return {name: 0 if tensor is None else tensor.data_ptr() for name, tensor in found.items()} | numbers


def bits(value: float) -> int:
    """Of a float32."""
    return int(np.float32(value).view(np.int32))
