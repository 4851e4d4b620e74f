"""Matrix products of a model on a CPU, from whichever memory layout this machine is fastest at.

A weight [N, K] can lie by rows (as it is loaded), by columns (its transpose, contiguous), packed by oneDNN into the
blocks that its kernels read, or in the panels of our own `kernels`. Which is best depends on the processor, the
threads, the shape, the dtype and on how many rows are multiplied at a time, so it is measured, once per machine, and
remembered. Inputs and results are float32 whatever the weight's dtype: a handful of rows costs nothing in memory, and
sums in bfloat16 would only lose digits.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, Protocol

import torch
from torch import Tensor

from eagle_chat.core.kernels import Kernels, kernels, unpack

Layout = Literal["rows", "columns", "packed", "panels", "int8"]
LAYOUTS: tuple[Layout, ...] = ("rows", "columns", "packed", "panels")
"""Those that change nothing and so are a matter of speed alone. "int8" are panels of rounded weights."""
COUNTS = (1, 16)
"""Rows at which layouts are compared: a plain step, and a draft tree of a CPU."""
SECOND_COPY_GAIN = 1.3
"""A second layout for single rows is kept only where it makes them faster by this factor."""

Times = Mapping[int, Mapping[Layout, float]]
"""Seconds of a product by rows multiplied, and by layout."""


@dataclass(frozen=True)
class Plan:
    """`one`: the layout for a single row. `many`: the one for more rows. Two copies of a weight where they differ."""

    one: Layout = "rows"
    many: Layout = "rows"

    @property
    def layouts(self) -> tuple[Layout, ...]:
        """The distinct ones."""
        return (self.one,) if self.one == self.many else (self.one, self.many)


def choose(times: Times, two_copies: bool) -> Plan:
    """The plan with the smallest mean of (time / best time) over the row counts; a second layout for single rows
    where `two_copies` are affordable and one gains `SECOND_COPY_GAIN`."""
    layouts = list(next(iter(times.values())))

    def loss(layout: Layout, counts: list[int]) -> float:
        return sum(times[count][layout] / min(times[count].values()) for count in counts)

    if not two_copies:
        best = min(layouts, key=lambda layout: loss(layout, list(times)))
        return Plan(best, best)
    several = [count for count in times if count > 1]
    many = min(layouts, key=lambda layout: loss(layout, several))
    one = min(layouts, key=lambda layout: times[1][layout])
    return Plan(one if times[1][many] > SECOND_COPY_GAIN * times[1][one] else many, many)


def available_memory() -> int:
    """Bytes of memory that nobody uses; 0 where the system does not say."""
    try:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):
        return 0


class Form(Protocol):
    """A weight in one layout."""

    def __call__(self, x: Tensor) -> Tensor:
        """x W^T + b, float32 [M, K] to [M, N]."""

    def add(self, x: Tensor, residual: Tensor) -> Tensor:
        """The product added to `residual` [M, N], in one go where there is a way."""

    def view(self) -> Tensor | None:
        """W [N, K] as a view of this memory; None where the layout has none."""

    def copy(self) -> Tensor:
        """W [N, K] taken out of this layout."""

    @property
    def num_bytes(self) -> int:
        """Of memory."""


class Dense:
    """W^T [K, N], contiguous or the view of a weight by rows."""

    def __init__(self, transposed: Tensor, bias: Tensor | None) -> None:
        self.transposed, self._bias = transposed, bias

    def __call__(self, x: Tensor) -> Tensor:
        """See `Form`."""
        x = x.to(self.transposed.dtype)
        return (x @ self.transposed if self._bias is None else torch.addmm(self._bias, x, self.transposed)).float()

    def add(self, x: Tensor, residual: Tensor) -> Tensor:
        """See `Form`."""
        if self.transposed.dtype is not residual.dtype:
            return self(x).add_(residual)
        return torch.addmm(residual if self._bias is None else residual + self._bias, x, self.transposed)

    def view(self) -> Tensor | None:
        """See `Form`."""
        return self.transposed.t()

    def copy(self) -> Tensor:
        """See `Form`."""
        return self.transposed.t().clone()

    @property
    def num_bytes(self) -> int:
        """See `Form`."""
        return self.transposed.nbytes


class Packed:
    """W in oneDNN's own layout, which plain torch code can only read by unpacking it."""

    def __init__(self, packed: Tensor, bias: Tensor | None) -> None:
        self._packed, self._bias = packed, bias

    def __call__(self, x: Tensor) -> Tensor:
        """See `Form`."""
        x = x.to(self._packed.dtype)
        result: Tensor = torch.ops.mkldnn._linear_pointwise(x, self._packed, self._bias, "none", [], "")  # noqa: SLF001
        return result.float()

    def add(self, x: Tensor, residual: Tensor) -> Tensor:
        """See `Form`."""
        if self._packed.dtype is not residual.dtype:
            return self(x).add_(residual)
        result: Tensor = torch.ops.mkldnn._linear_pointwise.binary(  # noqa: SLF001
            x, residual, self._packed, self._bias, "add"
        )
        return result

    def view(self) -> Tensor | None:
        """See `Form`."""
        return None

    def copy(self) -> Tensor:
        """See `Form`."""
        return self._packed.to_dense()

    @property
    def num_bytes(self) -> int:
        """See `Form`; without what oneDNN fills its blocks up with."""
        return self._packed.numel() * self._packed.element_size()


class Panels:
    """W in the panels of our own kernels."""

    def __init__(self, compiled: Kernels, panels: Tensor, bias: Tensor | None) -> None:
        self._compiled, self._product, self.panels = compiled, compiled.product, panels
        self.bias = None if bias is None else bias.float().contiguous()

    def __call__(self, x: Tensor) -> Tensor:
        """See `Form`."""
        return self._product(x, self.panels, self.bias)

    def add(self, x: Tensor, residual: Tensor) -> Tensor:
        """See `Form`."""
        return self._product(x, self.panels, self.bias, residual)

    def view(self) -> Tensor | None:
        """See `Form`."""
        return None

    def copy(self) -> Tensor:
        """See `Form`."""
        return unpack(self.panels, self._compiled.machine)

    @property
    def num_bytes(self) -> int:
        """See `Form`."""
        return self.panels.nbytes

    def widen(self) -> None:
        """Keep bfloat16 weights as they are, no longer in 12 bits."""
        panels = self._compiled.pack(self.copy(), whole=True)
        assert panels is not None
        self.panels = panels


PACKED_FOR_ROWS = 16
"""What oneDNN is told of the rows to come when it chooses its blocks."""


def form(weight: Tensor, bias: Tensor | None, layout: Layout) -> Form | None:
    """W [N, K] in a layout; None where this build, processor, dtype or shape does not allow it."""
    if layout in ("panels", "int8"):
        compiled = kernels() if weight.device.type == "cpu" else None
        panels = None
        if compiled is not None:
            panels = compiled.pack_int8(weight) if layout == "int8" else compiled.pack(weight)
        return Panels(compiled, panels, bias) if compiled is not None and panels is not None else None
    if layout == "packed":
        packed = _pack(weight)
        return Packed(packed, bias) if packed is not None else None
    return Dense(weight.t().contiguous() if layout == "columns" else weight.t(), bias)


def layouts(weight: Tensor) -> list[Layout]:
    """Those that a weight [N, K] can have."""
    return [layout for layout in LAYOUTS if form(weight, None, layout) is not None]


def _pack(weight: Tensor) -> Tensor | None:
    if weight.device.type != "cpu" or not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return None
    try:
        packed: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), PACKED_FOR_ROWS)  # noqa: SLF001
    except (AttributeError, RuntimeError):
        return None
    return packed


class Matrix:
    """A weight in the layouts of its plan. `rows` [N, K] is given; what else the plan wants is made. `num_bytes`: of
    one copy; `extra_bytes`: of a second one."""

    def __init__(self, rows: Tensor, bias: Tensor | None, plan: Plan) -> None:
        # By rows too where a remembered layout turns out to be impossible.
        made = {layout: form(rows, bias, layout) or Dense(rows.t(), bias) for layout in plan.layouts}
        self.plan = plan
        self.one, self.many = made[plan.one], made[plan.many]
        self.shape = rows.shape
        self.num_bytes = self.many.num_bytes
        self.extra_bytes = self.one.num_bytes if self.one is not self.many else 0

    def for_rows(self, count: int) -> Form:
        """The layout to multiply `count` rows with."""
        return self.one if count == 1 else self.many

    def __call__(self, x: Tensor) -> Tensor:
        """x W^T + b, [M, K] to [M, N]."""
        return self.for_rows(x.shape[0])(x)

    def add(self, x: Tensor, residual: Tensor) -> Tensor:
        """`residual` + x W^T + b, [M, N]."""
        return self.for_rows(x.shape[0]).add(x, residual)

    @property
    def dense(self) -> Tensor | None:
        """W [N, K] as a view of a layout that has one: by rows or by columns."""
        view = self.many.view()
        return view if view is not None else self.one.view()
