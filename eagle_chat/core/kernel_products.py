"""LLVM's intermediate code of the matrix products in `kernels`."""

from __future__ import annotations

from typing import Any

from llvmlite import ir

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
)
from eagle_chat.core.kernel_machine import Machine

ELEMENTS = {"f32": (FLOAT, 4), "bf16": (SHORT, 2), "i8": (BYTE, 1)}
"""How a weight is stored, and its bytes."""
SCALE = {"f32": 0, "bf16": 0, "i8": 4}
"""Elements in which each output's scale is stored, behind the weights of its panel: a float32, where there is one."""
TYPES = [POINTER] * 5 + [LONG] * 3


def add_products(made: Any, machine: Machine, dtypes: list[str], parallel: bool) -> None:
    """Put `product_<dtype>(x, weight, bias, add, y, rows, depth, outputs, threads)` into the module for every dtype.

    `parallel`: the panels are shared among the threads of OpenMP.
    """
    for dtype in dtypes:
        blocks = [_block(made, machine, dtype, rows) for rows in range(1, machine.rows + 1)]
        panels = _panels(made, machine, dtype, blocks)
        _entry(made, machine, dtype, panels, parallel)


def _block(made: Any, machine: Machine, dtype: str, rows: int) -> Any:
    """Code for `rows` rows and one panel: (x, panel, bias, add, y, depth, outputs), pointers at their first number."""
    lanes, vectors = machine.lanes, machine.vectors
    kind = ir.VectorType(FLOAT, lanes)
    multiply_add = declared(made, f"llvm.fma.v{lanes}f32", ir.FunctionType(kind, [kind] * 3))
    signature = ir.FunctionType(VOID, [POINTER] * 5 + [LONG] * 2)
    function = ir.Function(made, signature, f"block_{dtype}_{rows}")
    function.linkage = "internal"
    x, panel, bias, add, y, depth, outputs = function.args
    for pointer in (x, panel, y):
        pointer.add_attribute("noalias")
    builder = ir.IRBuilder(function.append_basic_block("entry"))
    inputs = [at_offset(builder, x, FLOAT, builder.mul(depth, number(row))) for row in range(rows)]
    loop = Loop(builder, number(0), depth)
    zero = ir.Constant(kind, [0.0] * lanes)
    sums = [[loop.carry(zero) for _ in range(vectors)] for _ in range(rows)]
    start = builder.mul(loop.at, number(machine.panel))
    weights = [_weights(builder, panel, dtype, lanes, builder.add(start, number(v * lanes))) for v in range(vectors)]
    whole = builder.mul(builder.add(depth, number(SCALE[dtype])), number(machine.panel))
    if rows > 1 or dtype != "f32":  # a single row in float32 keeps the memory busy without
        # Blocks are bound by arithmetic, panels by memory: the next panel is fetched while this one is worked on.
        following = at_offset(builder, panel, ELEMENTS[dtype][0], whole, start)
        fetch = declared(made, "llvm.prefetch.p0", ir.FunctionType(VOID, [POINTER, INT, INT, INT]))
        builder.call(fetch, [following, *(ir.Constant(INT, value) for value in (0, 3, 1))])
    carried = []
    for row in range(rows):
        single = builder.load(at_offset(builder, inputs[row], FLOAT, loop.at), typ=FLOAT)
        spread = broadcast(builder, single, kind)
        for vector in range(vectors):
            total = builder.call(multiply_add, [spread, weights[vector], sums[row][vector]])
            carried.append((sums[row][vector], total))
    loop.close(carried)
    results = [value for _, value in carried]
    if SCALE[dtype]:
        scales = at_offset(builder, panel, ELEMENTS[dtype][0], builder.mul(depth, number(machine.panel)))
        factors = [
            builder.load(at_offset(builder, scales, FLOAT, number(vector * lanes)), typ=kind, align=4)
            for vector in range(vectors)
        ]
        results = [builder.fmul(value, factors[at % vectors]) for at, value in enumerate(results)]
    for pointer, stride in ((bias, number(0)), (add, outputs)):
        results = _added(builder, results, pointer, stride, machine)
    for at, value in enumerate(results):
        row, vector = divmod(at, vectors)
        place = at_offset(builder, y, FLOAT, builder.mul(outputs, number(row)), number(vector * lanes))
        builder.store(value, place, align=4)
    builder.ret_void()
    return function


def _weights(builder: Any, panel: Any, dtype: str, lanes: int, at: Any) -> Any:
    element, size = ELEMENTS[dtype]
    kind = ir.VectorType(element, lanes)
    loaded = builder.load(at_offset(builder, panel, element, at), typ=kind, align=size)
    if dtype == "f32":
        return loaded
    wide = ir.VectorType(INT, lanes)
    if dtype == "i8":
        return builder.sitofp(builder.sext(loaded, wide), ir.VectorType(FLOAT, lanes))
    # A bfloat16 is the upper half of a float32.
    shifted = builder.shl(builder.zext(loaded, wide), ir.Constant(wide, [16] * lanes))
    return builder.bitcast(shifted, ir.VectorType(FLOAT, lanes))


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
    element, _ = ELEMENTS[dtype]
    count = builder.udiv(builder.add(rows, number(machine.rows - 1)), number(machine.rows))
    panel_loop = Loop(builder, first, last)
    offset = builder.mul(panel_loop.at, size)
    panel = at_offset(builder, weight, element, builder.mul(offset, builder.add(depth, number(SCALE[dtype]))))
    own = [_offset_unless_null(builder, pointer, offset) for pointer in (bias, add)]
    # Rows are shared out evenly: 8 as 4 and 4, where 6 and 2 would leave the registers idle.
    row_loop = Loop(builder, number(0), rows)
    done = row_loop.at
    left = row_loop.carry(count)
    size_now = builder.udiv(builder.add(builder.sub(rows, done), builder.sub(left, number(1))), left)
    below = builder.mul(done, outputs)
    arguments = [
        at_offset(builder, x, FLOAT, builder.mul(done, depth)),
        panel,
        own[0],
        _offset_unless_null(builder, own[1], below),
        at_offset(builder, y, FLOAT, offset, below),
        depth,
        outputs,
    ]
    after = builder.append_basic_block("done")
    choice = builder.switch(size_now, after)
    for many, block in enumerate(blocks, start=1):
        case = builder.append_basic_block(f"rows{many}")
        choice.add_case(number(many), case)
        builder.position_at_end(case)
        builder.call(block, arguments)
        builder.branch(after)
    builder.position_at_end(after)
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
