"""A decoder layer's arithmetic for a handful of rows, compiled by LLVM for the processor it runs on.

A draft tree pays where checking eight tokens costs little more than one. The libraries under torch are made for many
rows or for one: without instructions for bfloat16 they take six times as long for eight rows as for one. Here a weight
is read once for all rows, as float32, bfloat16 or int8, and is widened to float32 in a register.

The weight [N, K] lies in panels of some outputs, [N / panel, K, panel]. A block of rows keeps its sums in registers
while it goes through a panel. Every sum runs over K in order, so a row's result does not depend on the rows beside it.
"""

from __future__ import annotations

import ctypes
import functools
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from eagle_chat.core.kernel_machine import Machine

DTYPES = {torch.float32: "f32", torch.bfloat16: "bf16", torch.int8: "i8", torch.uint8: "bf12"}
"""Forms of a weight by the dtype of the tensor that holds its panels; bytes without a sign are `kernel_bf12`'s."""
LARGEST = 127
SCALE_BYTES = 4


def describe(architecture: str, features: dict[str, bool]) -> Machine | None:
    """The machine by LLVM's names; None where nothing is gained (no fused multiply-add)."""
    if architecture in ("aarch64", "arm64"):
        return Machine(4, 32)
    if features.get("avx512f"):
        return Machine(16, 32)
    if features.get("avx2") and features.get("fma"):
        return Machine(8, 16)
    return None


class Kernels:
    """The compiled functions."""

    def __init__(self, machine: Machine) -> None:
        """Any exception of LLVM where it has no code generator for this processor."""
        from eagle_chat.core import kernel_code

        self.machine = machine
        self._engine = kernel_code.load(machine, _openmp())  # owns the code
        pointer, size = ctypes.c_void_p, ctypes.c_int64
        product = [pointer] * 5 + [size] * 3 + [ctypes.c_int32]
        self._products = {dtype: self._function(f"product_{name}", *product) for dtype, name in DTYPES.items()}
        self._pack_bf12 = self._function("pack_bf12", pointer, pointer, *[size] * 4)
        self._norm = self._function("norm", *[pointer] * 3, size, size, ctypes.c_float)
        self._gated = self._function("gated", pointer, pointer, size, size)
        self._rotate = self._function("rotate", *[pointer] * 4, *[size] * 4)
        self.layers = self._function("layers", pointer, pointer, size)
        """Whole decoder layers: see `kernel_layer.add_layers`."""
        self.level = self._function("level", *[pointer] * 3)
        self.choose = self._function("choose", pointer, returns=size)
        """A level of a draft: see `kernel_head`."""
        self._best = self._function("best", *[pointer] * 3, *[size] * 3, returns=size)

    def _function(self, name: str, *arguments: Any, returns: Any = None) -> Any:
        return ctypes.CFUNCTYPE(returns, *arguments)(self._engine.get_function_address(name))

    def pack(self, weight: Tensor, whole: bool = False) -> Tensor | None:
        """W [N, K] in panels, without loss; None where it does not fit in whole panels.

        bfloat16 in 12 bits where that can be (see `kernel_bf12`), unless `whole`; else [N / panel, K, panel].
        """
        from eagle_chat.core import kernel_bf12

        size = self.machine.panel
        if weight.dtype not in (torch.float32, torch.bfloat16, torch.int8) or weight.shape[0] % size != 0:
            return None
        short = None if whole else kernel_bf12.pack(weight, self.machine, self._pack_bf12)
        return weight.view(-1, size, weight.shape[1]).transpose(1, 2).contiguous() if short is None else short

    def pack_int8(self, weight: Tensor) -> Tensor | None:
        """W [N, K] rounded to int8 with a scale for each output: [N / panel, (K + 4) panel], the scales of a panel as
        the bytes of float32 behind its weights; None where it does not fit in whole panels."""
        rounded, scales = _rounded(weight.float())
        panels = self.pack(rounded)
        if panels is None:
            return None
        return torch.cat((panels.flatten(1), scales.view(panels.shape[0], -1).view(torch.int8)), dim=1)

    def product(self, x: Tensor, panels: Tensor, bias: Tensor | None = None, add: Tensor | None = None) -> Tensor:
        """x W^T + bias + add in float32: [M, K] to [M, N], from x float32 [M, K], bias float32 [N], add [M, N]."""
        x = x.contiguous()
        rows, columns = x.shape
        outputs = panels.shape[0] * self.machine.panel
        result = torch.empty(rows, outputs)
        self._products[panels.dtype](
            x.data_ptr(),
            panels.data_ptr(),
            0 if bias is None else bias.data_ptr(),
            0 if add is None else add.contiguous().data_ptr(),
            result.data_ptr(),
            rows,
            columns,
            outputs,
            torch.get_num_threads(),
        )
        return result

    def norm(self, x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
        """x weight / sqrt(mean(x^2) + epsilon) over the last dimension, float32; whole vectors only."""
        x = x.contiguous()
        result, size = torch.empty_like(x), weight.shape[0]
        self._norm(x.data_ptr(), weight.data_ptr(), result.data_ptr(), x.numel() // size, size, epsilon)
        return result

    def gated(self, both: Tensor) -> Tensor:
        """silu(g) u of rows [g, u], float32 [M, 2 F] to [M, F]; whole vectors only."""
        rows, size = both.shape[0], both.shape[1] // 2
        result = torch.empty(rows, size)
        self._gated(both.data_ptr(), result.data_ptr(), rows, size)
        return result

    def rotate(self, x: Tensor, heads: int, cos: Tensor, sin: Tensor, positions: Tensor) -> None:
        """RoPE in place, of the first `heads` heads of x float32 [M, all heads, D]; `cos` and `sin` [any, D] by their
        position (int64 [M]), the first half of `sin` negated. All are contiguous; half a head is whole vectors."""
        rows, size = x.shape[0], x.shape[2]
        angles = cos.data_ptr(), sin.data_ptr(), positions.data_ptr()
        self._rotate(x.data_ptr(), *angles, rows, x.shape[1] * size, heads, size // 2)

    def best(self, logits: Tensor, count: int) -> tuple[Tensor, Tensor] | None:
        """The `count` highest of each row of logits float32 [R, V], best first: their ids, int64, and log-softmax, both
        [R, count]; None where NaN or infinity is in the way. Whole vectors only."""
        logits = logits.contiguous()
        rows, size = logits.shape
        ids, values = torch.empty(rows, count, dtype=torch.int64), torch.empty(rows, count)
        usable = self._best(logits.data_ptr(), ids.data_ptr(), values.data_ptr(), rows, size, count)
        return (ids, values) if usable else None

    def fits(self, size: int) -> bool:
        """Whether so many numbers are whole vectors."""
        return size > 0 and size % self.machine.lanes == 0


def _rounded(weight: Tensor) -> tuple[Tensor, Tensor]:
    """W [N, K] as int8 and a scale [N] for each output."""
    scales = weight.abs().amax(dim=1).clamp_(min=torch.finfo(torch.float32).tiny * LARGEST) / LARGEST
    return (weight / scales[:, None]).round_().to(torch.int8), scales


def unpack(panels: Tensor, machine: Machine) -> Tensor:
    """The weight [N, K] again, as a copy, of the panels of a machine."""
    if panels.dtype is torch.uint8:
        from eagle_chat.core import kernel_bf12

        return kernel_bf12.unpack(panels, machine)
    size = machine.panel
    if panels.dtype is not torch.int8:
        return panels.transpose(1, 2).reshape(-1, panels.shape[1])
    depth = panels.shape[1] // size - SCALE_BYTES
    values, scales = panels[:, : depth * size], panels[:, depth * size :]
    rows = values.reshape(-1, depth, size).transpose(1, 2).reshape(-1, depth).float()
    return rows.mul_(scales.contiguous().view(torch.float32).view(-1, 1))


@functools.cache
def kernels() -> Kernels | None:
    """The kernels of this processor, compiled at the first call on this machine; None where there are none."""
    try:
        from llvmlite import binding

        architecture = binding.get_process_triple().split("-")[0]
        machine = describe(architecture, dict(binding.get_host_cpu_features()))
        return Kernels(machine) if machine is not None else None
    except (ImportError, OSError, RuntimeError):
        return None


def _openmp() -> dict[str, int]:
    """Addresses of the OpenMP functions that torch itself uses, so that its threads are ours; none where it has others,
    and everything runs on one thread."""
    library = Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"
    try:
        loaded = ctypes.CDLL(str(library))
        names = ("GOMP_parallel", "omp_get_thread_num", "omp_get_num_threads")
        found = {name: ctypes.cast(getattr(loaded, name), ctypes.c_void_p).value for name in names}
    except (OSError, AttributeError):
        return {}
    return {name: address for name, address in found.items() if address is not None}
