"""Arithmetic of the LLVM writer that takes more than one instruction, or more than the operands' names."""

from __future__ import annotations

from morok.ir.node import UOp
from morok.ir.ops import Ops
from morok.render.llvm.dot import dot4, sum_with_dot4
from morok.render.llvm.extremes import RANGED, extreme_of_many
from morok.render.llvm.ops import arithmetic
from morok.render.llvm.remainder import remainder
from morok.render.llvm.types import suffix, type_name
from morok.render.llvm.writer import Writer

MASKED = 64  # bytes of vectors whose comparisons go to mask registers, on x86


def arithmetic_text(writer: Writer, node: UOp) -> str:
    if node.op is Ops.MULACC and not node.dtype.is_float:
        t = type_name(node.dtype)
        x, y, z = map(writer.name_of, node.src)
        return f"add {t} {writer.let(f'mul {t} {x}, {y}')}, {z}"
    if node.op is Ops.MULHI:
        return _mulhi(writer, node)
    if node.op is Ops.DOT4:
        return dot4(writer, node)
    if node.op is Ops.ADD and (joined := sum_with_dot4(writer, node)) is not None:
        return joined
    if node.op is Ops.FMOD:
        return remainder(writer, node)
    operands = [writer.name_of(s) for s in node.src]
    if node.op in (Ops.MAX, Ops.MIN) and _fills_mask_registers(writer, node):
        if writer.ranges and node.dtype.scalar.bits in RANGED:
            return extreme_of_many(writer, node)
        return _extreme(writer, node, *operands)
    if node.op is Ops.MULACC and node.src[2].op is Ops.CONST and node.dtype.lanes > 1:
        if writer.in_place and writer.loops:
            operands[2] = writer.number(node.src[2])
    if node.op is Ops.FDIV and node.dtype.lanes > 1:
        operands[0] = _fence(writer, node, operands[0])
    return arithmetic(node, operands, writer.call)


def _fence(writer: Writer, node: UOp, x: str) -> str:
    """The dividend, about whose lanes LLVM is told nothing.

    Its code generator takes a lane of 0/0 for 0 instead of NaN where it knows that both are zero, as in the
    lanes beyond the end of a padded row, and then drops the selection that keeps the NaN out of the result.
    """
    if node.src[0].op in (Ops.CONST, Ops.VCONST):
        return x
    return writer.let(
        writer.call(f"llvm.arithmetic.fence.{suffix(node.dtype)}", node.dtype, [(node.dtype, x)])
    )


def _fills_mask_registers(writer: Writer, node: UOp) -> bool:
    """Whether comparisons of such vectors are masks: of 64 bytes, on x86.

    LLVM knows what to do for constants.
    """
    wide = writer.arch == "x86_64" and node.dtype.is_float and node.dtype.itemsize == MASKED
    return wide and all(s.op not in (Ops.CONST, Ops.VCONST) for s in node.src)


def _extreme(writer: Writer, node: UOp, x: str, y: str) -> str:
    """The larger or the smaller one, in three instructions where LLVM has seven.

    The processor's own instruction is right unless both are equal, zeros of either sign perhaps, or one is
    NaN. Then all bits of both together are the result, but that the larger zero has a sign if both have.
    """
    t, bits = type_name(node.dtype), node.dtype.scalar.bits
    whole = f"<{node.dtype.lanes} x i{bits}>"
    order = "ogt" if node.op is Ops.MAX else "olt"
    better = writer.let(f"fcmp {order} {t} {x}, {y}")
    found = writer.let(f"select <{node.dtype.lanes} x i1> {better}, {t} {x}, {t} {y}")
    a, b = (writer.let(f"bitcast {t} {v} to {whole}") for v in (x, y))
    joined = writer.let(f"or {whole} {a}, {b}")
    if node.op is Ops.MAX:
        magnitude = writer.let(f"and {whole} {joined}, splat (i{bits} {(1 << bits - 1) - 1})")
        signs = writer.let(f"and {whole} {a}, {b}")
        joined = writer.let(f"or {whole} {magnitude}, {signs}")
    joined = writer.let(f"bitcast {whole} {joined} to {t}")
    alike = writer.let(f"fcmp ueq {t} {x}, {y}")
    return f"select <{node.dtype.lanes} x i1> {alike}, {t} {joined}, {t} {found}"


def _mulhi(writer: Writer, node: UOp) -> str:
    dtype = node.dtype
    bits = dtype.scalar.bits
    extend, shift = ("zext", "lshr") if dtype.is_unsigned else ("sext", "ashr")
    wide = f"<{dtype.lanes} x i{2 * bits}>" if dtype.lanes > 1 else f"i{2 * bits}"
    x, y = (writer.let(f"{extend} {type_name(dtype)} {writer.name_of(s)} to {wide}") for s in node.src)
    amount = str(bits) if dtype.lanes == 1 else "<" + ", ".join([f"i{2 * bits} {bits}"] * dtype.lanes) + ">"
    high = writer.let(f"{shift} {wide} {writer.let(f'mul {wide} {x}, {y}')}, {amount}")
    return f"trunc {wide} {high} to {type_name(dtype)}"
