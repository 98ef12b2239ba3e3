"""FMOD in LLVM IR: one division where the quotient is a number that floats count exactly, else long division.

    r = |x| - trunc(|x| / |y|)·|y|

With a quotient below 2⁵³ (2²⁴ in float32) the rounded one is at most one too large, and the fused product
makes r exact, so that adding |y| puts it right. All lanes do that; only if one of them has a larger quotient,
or nothing to divide by, a function is called for each, which divides as people do on paper: as many bits at a
time as 64 have room for beside the divisor.
"""

from __future__ import annotations

import math

from morok.dtype import DType, bool_
from morok.ir.node import UOp
from morok.render.llvm.types import constant, suffix, type_name
from morok.render.llvm.writer import Writer


def remainder(writer: Writer, node: UOp) -> str:
    """The instruction that has the result; those before it are written."""
    dtype = node.dtype
    t, x, y = type_name(dtype), *map(writer.name_of, node.src)
    function = f"{writer.name}.fmod.f{dtype.scalar.bits}"
    writer.declared["declare i64 @llvm.ctlz.i64(i64, i1)"] = None
    writer.declared[_long_division(function, dtype.scalar)] = None
    if not writer.fused:
        return _all_lanes(writer, function, dtype, x, y)
    quick, fits = _quick(writer, dtype, x, y)
    before, slow, after = writer.block, writer.label("far"), writer.label("near")
    writer.put(f"br i1 {fits}, label %{after}, label %{slow}")
    writer.start_block(slow)
    exact = writer.let(_all_lanes(writer, function, dtype, x, y))
    writer.put(f"br label %{after}")
    writer.start_block(after)
    return f"phi {t} [ {quick}, %{before} ], [ {exact}, %{slow} ]"


def _quick(writer: Writer, dtype: DType, x: str, y: str) -> tuple[str, str]:
    """The remainder by one division, and whether it is right in all lanes."""
    t, flags = type_name(dtype), f"<{dtype.lanes} x i1>" if dtype.lanes > 1 else "i1"

    def call(name: str, *operands: str) -> str:
        return writer.let(writer.call(f"llvm.{name}.{suffix(dtype)}", dtype, [(dtype, o) for o in operands]))

    size, step = call("fabs", x), call("fabs", y)
    # LLVM is told nothing about the lanes of the dividend: see `_fence` in `kernel.py`
    quotient = writer.let(f"fdiv {t} {call('arithmetic.fence', size) if dtype.lanes > 1 else size}, {step}")
    times = writer.let(f"fneg {t} {call('trunc', quotient)}")
    rest = call("fma", times, step, size)
    below = writer.let(f"fcmp olt {t} {rest}, {constant(dtype, 0.0)}")
    rest = writer.let(f"select {flags} {below}, {t} {writer.let(f'fadd {t} {rest}, {step}')}, {t} {rest}")
    less = writer.let(f"fcmp olt {t} {size}, {step}")
    rest = writer.let(f"select {flags} {less}, {t} {size}, {t} {rest}")
    limit = constant(dtype, math.ldexp(1.0, dtype.scalar.mantissa_bits + 1))
    small = writer.let(f"fcmp olt {t} {quotient}, {limit}")
    fits = writer.let(f"or {flags} {less}, {small}")
    if dtype.lanes > 1:
        flag = bool_.vec(dtype.lanes)
        fits = writer.let(writer.call(f"llvm.vector.reduce.and.v{dtype.lanes}i1", bool_, [(flag, fits)]))
    return call("copysign", rest, x), fits


def _all_lanes(writer: Writer, function: str, dtype: DType, x: str, y: str) -> str:
    """The remainder by long division, one lane after the other."""
    t, s = type_name(dtype), type_name(dtype.scalar)
    if dtype.lanes == 1:
        return f"call {s} @{function}({s} {x}, {s} {y})"
    result = "poison"
    for lane in range(dtype.lanes):
        a, b = (writer.let(f"extractelement {t} {v}, i32 {lane}") for v in (x, y))
        one = writer.let(f"call {s} @{function}({s} {a}, {s} {b})")
        text = f"insertelement {t} {result}, {s} {one}, i32 {lane}"
        result = text if lane == dtype.lanes - 1 else writer.let(text)
    return result


def _long_division(name: str, dtype: DType) -> str:
    """A function of two floats. Both are whole multiples of 2^(exponent of y): m·2^d mod n, by bits of d."""
    bits, fraction = dtype.bits, dtype.mantissa_bits
    t, sign = type_name(dtype), 1 << (bits - 1)
    infinite = sign - (1 << fraction)
    one, mask = 1 << fraction, (1 << fraction) - 1
    room = 63 - fraction  # a remainder has at most fraction + 1 bits
    wide = "bitcast i64 %w{0} to i64" if bits == 64 else "zext i{1} %w{0} to i64"
    narrow = "bitcast i64 %signed to i64" if bits == 64 else f"trunc i64 %signed to i{bits}"
    lines = [f"define internal {t} @{name}({t} %x, {t} %y) nounwind noinline cold {{", "entry:"]
    for v in "xy":
        lines += [
            f"  %w{v} = bitcast {t} %{v} to i{bits}",
            f"  %i{v} = {wide.format(v, bits)}",
            f"  %a{v} = and i64 %i{v}, {sign - 1}",
            f"  %p{v} = lshr i64 %a{v}, {fraction}",
            f"  %n{v} = icmp ne i64 %p{v}, 0",  # else the exponent is that of 1, without a leading bit
            f"  %e{v} = select i1 %n{v}, i64 %p{v}, i64 1",
            f"  %h{v} = select i1 %n{v}, i64 {one}, i64 0",
            f"  %f{v} = and i64 %i{v}, {mask}",
            f"  %m{v} = or i64 %f{v}, %h{v}",
        ]
    lines += f"""
  %zero = icmp eq i64 %ay, 0
  %endless = icmp uge i64 %ax, {infinite}
  %nan = icmp ugt i64 %ay, {infinite}
  %none.0 = or i1 %zero, %endless
  %none = or i1 %none.0, %nan
  br i1 %none, label %nothing, label %some
nothing:
  ret {t} {constant(dtype, math.nan)}
some:
  %less = icmp ult i64 %ax, %ay
  br i1 %less, label %all, label %divide
all:
  ret {t} %x
divide:
  %first = urem i64 %mx, %my
  %apart = sub i64 %ex, %ey
  br label %test
test:
  %r = phi i64 [ %first, %divide ], [ %next, %step ]
  %d = phi i64 [ %apart, %divide ], [ %left, %step ]
  %more = icmp ne i64 %d, 0
  %any = icmp ne i64 %r, 0
  %on = and i1 %more, %any
  br i1 %on, label %step, label %done
step:
  %much = icmp ugt i64 %d, {room}
  %by = select i1 %much, i64 {room}, i64 %d
  %longer = shl i64 %r, %by
  %next = urem i64 %longer, %my
  %left = sub i64 %d, %by
  br label %test
done:
  %leading = call i64 @llvm.ctlz.i64(i64 %r, i1 false)
  %up = sub i64 %leading, {room}
  %most = sub i64 %ey, 1
  %far = icmp ugt i64 %up, %most
  %shift = select i1 %far, i64 %most, i64 %up
  %e = sub i64 %most, %shift
  %high = shl i64 %e, {fraction}
  %low = shl i64 %r, %shift
  %sum = add i64 %high, %low
  %result = select i1 %any, i64 %sum, i64 0
  %negative = and i64 %ix, {sign}
  %signed = or i64 %result, %negative
  %word = {narrow}
  %back = bitcast i{bits} %word to {t}
  ret {t} %back
}}""".splitlines()[1:]
    return "\n".join(lines)
