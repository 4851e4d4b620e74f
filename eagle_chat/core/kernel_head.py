"""LLVM's intermediate code of what a draft does around a head's layers: its inputs, and the best of its logits.

Each is a dozen small operations in torch, on numbers that a step of the target has just thrown out of the caches.
"""

from __future__ import annotations

import math
from typing import Any

from llvmlite import ir

from eagle_chat.core.kernel_ir import (
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
    named,
    number,
    widened,
)
from eagle_chat.core.kernel_layer import call_one_of
from eagle_chat.core.kernel_machine import CALL, CHOICE, INPUTS, Machine
from eagle_chat.core.kernel_parts import exponential, load, same, store

TABLES = {"f32": FLOAT, "bf16": SHORT}
"""Forms of an embedding table."""


def add_head(made: Any, machine: Machine, dtypes: list[str]) -> None:
    """Put `gather_<form>`, `best`, `level` and `choose` into the module."""
    kind = ir.VectorType(FLOAT, machine.lanes)
    gathers = [_gather(made, kind, form, element) for form, element in TABLES.items()]
    _best(made, kind)
    _level(made, gathers)
    _choose(made, [made.globals[f"product_{dtype}"] for dtype in dtypes])


def _level(made: Any, gathers: list[Any]) -> None:
    """level(inputs, call, layer): an `eagle3` head's layer from its tokens and hidden inputs on, from pointers to the
    numbers named in `INPUTS`, `CALL` (whose `input` is room for what the layer reads) and `LAYER`."""
    function = ir.Function(made, ir.FunctionType(VOID, [POINTER] * 3), "level")
    builder = ir.IRBuilder(function.append_basic_block("entry"))
    inputs, call, layer = function.args
    given, room = named(builder, inputs, INPUTS), named(builder, call, CALL)
    rows, embedding_size, hidden_size = room["rows"], given["embedding_size"], given["hidden_size"]
    stride, epsilon = builder.add(embedding_size, hidden_size), given["epsilon"]
    table = [given["table"], given["tokens"], given["embedding_norm"], room["input"]]
    call_one_of(builder, given["form"], gathers, [*table, rows, embedding_size, stride, epsilon])
    beside = at_offset(builder, room["input"], FLOAT, embedding_size)
    for norm, goal, apart in (("hidden_norm", beside, stride), ("residual_norm", room["states"], hidden_size)):
        source = [given["hidden"], given["places"], given[norm], goal]
        builder.call(gathers[0], [*source, rows, hidden_size, apart, epsilon])
    builder.call(made.globals["layers"], [call, layer, number(1)])
    builder.ret_void()


def _choose(made: Any, products: list[Any]) -> None:
    """choose(arguments): see `CHOICE`. Returns what `best` returns, or 1."""
    function = ir.Function(made, ir.FunctionType(LONG, [POINTER]), "choose")
    builder = ir.IRBuilder(function.append_basic_block("entry"))
    given = named(builder, function.args[0], CHOICE)
    rows, width, size = given["rows"], given["hidden_size"], given["size"]
    nothing = ir.Constant(POINTER, None)
    has_norm = builder.icmp_unsigned("!=", builder.ptrtoint(given["norm"], LONG), number(0))
    with builder.if_then(has_norm):
        builder.call(
            made.globals["norm"], [given["hidden"], given["norm"], given["normed"], rows, width, given["epsilon"]]
        )
    read = builder.select(has_norm, given["normed"], given["hidden"])
    threads = builder.trunc(given["threads"], INT)
    product = [read, given["weight"], nothing, nothing, given["logits"], rows, width, size, threads]
    call_one_of(builder, given["form"], products, product)
    with builder.if_then(builder.icmp_unsigned("==", given["count"], number(0))):
        builder.ret(number(1))
    chosen = [given[name] for name in ("logits", "ids", "values", "rows", "size", "count")]
    builder.ret(builder.call(made.globals["best"], chosen))


def _gather(made: Any, kind: Any, form: str, element: Any) -> Any:
    """gather(table, places, weight, y, rows, size, stride, epsilon): rows `places` (int64) of `table` [any, size] to y,
    where rows begin `stride` apart; through the norm with `weight` where there is one."""
    signature = ir.FunctionType(VOID, [POINTER] * 4 + [LONG] * 3 + [FLOAT])
    function = ir.Function(made, signature, f"gather_{form}")
    builder = ir.IRBuilder(function.append_basic_block("entry"))
    table, places, weight, y, rows, size, stride, epsilon = function.args
    by_row = Loop(builder, number(0), rows)
    place = builder.load(at_offset(builder, places, LONG, by_row.at), typ=LONG, align=8)
    source = at_offset(builder, table, element, builder.mul(place, size))
    goal = at_offset(builder, y, FLOAT, builder.mul(by_row.at, stride))
    across = Loop(builder, number(0), size)
    if form == "f32":
        value = load(builder, kind, source, across.at)
    else:
        shorts = at_offset(builder, source, SHORT, across.at)
        value = widened(builder, builder.load(shorts, typ=ir.VectorType(SHORT, kind.count), align=2))
    store(builder, value, goal, across.at)
    across.close([], number(kind.count))
    has_norm = builder.icmp_unsigned("!=", builder.ptrtoint(weight, LONG), number(0))
    with builder.if_then(has_norm):
        builder.call(made.globals["norm"], [goal, weight, goal, number(1), size, epsilon])
    by_row.close([])
    builder.ret_void()
    return function


def _best(made: Any, kind: Any) -> None:
    """best(logits, ids, values, rows, size, count): the `count` highest of each row of logits [rows, size], best first
    and of equals the first: `ids` int64 and `values` float32 [rows, count], their log-softmax. Returns 1, or 0 where
    they are unusable: fewer than `count` are numbers above -inf, or one is infinite."""
    signature = ir.FunctionType(LONG, [POINTER] * 3 + [LONG] * 3)
    function = ir.Function(made, signature, "best")
    builder = ir.IRBuilder(function.append_basic_block("entry"))
    logits, ids, values, rows, size, count = function.args
    lowest = ir.Constant(FLOAT, float("-inf"))
    lanes = number(kind.count)
    by_row = Loop(builder, number(0), rows)
    usable_before = by_row.carry(number(1))
    row = at_offset(builder, logits, FLOAT, builder.mul(by_row.at, size))
    own_ids, own_values = (
        at_offset(builder, pointer, element, builder.mul(by_row.at, count))
        for pointer, element in ((ids, LONG), (values, FLOAT))
    )
    empty = Loop(builder, number(0), count)
    builder.store(number(0), at_offset(builder, own_ids, LONG, empty.at), align=8)
    builder.store(lowest, at_offset(builder, own_values, FLOAT, empty.at), align=4)
    empty.close([])
    last = at_offset(builder, own_values, FLOAT, builder.sub(count, number(1)))

    search = Loop(builder, number(0), size)
    worst = builder.load(last, typ=FLOAT, align=4)
    higher = builder.fcmp_ordered(">", load(builder, kind, row, search.at), broadcast(builder, worst, kind))
    any_higher = builder.bitcast(higher, ir.IntType(kind.count))
    with builder.if_then(builder.icmp_unsigned("!=", any_higher, ir.Constant(any_higher.type, 0)), likely=False):
        one = Loop(builder, number(0), lanes)
        at = builder.add(search.at, one.at)
        value = builder.load(at_offset(builder, row, FLOAT, at), typ=FLOAT, align=4)
        better = builder.fcmp_ordered(">", value, builder.load(last, typ=FLOAT, align=4))
        with builder.if_then(better):
            _insert(builder, own_ids, own_values, count, at, value)
        one.close([])
    search.close([], lanes)

    highest = broadcast(builder, builder.load(own_values, typ=FLOAT, align=4), kind)
    adding = Loop(builder, number(0), size)
    before = adding.carry(same(kind, 0.0))
    after = builder.fadd(before, exponential(made, builder, builder.fsub(load(builder, kind, row, adding.at), highest)))
    adding.close([(before, after)], lanes)
    total_of = declared(made, f"llvm.vector.reduce.fadd.v{kind.count}f32", ir.FunctionType(FLOAT, [FLOAT, kind]))
    total = builder.call(total_of, [ir.Constant(FLOAT, 0.0), after], fastmath=["reassoc"])
    peak, less = builder.extract_element(highest, ir.Constant(INT, 0)), _logarithm(made, builder, total, kind)
    normal = Loop(builder, number(0), count)
    place = at_offset(builder, own_values, FLOAT, normal.at)
    above = builder.fsub(builder.load(place, typ=FLOAT, align=4), peak)
    smaller_of = declared(made, "llvm.minnum.f32", ir.FunctionType(FLOAT, [FLOAT] * 2))
    zero = ir.Constant(FLOAT, 0.0)
    builder.store(builder.call(smaller_of, [builder.fsub(above, less), zero]), place, align=4)
    normal.close([])
    finite = builder.fcmp_ordered(">", builder.fsub(above, less), lowest)  # of the last one, before NaN became 0
    usable = builder.and_(usable_before, builder.zext(finite, LONG))
    by_row.close([(usable_before, usable)])
    builder.ret(usable)


def _logarithm(made: Any, builder: Any, x: Any, kind: Any) -> Any:
    """ln x of a positive number: the exponent's digits and a straight line through the mantissa's are right to 0.06,
    and each of Newton's steps for e^y = x squares the error."""
    whole = builder.sitofp(builder.sub(builder.bitcast(x, INT), ir.Constant(INT, 127 << 23)), FLOAT)
    y = builder.fmul(whole, ir.Constant(FLOAT, math.log(2.0) / 2**23))
    for _ in range(3):
        power = exponential(made, builder, broadcast(builder, builder.fneg(y), kind))
        ratio = builder.fmul(x, builder.extract_element(power, ir.Constant(INT, 0)))
        y = builder.fadd(y, builder.fsub(ratio, ir.Constant(FLOAT, 1.0)))
    return y


def _insert(builder: Any, ids: Any, values: Any, count: Any, new_id: Any, new_value: Any) -> None:
    """Put a value that is higher than the last one in its place, and go up with it past all that are lower."""
    last = builder.sub(count, number(1))
    builder.store(new_id, at_offset(builder, ids, LONG, last), align=8)
    builder.store(new_value, at_offset(builder, values, FLOAT, last), align=4)
    with builder.if_then(builder.icmp_unsigned(">", last, number(0))):
        climb = Loop(builder, number(0), last)
        below = builder.sub(last, climb.at)
        above = builder.sub(below, number(1))
        pairs = []
        for pointer, element, size in ((values, FLOAT, 4), (ids, LONG, 8)):
            places = [at_offset(builder, pointer, element, at) for at in (above, below)]
            pairs.append((places, [builder.load(place, typ=element, align=size) for place in places], size))
        upper, lower = pairs[0][1]
        higher = builder.fcmp_ordered(">", lower, upper)
        for places, (first, second), size in pairs:
            builder.store(builder.select(higher, second, first), places[0], align=size)
            builder.store(builder.select(higher, first, second), places[1], align=size)
        climb.close([])
