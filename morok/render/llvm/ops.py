"""Arithmetic in LLVM IR: one function per op, from operand names to the text of an instruction.

No fast-math flags: what the IR says is what is computed. Division comes here only with divisors that are not
zero, shifts only by amounts below the width; the decompositions have seen to that.
"""

from __future__ import annotations

from collections.abc import Callable

from morok.dtype import DType, bool_
from morok.errors import CompileError
from morok.ir.node import UOp
from morok.ir.ops import Op, Ops
from morok.ir.provenance import place
from morok.render.llvm.types import constant, suffix, type_name

Call = Callable[[str, DType, list[tuple[DType, str]]], str]  # intrinsic, result, operands → instruction text


def arithmetic(node: UOp, x: list[str], call: Call) -> str:
    """The right side of `%name = …` for an ALU op on operands with these names."""
    op, dtype = node.op, node.src[-1].dtype
    scalar = dtype.scalar
    t = type_name(dtype)
    name = plain_name(node)
    if name is not None:
        return f"{name} {t} {x[0]}, {x[1]}"
    if op.is_compare:
        return f"{_compare(op, scalar)} {t} {x[0]}, {x[1]}"
    if op is Ops.WHERE:
        return f"select {type_name(node.src[0].dtype)} {x[0]}, {t} {x[1]}, {t} {x[2]}"
    if op is Ops.NEG:
        return f"fneg {t} {x[0]}" if scalar.is_float else f"sub {t} {constant(dtype, 0)}, {x[0]}"
    if op is Ops.NOT:
        return f"xor {t} {x[0]}, {constant(dtype, True if scalar.is_bool else -1)}"
    if op is Ops.RECIP:
        return f"fdiv {t} {constant(dtype, 1.0)}, {x[0]}"
    if op is Ops.CAST:
        return cast(dtype, node.dtype, x[0], call)
    if op is Ops.BITCAST:
        return f"bitcast {t} {x[0]} to {type_name(node.dtype)}"
    if op is Ops.ABS and scalar.is_int:
        return call(f"llvm.abs.{suffix(dtype)}", dtype, [(dtype, x[0]), (bool_, "false")])
    intrinsic = _intrinsic(op, scalar)
    if intrinsic is not None:
        return call(f"llvm.{intrinsic}.{suffix(dtype)}", dtype, [(dtype, o) for o in x])
    raise CompileError(f"{op.name} on {dtype} should have been decomposed", place=place(node))


def plain_name(node: UOp) -> str | None:
    """LLVM's instruction for an op on two operands of its own type; None if there is none."""
    return _SIMPLE.get((node.op, _family(node.src[-1].dtype.scalar)))


def _family(scalar: DType) -> str:
    if scalar.is_float:
        return "float"
    return "bool" if scalar.is_bool else "uint" if scalar.is_unsigned else "int"


def _table() -> dict[tuple[Op, str], str]:
    floats = {Ops.ADD: "fadd", Ops.SUB: "fsub", Ops.MUL: "fmul", Ops.FDIV: "fdiv"}
    both = {
        Ops.ADD: "add", Ops.SUB: "sub", Ops.MUL: "mul", Ops.AND: "and", Ops.OR: "or", Ops.XOR: "xor",
        Ops.SHL: "shl",
    }  # fmt: skip
    bools = {
        Ops.ADD: "or",
        Ops.MUL: "and",
        Ops.MAX: "or",
        Ops.MIN: "and",
        Ops.AND: "and",
        Ops.OR: "or",
        Ops.XOR: "xor",
    }
    table = {(op, "float"): name for op, name in floats.items()}
    table |= {(op, family): name for op, name in both.items() for family in ("int", "uint")}
    table |= {(op, "bool"): name for op, name in bools.items()}
    table |= {(Ops.SHR, "int"): "ashr", (Ops.SHR, "uint"): "lshr", (Ops.CDIV, "int"): "sdiv"}
    table |= {(Ops.CDIV, "uint"): "udiv", (Ops.CMOD, "int"): "srem", (Ops.CMOD, "uint"): "urem"}
    return table


_SIMPLE = _table()
_INTRINSICS = {
    Ops.SQRT: "sqrt", Ops.ABS: "fabs", Ops.TRUNC: "trunc", Ops.FLOOR: "floor", Ops.CEIL: "ceil",
    Ops.RINT: "roundeven", Ops.MULACC: "fma", Ops.MAX: "maximum", Ops.MIN: "minimum",
}  # fmt: skip


def _intrinsic(op: Op, scalar: DType) -> str | None:
    if scalar.is_float:
        return _INTRINSICS.get(op)
    sign = "u" if scalar.is_unsigned else "s"
    return {Ops.MAX: f"{sign}max", Ops.MIN: f"{sign}min", Ops.POPCOUNT: "ctpop"}.get(op)


def _compare(op: Op, scalar: DType) -> str:
    if scalar.is_float:
        return {Ops.CMPLT: "fcmp olt", Ops.CMPNE: "fcmp une", Ops.CMPEQ: "fcmp oeq"}[op]
    less = "icmp slt" if scalar.is_int and not scalar.is_unsigned else "icmp ult"
    return {Ops.CMPLT: less, Ops.CMPNE: "icmp ne", Ops.CMPEQ: "icmp eq"}[op]


def cast(source: DType, target: DType, x: str, call: Call) -> str:
    """A conversion by value. Float to integer saturates and takes NaN to 0."""
    s, t = source.scalar, target.scalar
    here, there = type_name(source), type_name(target)
    if t.is_bool:
        test = "fcmp une" if s.is_float else "icmp ne"
        return f"{test} {here} {x}, {constant(source, 0.0 if s.is_float else 0)}"
    if s.is_float and t.is_float:
        return f"{'fpext' if t.bits > s.bits else 'fptrunc'} {here} {x} to {there}"
    if s.is_float:
        sign = "u" if t.is_unsigned else "s"
        return call(f"llvm.fpto{sign}i.sat.{suffix(target)}.{suffix(source)}", target, [(source, x)])
    signed = not (s.is_bool or s.is_unsigned)
    if t.is_float:
        return f"{'si' if signed else 'ui'}tofp {here} {x} to {there}"
    if t.bits == (1 if s.is_bool else s.bits):
        return f"bitcast {here} {x} to {there}"
    if t.bits < s.bits:
        return f"trunc {here} {x} to {there}"
    return f"{'sext' if signed else 'zext'} {here} {x} to {there}"
