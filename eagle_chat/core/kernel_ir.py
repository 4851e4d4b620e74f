"""Building LLVM's intermediate code: numbers, places, loops, and work that threads share."""

from __future__ import annotations

from typing import Any

from llvmlite import ir

from eagle_chat.core.kernel_machine import SIZES

FLOAT, BYTE, SHORT, INT, LONG = ir.FloatType(), ir.IntType(8), ir.IntType(16), ir.IntType(32), ir.IntType(64)
POINTER, VOID = ir.PointerType(), ir.VoidType()


class Loop:
    """`for at in range(start, stop)`, at least once: what is built between here and `close` is its body."""

    def __init__(self, builder: Any, start: Any, stop: Any) -> None:
        self._builder, self._stop = builder, stop
        before = builder.block
        self._head = builder.append_basic_block("loop")
        builder.branch(self._head)
        builder.position_at_end(self._head)
        self.at = builder.phi(LONG)
        self.at.add_incoming(start, before)
        self._before = before

    def carry(self, first: Any) -> Any:
        """A value that each round hands to the next."""
        value = self._builder.phi(first.type)
        value.add_incoming(first, self._before)
        return value

    def close(self, carried: list[tuple[Any, Any]], step: Any = None) -> None:
        """End the body: `carried` pairs of `carry`'s value and what it becomes; `step` instead of 1."""
        builder = self._builder
        following = builder.add(self.at, ir.Constant(LONG, 1) if step is None else step)
        self.at.add_incoming(following, builder.block)
        for value, new in carried:
            value.add_incoming(new, builder.block)
        after = builder.append_basic_block("after")
        builder.cbranch(builder.icmp_unsigned("<", following, self._stop), self._head, after)
        builder.position_at_end(after)


def number(value: int) -> Any:
    """A constant of 64 bits."""
    return ir.Constant(LONG, value)


def at_offset(builder: Any, pointer: Any, element: Any, *offsets: Any) -> Any:
    """pointer[sum of offsets]."""
    total = offsets[0]
    for offset in offsets[1:]:
        total = builder.add(total, offset)
    return builder.gep(pointer, [total], source_etype=element)


def broadcast(builder: Any, value: Any, kind: Any) -> Any:
    """A vector of one number."""
    undefined = ir.Constant(kind, ir.Undefined)
    single = builder.insert_element(undefined, value, ir.Constant(INT, 0))
    return builder.shuffle_vector(single, undefined, ir.Constant(ir.VectorType(INT, kind.count), [0] * kind.count))


def widened(builder: Any, shorts: Any) -> Any:
    """Vector of bfloat16 in float32: it is the upper half of one."""
    count = shorts.type.count
    wide = ir.VectorType(INT, count)
    upper = builder.shl(builder.zext(shorts, wide), ir.Constant(wide, [16] * count))
    return builder.bitcast(upper, ir.VectorType(FLOAT, count))


def to_memory(builder: Any, values: list[Any]) -> Any:
    """A place with these values, each in 64 bits; pointers as addresses, a float32 as its bits."""
    room = builder.alloca(LONG, size=len(values))
    for at, value in enumerate(values):
        if value.type == POINTER:
            value = builder.ptrtoint(value, LONG)
        elif value.type == FLOAT:
            value = builder.zext(builder.bitcast(value, INT), LONG)
        builder.store(value, builder.gep(room, [number(at)]), align=8)
    return room


def from_memory(builder: Any, place: Any, kinds: list[Any]) -> list[Any]:
    """The values of these kinds that `to_memory`, or a program, has put there."""
    places = [at_offset(builder, place, LONG, number(at)) for at in range(len(kinds))]
    return [builder.load(where, typ=kind, align=8) for where, kind in zip(places, kinds, strict=True)]


def named(builder: Any, place: Any, names: tuple[str, ...]) -> dict[str, Any]:
    """What lies at `place`, by name, in 64 bits each."""
    kinds = [FLOAT if name in ("epsilon", "scale") else LONG if name in SIZES else POINTER for name in names]
    return dict(zip(names, from_memory(builder, place, kinds), strict=True))


def in_parallel(made: Any, name: str, count: Any, share: Any, parallel: bool) -> Any:
    """A function name(arguments, threads) that shares `count(builder, arguments)` units of work out evenly: each thread
    does `share(builder, arguments, first, last)`."""
    signature = ir.FunctionType(VOID, [POINTER])
    part = ir.Function(made, signature, f"{name}_part")
    part.linkage = "internal"
    builder = ir.IRBuilder(part.append_basic_block("entry"))
    total = count(builder, part.args[0])
    first, last = number(0), total
    if parallel:
        ask = ir.FunctionType(INT, [])
        thread = builder.zext(builder.call(declared(made, "omp_get_thread_num", ask), []), LONG)
        team = builder.zext(builder.call(declared(made, "omp_get_num_threads", ask), []), LONG)
        first = builder.udiv(builder.mul(total, thread), team)
        last = builder.udiv(builder.mul(total, builder.add(thread, number(1))), team)
    with builder.if_then(builder.icmp_unsigned("<", first, last)):
        share(builder, part.args[0], first, last)
    builder.ret_void()
    function = ir.Function(made, ir.FunctionType(VOID, [POINTER, INT]), name)
    function.linkage = "internal"
    builder = ir.IRBuilder(function.append_basic_block("entry"))
    arguments, threads = function.args
    if parallel:
        team_call = ir.FunctionType(VOID, [POINTER, POINTER, INT, INT])
        builder.call(declared(made, "GOMP_parallel", team_call), [part, arguments, threads, ir.Constant(INT, 0)])
    else:
        builder.call(part, [arguments])
    builder.ret_void()
    return function


def declared(made: Any, name: str, signature: Any) -> Any:
    """A function from elsewhere: LLVM's own, or OpenMP's."""
    return made.globals.get(name) or ir.Function(made, signature, name)
