"""LLVM's intermediate code of whole decoder layers of the Llama kind, for a handful of rows.

It calls the products of `kernel_products` and the parts of `kernel_parts`, and has an attention of its own: the query
head of a row is one unit of work, which goes through the keys, the softmax and the values by itself.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir

from eagle_chat.core.kernel_ir import (
    FLOAT,
    LONG,
    POINTER,
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
from eagle_chat.core.kernel_machine import CALL, LAYER, SIZES, UNROLLED, Machine
from eagle_chat.core.kernel_parts import exponential, load, same, store

ATTENTION = (
    "qkv", "keys", "values", "mask", "scores", "attended", "rows", "heads", "group", "size", "capacity", "length",
    "stride", "scale",
)  # fmt: skip
NUMBERS = SIZES | {"group", "size", "length", "stride"}


def add_layers(made: Any, machine: Machine, dtypes: list[str], parallel: bool) -> None:
    """Put `layers(call, layers, count)` into the module: it runs `count` layers, from a pointer to the numbers
    named in `CALL` and one to those named in `LAYER`, layer after layer. `form` counts in `dtypes`."""
    attend = _attend(made, ir.VectorType(FLOAT, machine.lanes), parallel)
    copy = _append(made, ir.VectorType(FLOAT, machine.lanes))
    _all_layers(made, [_layer(made, dtype, attend, copy) for dtype in dtypes])


def call_one_of(builder: Any, number_of: Any, functions: list[Any], arguments: list[Any]) -> None:
    """Call the function of this number."""
    after = builder.append_basic_block("called")
    choice = builder.switch(number_of, after)
    for at, function in enumerate(functions):
        case = builder.append_basic_block(f"case{at}")
        choice.add_case(number(at), case)
        builder.position_at_end(case)
        builder.call(function, arguments)
        builder.branch(after)
    builder.position_at_end(after)


def _attend(made: Any, kind: Any, parallel: bool) -> Any:
    """attend(arguments, threads): the numbers named in `ATTENTION`."""

    def share(builder: Any, place: Any, first: Any, last: Any) -> None:
        values = named(builder, place, ATTENTION)
        units = Loop(builder, first, last)
        _unit(made, builder, kind, values, units.at)
        units.close([])

    def count(builder: Any, place: Any) -> Any:
        values = named(builder, place, ATTENTION)
        return builder.mul(values["rows"], values["heads"])

    return in_parallel(made, "attend", count, share, parallel)


def named(builder: Any, place: Any, names: tuple[str, ...]) -> dict[str, Any]:
    """What lies at `place`, by name, in 64 bits each."""
    kinds = [FLOAT if name in ("epsilon", "scale") else LONG if name in NUMBERS else POINTER for name in names]
    return dict(zip(names, from_memory(builder, place, kinds), strict=True))


def _unit(made: Any, builder: Any, kind: Any, given: dict[str, Any], unit: Any) -> None:
    """Attention of one query head of one row."""
    lanes = number(kind.count)
    multiply_add = declared(made, f"llvm.fma.v{kind.count}f32", ir.FunctionType(kind, [kind] * 3))
    reduce_add = declared(made, f"llvm.vector.reduce.fadd.v{kind.count}f32", ir.FunctionType(FLOAT, [FLOAT, kind]))
    reduce_max = declared(made, f"llvm.vector.reduce.fmax.v{kind.count}f32", ir.FunctionType(FLOAT, [kind]))
    largest = declared(made, f"llvm.maxnum.v{kind.count}f32", ir.FunctionType(kind, [kind] * 2))
    row, head = builder.udiv(unit, given["heads"]), builder.urem(unit, given["heads"])
    size, length = given["size"], given["length"]
    query = at_offset(builder, given["qkv"], FLOAT, builder.mul(row, given["stride"]), builder.mul(head, size))
    shared = builder.mul(builder.udiv(head, given["group"]), builder.mul(given["capacity"], size))
    keys, values = (at_offset(builder, given[name], FLOAT, shared) for name in ("keys", "values"))
    padded = builder.mul(builder.udiv(builder.add(length, number(kind.count - 1)), lanes), lanes)
    scores = at_offset(builder, given["scores"], FLOAT, builder.mul(unit, padded))
    # What lies behind the last key in its vector must count for nothing.
    store(builder, same(kind, float("-inf")), scores, builder.sub(padded, lanes))

    by_key = Loop(builder, number(0), length)
    key = builder.mul(by_key.at, size)
    across = Loop(builder, number(0), size)
    total = across.carry(same(kind, 0.0))
    added = total
    for vector in range(UNROLLED):
        more = number(vector * kind.count)
        factors = [load(builder, kind, query, across.at, more), load(builder, kind, keys, key, across.at, more)]
        added = builder.call(multiply_add, [*factors, added])
    across.close([(total, added)], number(UNROLLED * kind.count))
    score = builder.fmul(
        builder.call(reduce_add, [ir.Constant(FLOAT, 0.0), added], fastmath=["reassoc"]), given["scale"]
    )
    builder.store(score, at_offset(builder, scores, FLOAT, by_key.at), align=4)
    by_key.close([])

    with builder.if_then(builder.icmp_unsigned("!=", builder.ptrtoint(given["mask"], LONG), number(0))):
        masked = Loop(builder, number(0), length)
        place = at_offset(builder, scores, FLOAT, masked.at)
        hidden = builder.load(
            at_offset(builder, given["mask"], FLOAT, builder.mul(row, length), masked.at), typ=FLOAT, align=4
        )
        builder.store(builder.fadd(builder.load(place, typ=FLOAT, align=4), hidden), place, align=4)
        masked.close([])

    search = Loop(builder, number(0), padded)
    best = search.carry(same(kind, float("-inf")))
    better = builder.call(largest, [best, load(builder, kind, scores, search.at)])
    search.close([(best, better)], lanes)
    peak = broadcast(builder, builder.call(reduce_max, [better]), kind)

    weigh = Loop(builder, number(0), padded)
    sum_before = weigh.carry(same(kind, 0.0))
    weight = exponential(made, builder, builder.fsub(load(builder, kind, scores, weigh.at), peak))
    store(builder, weight, scores, weigh.at)
    sum_after = builder.fadd(sum_before, weight)
    weigh.close([(sum_before, sum_after)], lanes)
    whole = builder.call(reduce_add, [ir.Constant(FLOAT, 0.0), sum_after], fastmath=["reassoc"])
    factor = broadcast(builder, builder.fdiv(ir.Constant(FLOAT, 1.0), whole), kind)

    output = at_offset(builder, given["attended"], FLOAT, builder.mul(unit, size))
    parts = Loop(builder, number(0), size)
    over = Loop(builder, number(0), length)
    sums = [over.carry(same(kind, 0.0)) for _ in range(UNROLLED)]
    chance = builder.load(at_offset(builder, scores, FLOAT, over.at), typ=FLOAT, align=4)
    spread, place = broadcast(builder, chance, kind), builder.mul(over.at, size)
    following = []
    for vector, before in enumerate(sums):
        value = load(builder, kind, values, place, parts.at, number(vector * kind.count))
        following.append(builder.call(multiply_add, [spread, value, before]))
    over.close(list(zip(sums, following, strict=True)))
    for vector, value in enumerate(following):
        store(builder, builder.fmul(value, factor), output, parts.at, number(vector * kind.count))
    parts.close([], number(UNROLLED * kind.count))


def _append(made: Any, kind: Any) -> Any:
    """append(qkv, cache, rows, heads, size, capacity, start, stride): the heads at `qkv`, rows `stride` apart, into
    `cache` [heads, capacity, size] from entry `start` on."""
    function = ir.Function(made, ir.FunctionType(VOID, [POINTER] * 2 + [LONG] * 6), "append")
    function.linkage = "internal"
    builder = ir.IRBuilder(function.append_basic_block("entry"))
    qkv, cache, rows, heads, size, capacity, start, stride = function.args
    by_row = Loop(builder, number(0), rows)
    by_head = Loop(builder, number(0), heads)
    source = builder.add(builder.mul(by_row.at, stride), builder.mul(by_head.at, size))
    entry = builder.add(builder.mul(by_head.at, capacity), builder.add(start, by_row.at))
    across = Loop(builder, number(0), size)
    store(builder, load(builder, kind, qkv, source, across.at), cache, builder.mul(entry, size), across.at)
    across.close([], number(kind.count))
    by_head.close([])
    by_row.close([])
    builder.ret_void()
    return function


def _layer(made: Any, dtype: str, attend: Any, append: Any) -> Any:
    """layer(call, layer, input, x, y): x [rows, hidden size] to y, reading `input` [rows, depth]."""
    function = ir.Function(made, ir.FunctionType(VOID, [POINTER] * 5), f"layer_{dtype}")
    function.linkage = "internal"
    builder = ir.IRBuilder(function.append_basic_block("entry"))
    given = named(builder, function.args[0], CALL) | named(builder, function.args[1], LAYER)
    given |= dict(zip(("input", "x", "y"), function.args[2:], strict=True))
    rows, hidden_size, size = given["rows"], given["hidden_size"], given["head_size"]
    threads = builder.trunc(given["threads"], ir.IntType(32))
    nothing = ir.Constant(POINTER, None)
    norm, rotate, gated = (made.globals[name] for name in ("norm", "rotate", "gated"))
    product = made.globals[f"product_{dtype}"]
    query_size = builder.mul(given["heads"], size)
    key_size = builder.mul(given["kv_heads"], size)
    stride = builder.add(query_size, builder.add(key_size, key_size))

    def multiply(x: str, weight: str, add: Any, y: str, depth: Any, outputs: Any) -> None:
        arguments = [given[x], given[f"{weight}_weight"], given[f"{weight}_bias"], add, given[y], rows, depth, outputs]
        builder.call(product, [*arguments, threads])

    has_norm = builder.icmp_unsigned("!=", builder.ptrtoint(given["input_norm"], LONG), number(0))
    with builder.if_then(has_norm):
        first = [given["input"], given["input_norm"], given["normed"]]
        builder.call(norm, [*first, rows, given["depth"], given["epsilon"]])
    given["read"] = builder.select(has_norm, given["normed"], given["input"])
    multiply("read", "qkv", nothing, "qkv", given["depth"], stride)
    turned = builder.add(given["heads"], given["kv_heads"])
    half = builder.udiv(size, number(2))
    angles = [given["cos"], given["sin"], given["positions"]]
    builder.call(rotate, [given["qkv"], *angles, rows, stride, turned, half])
    for name, offset in (("keys", query_size), ("values", builder.add(query_size, key_size))):
        source = at_offset(builder, given["qkv"], FLOAT, offset)
        where = [given["kv_heads"], size, given["capacity"], given["start"], stride]
        builder.call(append, [source, given[name], rows, *where])
    given["group"] = builder.udiv(given["heads"], given["kv_heads"])
    given["size"], given["stride"] = size, stride
    given["length"] = builder.add(given["start"], rows)
    builder.call(attend, [to_memory(builder, [given[name] for name in ATTENTION]), threads])
    multiply("attended", "out", given["x"], "hidden", query_size, hidden_size)
    builder.call(norm, [given["hidden"], given["mlp_norm"], given["normed"], rows, hidden_size, given["epsilon"]])
    inner_size = given["inner_size"]
    multiply("normed", "up", nothing, "both", hidden_size, builder.add(inner_size, inner_size))
    builder.call(gated, [given["both"], given["inner"], rows, inner_size])
    multiply("inner", "down", given["hidden"], "y", inner_size, hidden_size)
    builder.ret_void()
    return function


def _all_layers(made: Any, functions: list[Any]) -> None:
    function = ir.Function(made, ir.FunctionType(VOID, [POINTER, POINTER, LONG]), "layers")
    builder = ir.IRBuilder(function.append_basic_block("entry"))
    call, layers, count = function.args
    given = named(builder, call, CALL)
    by_layer = Loop(builder, number(0), count)
    layer = at_offset(builder, layers, LONG, builder.mul(by_layer.at, number(len(LAYER))))
    own = named(builder, layer, LAYER)
    step = builder.mul(given["rows"], own["hidden_size"])
    x = at_offset(builder, given["states"], FLOAT, builder.mul(by_layer.at, step))
    first = builder.icmp_unsigned("==", by_layer.at, number(0))
    read = builder.select(first, given["input"], x)
    arguments = [call, layer, read, x, at_offset(builder, x, FLOAT, step)]
    call_one_of(builder, own["form"], functions, arguments)
    by_layer.close([])
    builder.ret_void()
