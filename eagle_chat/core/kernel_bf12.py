"""bfloat16 weights in 12 bits without loss: what a plain step reads from memory shrinks by a quarter.

A bfloat16 has a sign, 8 bits of exponent and 7 of mantissa, but nearly all weights of a matrix lie within 16 exponents
of the largest. So a panel keeps 4 bits of each exponent, counted from a base of its own, and lists the few weights that
do not fit, its exceptions, apart. (That exponents hold few bits is what lossless compression of weights lives on, e.g.
DFloat11, arXiv 2504.11651; a fixed length is what a vector register can take apart in a few steps.)

A panel of outputs, in bytes: a header (int64 bytes of a panel; int32 exceptions, base in the place of a bfloat16's
exponent, and groups), then groups of 8 vectors, then the exceptions (int32 input, int32 output, float32 weight), for
which all panels have the same room. A group has a byte for each weight, the lowest bit of its exponent and its
mantissa, and after these half a byte for each, its sign and the other three bits. The code 0 is the weight 0.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from llvmlite import ir
from torch import Tensor

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
    number,
)
from eagle_chat.core.kernel_machine import Machine

GROUP = 8
"""Vectors of a group."""
HEADER = 64
EXCEPTION = 12
"""Bytes of each."""
MOST_EXCEPTIONS = 0.02
"""Room for exceptions, as a share of a panel's bytes; where they are more, this form is not for the matrix."""
AT_A_TIME = 2**18
"""Weights that are packed at a time: few enough to stay in the cache from step to step."""
LANE = 16
"""Bytes within which vector instructions interleave."""
CODES = 16
MAGNITUDE = 0x7FFF
SIGN, HIGH = 0x80, 0x07


def steps(machine: Machine) -> int:
    """Inputs of a group."""
    return GROUP // machine.vectors


def group_bytes(machine: Machine) -> int:
    """Bytes of a group."""
    return GROUP * machine.lanes * 3 // 2


def weights(builder: Any, machine: Machine, panel: Any, at: Any) -> Iterator[Any]:
    """The weights of group `at`, 8 vectors in float32: those of its first input, of its second, and so on. Each is
    built when it is asked for, so that few registers hold weights at a time."""
    count = 4 * machine.lanes
    kind = ir.VectorType(BYTE, count)
    group = _group(builder, machine, panel, at)
    low = [builder.load(at_offset(builder, group, BYTE, number(part * count)), typ=kind, align=1) for part in range(3)]
    halves = low.pop()
    high = ir.Constant(kind, [SIGN | HIGH] * count)
    place = at_offset(builder, panel, INT, number(3))
    base = broadcast(
        builder, builder.trunc(builder.load(place, typ=INT, align=4), SHORT), ir.VectorType(SHORT, count // 2)
    )
    zero = ir.Constant(base.type, [0] * base.type.count)
    for first, second in zip(low, (halves, _turned(builder, halves)), strict=True):
        for codes in _interleaved(builder, first, builder.and_(second, high), base.type):
            is_weight = builder.icmp_unsigned("!=", codes, zero)
            words = builder.select(is_weight, builder.add(codes, base), zero)
            # A bfloat16 is the upper half of a float32.
            yield from _interleaved(builder, zero, words, ir.VectorType(FLOAT, machine.lanes))


def _group(builder: Any, machine: Machine, panel: Any, at: Any) -> Any:
    """Where group `at` of a panel begins; the one behind the last is where the exceptions do."""
    return at_offset(builder, panel, BYTE, number(HEADER), builder.mul(at, number(group_bytes(machine))))


def _turned(builder: Any, values: Any) -> Any:
    """Bytes with their halves exchanged."""
    four = ir.Constant(values.type, [4] * values.type.count)
    return builder.or_(builder.shl(values, four), builder.lshr(values, four))


def _interleaved(builder: Any, first: Any, second: Any, kind: Any) -> list[Any]:
    """The elements of two vectors in turns, lower and upper halves of every lane, as vectors of `kind`."""
    count = first.type.count
    lane = LANE * 8 // first.type.element.width
    result = []
    for half in (0, lane // 2):
        order = [at + half + place for at in range(0, count, lane) for place in range(lane // 2)]
        turns = [place for one in order for place in (one, count + one)]
        mask = ir.Constant(ir.VectorType(INT, count), turns)
        result.append(builder.bitcast(builder.shuffle_vector(first, second, mask), kind))
    return result


def panel_bytes(builder: Any, weight: Any) -> Any:
    """Bytes from one panel to the next."""
    return builder.load(weight, typ=LONG, align=8)


def add_exceptions(made: Any, machine: Machine) -> None:
    """Put `exceptions_bf12(panel, x, y, rows, depth, outputs)` into the module: y[row, output] += weight x[row, input]
    for every exception of a panel."""
    function = ir.Function(made, ir.FunctionType(VOID, [POINTER] * 3 + [LONG] * 3), "exceptions_bf12")
    function.linkage = "internal"
    panel, x, y, rows, depth, outputs = function.args
    builder = ir.IRBuilder(function.append_basic_block("entry"))
    count = builder.zext(builder.load(at_offset(builder, panel, INT, number(2)), typ=INT, align=4), LONG)
    with builder.if_then(builder.icmp_unsigned(">", count, number(0)), likely=False):
        entries = _group(builder, machine, panel, builder.udiv(depth, number(steps(machine))))
        loop = Loop(builder, number(0), count)
        entry = at_offset(builder, entries, BYTE, builder.mul(loop.at, number(EXCEPTION)))
        column, output = (
            builder.zext(builder.load(at_offset(builder, entry, INT, number(at)), typ=INT, align=4), LONG)
            for at in range(2)
        )
        value = builder.load(at_offset(builder, entry, FLOAT, number(2)), typ=FLOAT, align=4)
        row_loop = Loop(builder, number(0), rows)
        place = at_offset(builder, y, FLOAT, builder.mul(outputs, row_loop.at), output)
        single = builder.load(at_offset(builder, x, FLOAT, builder.mul(depth, row_loop.at), column), typ=FLOAT, align=4)
        total = builder.fadd(builder.load(place, typ=FLOAT, align=4), builder.fmul(value, single))
        builder.store(total, place, align=4)
        row_loop.close([])
        loop.close([])
    builder.ret_void()


def add_packing(made: Any, machine: Machine) -> None:
    """Put `pack_bf12(bits, packed, panels, groups, stride, room)` into the module: bits int16 [panels, K, panel], to
    panels of `stride` bytes with room for so many exceptions. A header counts those that have none, too."""
    function = ir.Function(made, ir.FunctionType(VOID, [POINTER] * 2 + [LONG] * 4), "pack_bf12")
    bits, packed, panels, groups, stride, room = function.args
    builder = ir.IRBuilder(function.append_basic_block("entry"))
    count = 4 * machine.lanes
    kind = ir.VectorType(SHORT, count)
    magnitude, zero = ir.Constant(kind, [MAGNITUDE] * count), ir.Constant(kind, [0] * count)
    kept = builder.alloca(kind)
    halves = builder.mul(groups, number(2))
    outer = Loop(builder, number(0), panels)
    source = at_offset(builder, bits, kind, builder.mul(outer.at, halves))
    panel = at_offset(builder, packed, BYTE, builder.mul(outer.at, stride))

    def half_at(at: Any) -> Any:
        return builder.load(at_offset(builder, source, kind, at), typ=kind, align=2)

    largest = Loop(builder, number(0), halves)
    most = largest.carry(zero)
    now = builder.and_(half_at(largest.at), magnitude)
    now = builder.select(builder.icmp_signed(">", now, most), now, most)
    largest.close([(most, now)])
    reduce = declared(made, f"llvm.vector.reduce.smax.v{count}i16", ir.FunctionType(SHORT, [kind]))
    top = builder.sub(builder.lshr(builder.call(reduce, [now]), ir.Constant(SHORT, 7)), ir.Constant(SHORT, CODES - 1))
    one = ir.Constant(SHORT, 1)
    single = builder.shl(builder.select(builder.icmp_signed(">", top, one), top, one), ir.Constant(SHORT, 7))
    base = broadcast(builder, single, kind)
    builder.store(stride, panel, align=8)
    for place, value in ((2, ir.Constant(INT, 0)), (3, builder.zext(single, INT)), (4, builder.trunc(groups, INT))):
        builder.store(value, at_offset(builder, panel, INT, number(place)), align=4)
    entries = _group(builder, machine, panel, groups)
    any_left = declared(made, f"llvm.vector.reduce.or.v{count}i16", ir.FunctionType(SHORT, [kind]))
    bytes_kind = ir.VectorType(BYTE, count)
    order = [
        vector * machine.lanes + 4 * lane + one
        for lane in range(machine.lanes // 4)
        for vector in range(4)
        for one in range(4)
    ]

    each = Loop(builder, number(0), groups)
    high = []
    group = _group(builder, machine, panel, each.at)
    for half in range(2):
        at = builder.add(builder.mul(each.at, number(2)), number(half))
        weights = half_at(at)
        codes = builder.sub(weights, base)
        low = builder.icmp_signed("<", builder.and_(weights, magnitude), base)
        misfit = builder.or_(low, builder.icmp_unsigned("==", codes, zero))
        codes = builder.select(misfit, zero, codes)
        codes = builder.shuffle_vector(codes, zero, ir.Constant(ir.VectorType(INT, count), order))
        builder.store(builder.trunc(codes, bytes_kind), at_offset(builder, group, BYTE, number(half * count)), align=1)
        upper = builder.trunc(builder.lshr(codes, ir.Constant(kind, [8] * count)), bytes_kind)
        high.append(builder.and_(upper, ir.Constant(bytes_kind, [SIGN | HIGH] * count)))
        left = builder.select(misfit, weights, zero)
        with builder.if_then(
            builder.icmp_unsigned("!=", builder.call(any_left, [left]), ir.Constant(SHORT, 0)), likely=False
        ):
            builder.store(left, kept)
            _append_exceptions(builder, machine, kept, builder.mul(at, number(count)), panel, entries, room)
    builder.store(
        builder.or_(high[0], _turned(builder, high[1])), at_offset(builder, group, BYTE, number(2 * count)), align=1
    )
    each.close([])
    outer.close([])
    builder.ret_void()


def _append_exceptions(
    builder: Any, machine: Machine, kept: Any, first: Any, panel: Any, entries: Any, room: Any
) -> None:
    """Those of the weights at `kept`, zero where they are none; `first` is the place of the first in the panel."""
    loop = Loop(builder, number(0), number(4 * machine.lanes))
    weight = builder.load(at_offset(builder, kept, SHORT, loop.at), typ=SHORT, align=2)
    with builder.if_then(builder.icmp_unsigned("!=", weight, ir.Constant(SHORT, 0))):
        counter = at_offset(builder, panel, INT, number(2))
        count = builder.load(counter, typ=INT, align=4)
        builder.store(builder.add(count, ir.Constant(INT, 1)), counter, align=4)
        at = builder.zext(count, LONG)
        with builder.if_then(builder.icmp_unsigned("<", at, room)):
            entry = at_offset(builder, entries, BYTE, builder.mul(at, number(EXCEPTION)))
            place, size = builder.add(first, loop.at), number(machine.panel)
            value = builder.shl(builder.zext(weight, INT), ir.Constant(INT, 16))
            fields = (
                builder.trunc(builder.udiv(place, size), INT),
                builder.trunc(builder.urem(place, size), INT),
                value,
            )
            for index, field in enumerate(fields):
                builder.store(field, at_offset(builder, entry, INT, number(index)), align=4)
    loop.close([])


def pack(weight: Tensor, machine: Machine, function: Any) -> Tensor | None:
    """W [N, K], bfloat16, in this form: uint8 [N / panel, bytes], by the compiled `pack_bf12`. None where it is not
    whole panels and groups, or a panel has too many exceptions."""
    size, each = machine.panel, steps(machine)
    if weight.dtype is not torch.bfloat16 or weight.shape[0] % size or weight.shape[1] % each:
        return None
    groups = weight.shape[1] // each
    used = HEADER + groups * group_bytes(machine)
    stride = -(-int(used * (1 + MOST_EXCEPTIONS)) // HEADER) * HEADER
    packed = torch.empty(weight.shape[0] // size, stride, dtype=torch.uint8)
    room = (stride - used) // EXCEPTION
    together = max(1, AT_A_TIME // (size * weight.shape[1]))
    for at in range(0, len(packed), together):
        place = packed[at : at + together]
        bits = weight.view(-1, size, weight.shape[1])[at : at + together].transpose(1, 2).contiguous()
        function(bits.data_ptr(), place.data_ptr(), len(place), groups, stride, room)
    return packed if int(packed[:, 8:12].view(torch.int32).max()) <= room else None


def unpack(packed: Tensor, machine: Machine) -> Tensor:
    """The weight [N, K] again."""
    header = packed[:, 8:20].clone().view(torch.int32)
    count, base, groups = header[:, 0], header[:, 1].to(torch.int16), int(header[0, 2])
    used = HEADER + groups * group_bytes(machine)
    place = packed[:, HEADER:used].view(len(packed), groups, 3, -1)
    halves = place[:, :, 2]
    high = torch.stack((halves, (halves << 4) | (halves >> 4)), dim=2) & (SIGN | HIGH)
    codes = (high.to(torch.int16) << 8) | place[:, :, :2].to(torch.int16)
    bits = torch.where(codes != 0, codes + base.view(-1, 1, 1, 1), 0)
    ordered = bits.view(len(packed), groups * 2, machine.lanes // 4, 4, 4).transpose(2, 3)
    panels = ordered.reshape(len(packed), -1, machine.panel)
    weight = panels.transpose(1, 2).reshape(len(packed) * machine.panel, -1).view(torch.bfloat16)
    room = packed[:, used : used + (packed.shape[1] - used) // EXCEPTION * EXCEPTION].view(len(packed), -1, EXCEPTION)
    panel, which = (torch.arange(room.shape[1]) < count[:, None]).nonzero().unbind(1)
    column, output, value = room[panel, which].view(torch.int32).unbind(1)
    weight[panel * machine.panel + output, column] = value.contiguous().view(torch.float32).bfloat16()
    return weight
