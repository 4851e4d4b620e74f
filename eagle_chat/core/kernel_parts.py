"""LLVM's intermediate code of what a decoder layer does between its products: norm, rotation, activation.

Each is a few thousand operations, which torch makes several calls of; on a processor whose step takes 30 ms those calls
are a tenth of it. Sizes are whole vectors, and one thread does it all.
"""

from __future__ import annotations

import math
from typing import Any

from llvmlite import ir

from eagle_chat.core.kernel_ir import FLOAT, INT, LONG, POINTER, VOID, Loop, at_offset, broadcast, declared, number

EXPONENT_TERMS = 7
"""Of e^r = sum r^n / n! for |r| <= ln(2) / 2: the next is 5e-9 of it."""


def add_parts(made: Any, lanes: int) -> None:
    """Put `norm`, `gated` and `rotate` into the module."""
    kind = ir.VectorType(FLOAT, lanes)
    _norm(made, kind)
    _gated(made, kind)
    _rotate(made, kind)


def _function(made: Any, name: str, arguments: list[Any]) -> tuple[Any, list[Any]]:
    function = ir.Function(made, ir.FunctionType(VOID, arguments), name)
    return ir.IRBuilder(function.append_basic_block("entry")), list(function.args)


def load(builder: Any, kind: Any, pointer: Any, *offsets: Any) -> Any:
    """A vector of numbers at pointer[sum of offsets]."""
    return builder.load(at_offset(builder, pointer, FLOAT, *offsets), typ=kind, align=4)


def store(builder: Any, value: Any, pointer: Any, *offsets: Any) -> None:
    """Put a vector there."""
    builder.store(value, at_offset(builder, pointer, FLOAT, *offsets), align=4)


def same(kind: Any, value: float) -> Any:
    """A constant vector of one number."""
    return ir.Constant(kind, [value] * kind.count)


def _norm(made: Any, kind: Any) -> None:
    """norm(x, weight, y, rows, size, epsilon): y = x weight / sqrt(mean(x^2) + epsilon) for each row."""
    builder, (x, weight, y, rows, size, epsilon) = _function(made, "norm", [POINTER] * 3 + [LONG, LONG, FLOAT])
    multiply_add = declared(made, f"llvm.fma.v{kind.count}f32", ir.FunctionType(kind, [kind] * 3))
    total_of = declared(made, f"llvm.vector.reduce.fadd.v{kind.count}f32", ir.FunctionType(FLOAT, [FLOAT, kind]))
    root_of = declared(made, "llvm.sqrt.f32", ir.FunctionType(FLOAT, [FLOAT]))
    by_row = Loop(builder, number(0), rows)
    start = builder.mul(by_row.at, size)
    squares = Loop(builder, number(0), size)
    total = squares.carry(same(kind, 0.0))
    part = load(builder, kind, x, start, squares.at)
    added = builder.call(multiply_add, [part, part, total])
    squares.close([(total, added)], number(kind.count))
    both = builder.call(total_of, [ir.Constant(FLOAT, 0.0), added], fastmath=["reassoc"])
    mean = builder.fdiv(both, builder.uitofp(size, FLOAT))
    length = builder.call(root_of, [builder.fadd(mean, epsilon)])
    factor = broadcast(builder, builder.fdiv(ir.Constant(FLOAT, 1.0), length), kind)
    scaled = Loop(builder, number(0), size)
    value = builder.fmul(load(builder, kind, x, start, scaled.at), factor)
    store(builder, builder.fmul(value, load(builder, kind, weight, scaled.at)), y, start, scaled.at)
    scaled.close([], number(kind.count))
    by_row.close([])
    builder.ret_void()


def _gated(made: Any, kind: Any) -> None:
    """gated(both, y, rows, size): y = silu(g) u, where a row of `both` is [g, u] with `size` numbers each."""
    builder, (both, y, rows, size) = _function(made, "gated", [POINTER] * 2 + [LONG] * 2)
    one = same(kind, 1.0)
    by_row = Loop(builder, number(0), rows)
    start = builder.mul(by_row.at, size)
    doubled = builder.add(start, start)
    across = Loop(builder, number(0), size)
    gate = load(builder, kind, both, doubled, across.at)
    up = load(builder, kind, both, doubled, size, across.at)
    below = builder.fadd(one, exponential(made, builder, builder.fneg(gate)))
    store(builder, builder.fmul(builder.fdiv(gate, below), up), y, start, across.at)
    across.close([], number(kind.count))
    by_row.close([])
    builder.ret_void()


def exponential(made: Any, builder: Any, x: Any) -> Any:
    """e^x = 2^n e^r with a whole n and r = x - n ln 2; between the smallest normal number and the largest."""
    kind = x.type
    whole = ir.VectorType(INT, kind.count)
    single, double = ir.FunctionType(kind, [kind]), ir.FunctionType(kind, [kind] * 2)
    suffix = f"v{kind.count}f32"
    x = builder.call(declared(made, f"llvm.minnum.{suffix}", double), [x, same(kind, 88.0)])
    x = builder.call(declared(made, f"llvm.maxnum.{suffix}", double), [x, same(kind, -87.0)])
    n = builder.call(
        declared(made, f"llvm.nearbyint.{suffix}", single), [builder.fmul(x, same(kind, 1 / math.log(2.0)))]
    )
    multiply_add = declared(made, f"llvm.fma.{suffix}", ir.FunctionType(kind, [kind] * 3))
    # ln 2 in two parts, the first with so few digits that its product with n is exact.
    upper = math.ldexp(round(math.ldexp(math.log(2.0), 12)), -12)
    r = builder.call(multiply_add, [n, same(kind, -upper), x])
    r = builder.call(multiply_add, [n, same(kind, upper - math.log(2.0)), r])
    total = same(kind, 1 / math.factorial(EXPONENT_TERMS))
    for term in range(EXPONENT_TERMS - 1, -1, -1):
        total = builder.call(multiply_add, [total, r, same(kind, 1 / math.factorial(term))])
    biased = builder.add(builder.fptosi(n, whole), ir.Constant(whole, [127] * kind.count))
    power = builder.bitcast(builder.shl(biased, ir.Constant(whole, [23] * kind.count)), kind)
    return builder.fmul(total, power)


def _rotate(made: Any, kind: Any) -> None:
    """rotate(x, cos, sin, positions, rows, stride, heads, half): turn the first `heads` heads of 2 half numbers of each
    row; rows begin `stride` apart. `cos` and `sin` [any, 2 half] by position, the first half of `sin` negated."""
    builder, arguments = _function(made, "rotate", [POINTER] * 4 + [LONG] * 4)
    x, cosines, sines, positions, rows, stride, heads, half = arguments
    multiply_add = declared(made, f"llvm.fma.v{kind.count}f32", ir.FunctionType(kind, [kind] * 3))
    size = builder.add(half, half)
    by_row = Loop(builder, number(0), rows)
    position = builder.load(at_offset(builder, positions, LONG, by_row.at), typ=LONG, align=8)
    row, angles = builder.mul(by_row.at, stride), builder.mul(position, size)
    by_head = Loop(builder, number(0), heads)
    head = builder.add(row, builder.mul(by_head.at, size))
    across = Loop(builder, number(0), half)
    low, high = (load(builder, kind, x, head, across.at, *more) for more in ((), (half,)))
    for own, other, more in ((low, high, ()), (high, low, (half,))):
        turned = builder.fmul(other, load(builder, kind, sines, angles, across.at, *more))
        cosine = load(builder, kind, cosines, angles, across.at, *more)
        store(builder, builder.call(multiply_add, [own, cosine, turned]), x, head, across.at, *more)
    across.close([], number(kind.count))
    by_head.close([])
    by_row.close([])
    builder.ret_void()
