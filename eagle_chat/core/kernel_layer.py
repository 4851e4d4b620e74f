"""LLVM's intermediate code of whole decoder layers of the Llama kind, for a handful of rows.

It calls the products of `kernel_products`, the parts of `kernel_parts` and the attention of `kernel_attention`.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir

from eagle_chat.core.kernel_attention import ATTENTION, add_attention
from eagle_chat.core.kernel_ir import (
    FLOAT,
    LONG,
    POINTER,
    VOID,
    Loop,
    at_offset,
    named,
    number,
    to_memory,
)
from eagle_chat.core.kernel_machine import CALL, LAYER, Machine
from eagle_chat.core.kernel_parts import load, store


def add_layers(made: Any, machine: Machine, dtypes: list[str], parallel: bool) -> None:
    """Put `layers(call, layers, count)` into the module: it runs `count` layers, from a pointer to the numbers
    named in `CALL` and one to those named in `LAYER`, layer after layer. `form` counts in `dtypes`."""
    attend = add_attention(made, ir.VectorType(FLOAT, machine.lanes), parallel)
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
    # Two units for every thread; where rows and key heads are too few for that, each query head is a unit.
    many, wanted = builder.mul(rows, given["kv_heads"]), builder.mul(number(2), given["threads"])
    enough = builder.icmp_unsigned(">=", many, wanted)
    given["rows_each"] = builder.select(enough, builder.udiv(many, wanted), number(1))
    given["heads_each"] = builder.select(enough, given["group"], number(1))
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
