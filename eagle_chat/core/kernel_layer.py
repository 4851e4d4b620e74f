"""LLVM's intermediate code of whole decoder layers of the Llama kind, for a handful of rows.

It calls the products of `kernel_products` and the parts of `kernel_parts`, and has an attention of its own. A unit of
work are the query heads that share a key head, for some rows: a few keys at a time are held against all of these
queries, and later a few values, because keys and values come from a slower cache than queries do.
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
    "qkv", "keys", "values", "mask", "scores", "attended", "rows", "heads", "kv_heads", "group", "size", "capacity",
    "length", "stride", "scale", "rows_each", "heads_each",
)  # fmt: skip
KEYS = 4
"""Keys whose scores are summed side by side: one sum alone waits for itself."""
VALUES = 16
"""Values that are added up for one query after the other."""
NUMBERS = SIZES | {"group", "size", "length", "stride", "rows_each", "heads_each"}


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

    def chunks(builder: Any, given: dict[str, Any]) -> tuple[Any, Any]:
        """Into how many units the rows and the query heads of a key head are cut."""
        above = builder.add(given["rows"], builder.sub(given["rows_each"], number(1)))
        return builder.udiv(above, given["rows_each"]), builder.udiv(given["group"], given["heads_each"])

    def share(builder: Any, place: Any, first: Any, last: Any) -> None:
        given = named(builder, place, ATTENTION)
        by_rows, by_heads = chunks(builder, given)
        units = Loop(builder, first, last)
        rest, part = builder.udiv(units.at, by_heads), builder.urem(units.at, by_heads)
        shared, chunk = builder.udiv(rest, by_rows), builder.urem(rest, by_rows)
        row = builder.mul(chunk, given["rows_each"])
        end = builder.add(row, given["rows_each"])
        end = builder.select(builder.icmp_unsigned("<", end, given["rows"]), end, given["rows"])
        head = builder.add(builder.mul(shared, given["group"]), builder.mul(part, given["heads_each"]))
        queries = _Queries(builder, given, (row, end), (head, builder.add(head, given["heads_each"])), kind.count)
        _unit(made, builder, kind, given, shared, queries)
        units.close([])

    def count(builder: Any, place: Any) -> Any:
        given = named(builder, place, ATTENTION)
        by_rows, by_heads = chunks(builder, given)
        return builder.mul(given["kv_heads"], builder.mul(by_rows, by_heads))

    return in_parallel(made, "attend", count, share, parallel)


class _Queries:
    """The queries of a unit, to go through them: `row`, `query`, `scores` and `output` are those at hand."""

    def __init__(
        self, builder: Any, given: dict[str, Any], rows: tuple[Any, Any], heads: tuple[Any, Any], lanes: int
    ) -> None:
        self._builder, self._given, self._rows, self._heads = builder, given, rows, heads
        whole = builder.udiv(builder.add(given["length"], number(lanes - 1)), number(lanes))
        self.padded = builder.mul(whole, number(lanes))
        self._loops: tuple[Loop, Loop] | None = None

    def __enter__(self) -> _Queries:
        builder, given = self._builder, self._given
        by_row = Loop(builder, *self._rows)
        by_head = Loop(builder, *self._heads)
        self._loops, self.row = (by_row, by_head), by_row.at
        start = builder.add(builder.mul(by_row.at, given["stride"]), builder.mul(by_head.at, given["size"]))
        self.query = at_offset(builder, given["qkv"], FLOAT, start)
        place = builder.add(builder.mul(by_row.at, given["heads"]), by_head.at)
        self.scores = at_offset(builder, given["scores"], FLOAT, builder.mul(place, self.padded))
        self.output = at_offset(builder, given["attended"], FLOAT, builder.mul(place, given["size"]))
        return self

    def __exit__(self, *_: object) -> None:
        assert self._loops is not None
        by_row, by_head = self._loops
        by_head.close([])
        by_row.close([])


def _unit(made: Any, builder: Any, kind: Any, given: dict[str, Any], shared: Any, queries: _Queries) -> None:
    """Attention of these queries over the keys and values of head `shared`."""
    start = builder.mul(shared, builder.mul(given["capacity"], given["size"]))
    _score(made, builder, kind, given, at_offset(builder, given["keys"], FLOAT, start), queries)
    with queries:
        _weigh(made, builder, kind, given, queries)
    _add_up(made, builder, kind, given, at_offset(builder, given["values"], FLOAT, start), queries)


def _score(made: Any, builder: Any, kind: Any, given: dict[str, Any], keys: Any, queries: _Queries) -> None:
    """Scores of all keys for all queries; behind the last key up to a multiple of `KEYS` they are -inf."""
    multiply_add = declared(made, f"llvm.fma.v{kind.count}f32", ir.FunctionType(kind, [kind] * 3))
    reduce_add = declared(made, f"llvm.vector.reduce.fadd.v{kind.count}f32", ir.FunctionType(FLOAT, [FLOAT, kind]))
    last = builder.sub(given["length"], number(1))
    by_key = Loop(builder, number(0), given["length"])
    places = [builder.add(by_key.at, number(each)) for each in range(KEYS)]
    beyond = [builder.icmp_unsigned(">", place, last) for place in places]
    starts = [
        builder.mul(builder.select(past, last, place), given["size"])
        for place, past in zip(places, beyond, strict=True)
    ]
    with queries:
        across = Loop(builder, number(0), given["size"])
        totals = [across.carry(same(kind, 0.0)) for _ in range(KEYS)]
        sums = list(totals)
        for vector in range(UNROLLED):
            more = number(vector * kind.count)
            part = load(builder, kind, queries.query, across.at, more)
            for each, start in enumerate(starts):
                factors = [part, load(builder, kind, keys, start, across.at, more)]
                sums[each] = builder.call(multiply_add, [*factors, sums[each]])
        across.close(list(zip(totals, sums, strict=True)), number(UNROLLED * kind.count))
        for place, past, added in zip(places, beyond, sums, strict=True):
            whole = builder.call(reduce_add, [ir.Constant(FLOAT, 0.0), added], fastmath=["reassoc"])
            score = builder.select(past, ir.Constant(FLOAT, float("-inf")), builder.fmul(whole, given["scale"]))
            builder.store(score, at_offset(builder, queries.scores, FLOAT, place), align=4)
    by_key.close([], number(KEYS))


def _weigh(made: Any, builder: Any, kind: Any, given: dict[str, Any], queries: _Queries) -> None:
    """Softmax of one query's scores; its output is made 0."""
    reduce_add = declared(made, f"llvm.vector.reduce.fadd.v{kind.count}f32", ir.FunctionType(FLOAT, [FLOAT, kind]))
    reduce_max = declared(made, f"llvm.vector.reduce.fmax.v{kind.count}f32", ir.FunctionType(FLOAT, [kind]))
    largest = declared(made, f"llvm.maxnum.v{kind.count}f32", ir.FunctionType(kind, [kind] * 2))
    length, scores, padded, lanes = given["length"], queries.scores, queries.padded, number(kind.count)
    # What lies behind the last key in its vector must count for nothing.
    rest = Loop(builder, builder.sub(padded, lanes), padded)
    with builder.if_then(builder.icmp_unsigned(">=", rest.at, length)):
        builder.store(ir.Constant(FLOAT, float("-inf")), at_offset(builder, scores, FLOAT, rest.at), align=4)
    rest.close([])
    with builder.if_then(builder.icmp_unsigned("!=", builder.ptrtoint(given["mask"], LONG), number(0))):
        masked = Loop(builder, number(0), length)
        place = at_offset(builder, scores, FLOAT, masked.at)
        hidden = builder.load(
            at_offset(builder, given["mask"], FLOAT, builder.mul(queries.row, length), masked.at), typ=FLOAT, align=4
        )
        builder.store(builder.fadd(builder.load(place, typ=FLOAT, align=4), hidden), place, align=4)
        masked.close([])

    search = Loop(builder, number(0), padded)
    best = search.carry(same(kind, float("-inf")))
    better = builder.call(largest, [best, load(builder, kind, scores, search.at)])
    search.close([(best, better)], lanes)
    peak = broadcast(builder, builder.call(reduce_max, [better]), kind)

    weigh = Loop(builder, number(0), padded)
    before = weigh.carry(same(kind, 0.0))
    weight = exponential(made, builder, builder.fsub(load(builder, kind, scores, weigh.at), peak))
    store(builder, weight, scores, weigh.at)
    after = builder.fadd(before, weight)
    weigh.close([(before, after)], lanes)
    whole = builder.call(reduce_add, [ir.Constant(FLOAT, 0.0), after], fastmath=["reassoc"])
    factor = broadcast(builder, builder.fdiv(ir.Constant(FLOAT, 1.0), whole), kind)
    divide = Loop(builder, number(0), padded)
    store(builder, builder.fmul(load(builder, kind, scores, divide.at), factor), scores, divide.at)
    divide.close([], lanes)
    empty = Loop(builder, number(0), given["size"])
    store(builder, same(kind, 0.0), queries.output, empty.at)
    empty.close([], lanes)


def _add_up(made: Any, builder: Any, kind: Any, given: dict[str, Any], values: Any, queries: _Queries) -> None:
    """The values, weighed, added to the outputs of all queries."""
    multiply_add = declared(made, f"llvm.fma.v{kind.count}f32", ir.FunctionType(kind, [kind] * 3))
    size, length = given["size"], given["length"]
    block = Loop(builder, number(0), length)
    end = builder.add(block.at, number(VALUES))
    end = builder.select(builder.icmp_unsigned("<", end, length), end, length)
    with queries:
        parts = Loop(builder, number(0), size)
        places = [(parts.at, number(vector * kind.count)) for vector in range(UNROLLED)]
        before = [load(builder, kind, queries.output, *place) for place in places]
        over = Loop(builder, block.at, end)
        totals = [over.carry(value) for value in before]
        chance = builder.load(at_offset(builder, queries.scores, FLOAT, over.at), typ=FLOAT, align=4)
        spread, start = broadcast(builder, chance, kind), builder.mul(over.at, size)
        sums = [
            builder.call(multiply_add, [spread, load(builder, kind, values, start, *place), total])
            for place, total in zip(places, totals, strict=True)
        ]
        over.close(list(zip(totals, sums, strict=True)))
        for place, total in zip(places, sums, strict=True):
            store(builder, total, queries.output, *place)
        parts.close([], number(UNROLLED * kind.count))
    block.close([], number(VALUES))


def named(builder: Any, place: Any, names: tuple[str, ...]) -> dict[str, Any]:
    """What lies at `place`, by name, in 64 bits each."""
    kinds = [FLOAT if name in ("epsilon", "scale") else LONG if name in NUMBERS else POINTER for name in names]
    return dict(zip(names, from_memory(builder, place, kinds), strict=True))


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
