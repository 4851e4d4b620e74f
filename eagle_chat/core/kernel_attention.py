"""LLVM's intermediate code of attention for a handful of rows.

A unit of work are the query heads that share a key head, for some rows: a few keys at a time are held against all of
these queries, and later a few values, because keys and values come from a slower cache than queries do.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir

from eagle_chat.core.kernel_ir import (
    FLOAT,
    LONG,
    Loop,
    at_offset,
    broadcast,
    declared,
    in_parallel,
    named,
    number,
)
from eagle_chat.core.kernel_machine import UNROLLED
from eagle_chat.core.kernel_parts import exponential, load, same, store

ATTENTION = (
    "qkv", "keys", "values", "mask", "scores", "attended", "rows", "heads", "kv_heads", "group", "size", "capacity",
    "length", "stride", "scale", "rows_each", "heads_each",
)  # fmt: skip
KEYS = 4
"""Keys whose scores are summed side by side: one sum alone waits for itself."""
VALUES = 16
"""Values that are added up for one query after the other."""


def add_attention(made: Any, kind: Any, parallel: bool) -> Any:
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
