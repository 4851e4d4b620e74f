"""LLVM's intermediate code of the matrix products in `kernels`."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

from llvmlite import ir

from eagle_chat.core import kernel_bf12
from eagle_chat.core.kernel_ir import (
    BYTE,
    FLOAT,
    INT,
    LONG,
    POINTER,
    SHORT,
    VOID,
    Loop,
    at_offset,
    broadcast,
    declared,
    from_memory,
    in_parallel,
    number,
    to_memory,
    widened,
)
from eagle_chat.core.kernel_machine import Machine

ELEMENTS = {"f32": (FLOAT, 4), "bf16": (SHORT, 2), "i8": (BYTE, 1)}
"""How a weight is stored that is a number by itself, and its bytes."""
SCALED = "i8"
"""Behind the weights of its panel each output has a scale, a float32."""
FORMS = (*ELEMENTS, "bf12")
"""All forms of a weight; for the last see `kernel_bf12`."""
CACHE_LINE = 64
TYPES = [POINTER] * 5 + [LONG] * 3


def add_products(made: Any, machine: Machine, dtypes: list[str], parallel: bool) -> None:
    """Put `product_<dtype>(x, weight, bias, add, y, rows, depth, outputs, threads)` into the module for every dtype.

    `parallel`: the panels are shared among the threads of OpenMP.
    """
    kernel_bf12.add_exceptions(made, machine)
    for dtype in dtypes:
        blocks = [_block(made, machine, dtype, rows) for rows in range(1, machine.rows + 1)]
        panels = _panels(made, machine, dtype, blocks)
        _entry(made, machine, dtype, panels, parallel)


def _block(made: Any, machine: Machine, dtype: str, rows: int) -> Any:
    """Code for `rows` rows and one panel: (x, panel, bias, add, y, ahead, depth, outputs), pointers at their first
    number; `ahead` is what will be read next."""
    lanes, vectors = machine.lanes, machine.vectors
    kind = ir.VectorType(FLOAT, lanes)
    multiply_add = declared(made, f"llvm.fma.v{lanes}f32", ir.FunctionType(kind, [kind] * 3))
    signature = ir.FunctionType(VOID, [POINTER] * 6 + [LONG] * 2)
    function = ir.Function(made, signature, f"block_{dtype}_{rows}")
    function.linkage = "internal"
    x, panel, bias, add, y, ahead, depth, outputs = function.args
    for pointer in (x, panel, y):
        pointer.add_attribute("noalias")
    builder = ir.IRBuilder(function.append_basic_block("entry"))
    inputs = [at_offset(builder, x, FLOAT, builder.mul(depth, number(row))) for row in range(rows)]
    steps = kernel_bf12.steps(machine) if dtype == "bf12" else 1  # inputs that are taken at a time
    loop = Loop(builder, number(0), builder.udiv(depth, number(steps)))
    zero = ir.Constant(kind, [0.0] * lanes)
    sums = [[loop.carry(zero) for _ in range(vectors)] for _ in range(rows)]
    if rows > 1 or dtype != "f32":  # a single row in float32 keeps the memory busy without
        _fetch(made, builder, machine, dtype, ahead, loop.at)
    weights = _weights(builder, machine, panel, dtype, loop.at)
    totals = [list(row) for row in sums]
    for step in range(steps):
        now = list(itertools.islice(weights, vectors))
        for row in range(rows):
            column = builder.add(builder.mul(loop.at, number(steps)), number(step))
            single = builder.load(at_offset(builder, inputs[row], FLOAT, column), typ=FLOAT)
            spread = broadcast(builder, single, kind)
            for vector in range(vectors):
                totals[row][vector] = builder.call(multiply_add, [spread, now[vector], totals[row][vector]])
    results = [total for row in totals for total in row]
    loop.close(list(zip([value for row in sums for value in row], results, strict=True)))
    if dtype == SCALED:
        results = _scaled(builder, results, machine, panel, depth)
    for pointer, stride in ((bias, number(0)), (add, outputs)):
        results = _added(builder, results, pointer, stride, machine)
    for at, value in enumerate(results):
        row, vector = divmod(at, vectors)
        place = at_offset(builder, y, FLOAT, builder.mul(outputs, number(row)), number(vector * lanes))
        builder.store(value, place, align=4)
    builder.ret_void()
    return function


def _panel_bytes(builder: Any, machine: Machine, dtype: str, weight: Any, depth: Any) -> Any:
    """Bytes from a panel to the next one."""
    if dtype == "bf12":
        return kernel_bf12.panel_bytes(builder, weight)
    size = ELEMENTS[dtype][1] * machine.panel
    whole = builder.mul(depth, number(size))
    return builder.add(whole, number(4 * machine.panel)) if dtype == SCALED else whole


def _fetch(made: Any, builder: Any, machine: Machine, dtype: str, ahead: Any, at: Any) -> None:
    """Blocks are bound by arithmetic, panels by memory: the next panel is fetched while this one is worked on."""
    size = kernel_bf12.group_bytes(machine) if dtype == "bf12" else ELEMENTS[dtype][1] * machine.panel
    fetch = declared(made, "llvm.prefetch.p0", ir.FunctionType(VOID, [POINTER, INT, INT, INT]))
    for line in range(0, size, CACHE_LINE):
        place = at_offset(builder, ahead, BYTE, builder.mul(at, number(size)), number(line))
        builder.call(fetch, [place, *(ir.Constant(INT, value) for value in (0, 3, 1))])


def _weights(builder: Any, machine: Machine, panel: Any, dtype: str, at: Any) -> Iterator[Any]:
    """The vectors of input `at` of a panel, or of the inputs of group `at`, in float32."""
    if dtype == "bf12":
        yield from kernel_bf12.weights(builder, machine, panel, at)
        return
    element, size = ELEMENTS[dtype]
    lanes = machine.lanes
    wide, floats = ir.VectorType(INT, lanes), ir.VectorType(FLOAT, lanes)
    for vector in range(machine.vectors):
        place = builder.add(builder.mul(at, number(machine.panel)), number(vector * lanes))
        kind = ir.VectorType(element, lanes)
        loaded = builder.load(at_offset(builder, panel, element, place), typ=kind, align=size)
        if dtype == "f32":
            yield loaded
        elif dtype == "i8":
            yield builder.sitofp(builder.sext(loaded, wide), floats)
        else:
            yield widened(builder, loaded)


def _scaled(builder: Any, values: list[Any], machine: Machine, panel: Any, depth: Any) -> list[Any]:
    """The values times the scales of their outputs."""
    scales = at_offset(builder, panel, BYTE, builder.mul(depth, number(machine.panel)))
    factors = [
        builder.load(at_offset(builder, scales, FLOAT, number(vector * machine.lanes)), typ=values[0].type, align=4)
        for vector in range(machine.vectors)
    ]
    return [builder.fmul(value, factors[at % machine.vectors]) for at, value in enumerate(values)]


def _added(builder: Any, values: list[Any], pointer: Any, stride: Any, machine: Machine) -> list[Any]:
    """The values with what lies at `pointer`, one row each `stride`; as they are where it is null."""
    kind, before = values[0].type, builder.block
    given, after = builder.append_basic_block("given"), builder.append_basic_block("added")
    builder.cbranch(builder.icmp_unsigned("!=", builder.ptrtoint(pointer, LONG), number(0)), given, after)
    builder.position_at_end(given)
    new = []
    for at, value in enumerate(values):
        row, vector = divmod(at, machine.vectors)
        place = at_offset(builder, pointer, FLOAT, builder.mul(stride, number(row)), number(vector * machine.lanes))
        new.append(builder.fadd(value, builder.load(place, typ=kind, align=4)))
    builder.branch(after)
    builder.position_at_end(after)
    merged = []
    for value, changed in zip(values, new, strict=True):
        phi = builder.phi(kind)
        phi.add_incoming(value, before)
        phi.add_incoming(changed, given)
        merged.append(phi)
    return merged


def _panels(made: Any, machine: Machine, dtype: str, blocks: list[Any]) -> Any:
    """Code for the panels `first` to `last` of a product, `first < last`."""
    signature = ir.FunctionType(VOID, [*TYPES, LONG, LONG])
    function = ir.Function(made, signature, f"panels_{dtype}")
    function.linkage = "internal"
    x, weight, bias, add, y, rows, depth, outputs, first, last = function.args
    builder = ir.IRBuilder(function.append_basic_block("entry"))
    size = number(machine.panel)
    each = _panel_bytes(builder, machine, dtype, weight, depth)
    count = builder.udiv(builder.add(rows, number(machine.rows - 1)), number(machine.rows))
    panel_loop = Loop(builder, first, last)
    offset = builder.mul(panel_loop.at, size)
    panel = at_offset(builder, weight, BYTE, builder.mul(panel_loop.at, each))
    ahead = at_offset(builder, panel, BYTE, each)
    own = [_offset_unless_null(builder, pointer, offset) for pointer in (bias, add)]
    # Rows are shared out evenly: 8 as 4 and 4, where 6 and 2 would leave the registers idle.
    row_loop = Loop(builder, number(0), rows)
    done = row_loop.at
    left = row_loop.carry(count)
    size_now = builder.udiv(builder.add(builder.sub(rows, done), builder.sub(left, number(1))), left)
    below = builder.mul(done, outputs)
    inputs = at_offset(builder, x, FLOAT, builder.mul(done, depth))
    results = at_offset(builder, y, FLOAT, offset, below)
    others = [own[0], _offset_unless_null(builder, own[1], below), results, ahead, depth, outputs]
    arguments = [inputs, panel, *others]
    after = builder.append_basic_block("done")
    choice = builder.switch(size_now, after)
    for many, block in enumerate(blocks, start=1):
        case = builder.append_basic_block(f"rows{many}")
        choice.add_case(number(many), case)
        builder.position_at_end(case)
        builder.call(block, arguments)
        builder.branch(after)
    builder.position_at_end(after)
    if dtype == "bf12":
        builder.call(made.globals["exceptions_bf12"], [panel, inputs, results, size_now, depth, outputs])
    row_loop.close([(left, builder.sub(left, number(1)))], size_now)
    panel_loop.close([])
    builder.ret_void()
    return function


def _offset_unless_null(builder: Any, pointer: Any, offset: Any) -> Any:
    moved = at_offset(builder, pointer, FLOAT, offset)
    null = builder.icmp_unsigned("==", builder.ptrtoint(pointer, LONG), number(0))
    return builder.select(null, pointer, moved)


def _entry(made: Any, machine: Machine, dtype: str, panels: Any, parallel: bool) -> None:
    """The product itself: its arguments in memory, for every thread to read, then `panels` for each one's share."""

    def panel_count(builder: Any, place: Any) -> Any:
        return builder.udiv(from_memory(builder, place, TYPES)[-1], number(machine.panel))

    def share(builder: Any, place: Any, first: Any, last: Any) -> None:
        builder.call(panels, [*from_memory(builder, place, TYPES), first, last])

    work = in_parallel(made, f"shared_{dtype}", panel_count, share, parallel)
    function = ir.Function(made, ir.FunctionType(VOID, [*TYPES, INT]), f"product_{dtype}")
    builder = ir.IRBuilder(function.append_basic_block("entry"))
    *arguments, threads = function.args
    builder.call(work, [to_memory(builder, arguments), threads])
    builder.ret_void()
