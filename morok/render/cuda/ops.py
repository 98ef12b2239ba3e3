"""Arithmetic in CUDA C: from an op and the texts of its operands to an expression.

The result is what the IR says, to the bit. Kernels are compiled without contraction, so `a * b + c` has two
roundings; a fused product is written as one. Integers that may wrap are computed without sign, where wrapping
is defined; where the bounds say that nothing can wrap the sign is kept, which lets the compiler fold offsets
into addresses. What C leaves open (casts out of range, the larger of NaN and 1) is a small function around a
PTX instruction; `helpers` has those that a kernel needs.
"""

from __future__ import annotations

from morok.dtype import DType, bfloat16, float16, float32, float64, int64, uint64
from morok.errors import CompileError
from morok.ir.bounds import bounds
from morok.ir.build import APPROXIMATE
from morok.ir.node import UOp
from morok.ir.ops import Op, Ops
from morok.ir.provenance import place
from morok.render.cuda.types import type_name, unsigned_name

_SIGNS: dict[Op, str] = {
    Ops.ADD: "+", Ops.SUB: "-", Ops.MUL: "*", Ops.AND: "&", Ops.OR: "|", Ops.XOR: "^", Ops.SHL: "<<",
    Ops.SHR: ">>", Ops.CDIV: "/", Ops.CMOD: "%", Ops.CMPLT: "<", Ops.CMPNE: "!=", Ops.CMPEQ: "==",
}  # fmt: skip
_BOOLS: dict[Op, str] = {
    Ops.ADD: "|", Ops.MAX: "|", Ops.OR: "|", Ops.MUL: "&", Ops.MIN: "&", Ops.AND: "&", Ops.XOR: "^",
    Ops.CMPNE: "^",
}  # fmt: skip
_WRAPS = frozenset((Ops.ADD, Ops.SUB, Ops.MUL, Ops.SHL))
_FUNCTIONS: dict[Op, tuple[str, str]] = {  # of float32 and float64
    Ops.SQRT: ("__fsqrt_rn", "__dsqrt_rn"),
    Ops.FDIV: ("__fdiv_rn", "__ddiv_rn"),
    Ops.MULACC: ("__fmaf_rn", "__fma_rn"),
    Ops.ABS: ("fabsf", "fabs"),
    Ops.FMOD: ("fmodf", "fmod"),
    Ops.TRUNC: ("truncf", "trunc"),
    Ops.FLOOR: ("floorf", "floor"),
    Ops.CEIL: ("ceilf", "ceil"),
    Ops.RINT: ("rintf", "rint"),
    Ops.MAX: ("max_f32", "max_f64"),
    Ops.MIN: ("min_f32", "min_f64"),
}


def _asm(result: str, name: str, parameters: str, kind: str, text: str, operands: str) -> str:
    return (
        f"__device__ __forceinline__ {result} {name}({parameters}) {{ "
        f'{result} y; asm("{text}" : "{kind}"(y) : {operands}); return y; }}'
    )


def _converters() -> dict[str, str]:
    """Float to integer: toward zero, saturating, NaN to 0."""
    found = {}
    for short, name, letter in (("f32", "float", "f"), ("f64", "double", "d")):
        for kind, result, register in (
            ("s32", "int", "=r"), ("u32", "unsigned", "=r"),
            ("s64", "long long", "=l"), ("u64", "unsigned long long", "=l"),
        ):  # fmt: skip
            key = f"{kind}_{short}"
            found[key] = (
                f"__device__ __forceinline__ {result} {key}({name} x) {{ {result} y; "
                f'asm("cvt.rzi.{kind}.{short} %0, %1;" : "{register}"(y) : "{letter}"(x)); '
                f"return x == x ? y : 0; }}"
            )
    return found


_APPROXIMATE: dict[Op, str] = {Ops.EXP2: "approximate_exp2", Ops.RECIP: "approximate_recip"}
HELPERS: dict[str, str] = {
    "approximate_exp2": _asm(
        "float", "approximate_exp2", "float x", "=f", "ex2.approx.ftz.f32 %0, %1;", '"f"(x)'
    ),
    "approximate_recip": _asm(
        "float", "approximate_recip", "float x", "=f", "rcp.approx.ftz.f32 %0, %1;", '"f"(x)'
    ),
    # the larger and the smaller: NaN wins, -0 < +0
    "max_f32": _asm(
        "float", "max_f32", "float a, float b", "=f", "max.NaN.f32 %0, %1, %2;", '"f"(a), "f"(b)'
    ),
    "min_f32": _asm(
        "float", "min_f32", "float a, float b", "=f", "min.NaN.f32 %0, %1, %2;", '"f"(a), "f"(b)'
    ),
    "max_f64": (
        "__device__ __forceinline__ double max_f64(double a, double b) { double y; "
        'asm("max.f64 %0, %1, %2;" : "=d"(y) : "d"(a), "d"(b)); '
        "return a != a || b != b ? a + b : a == b && a == 0 ? a + b : y; }"
    ),
    "min_f64": (
        "__device__ __forceinline__ double min_f64(double a, double b) { double y; "
        'asm("min.f64 %0, %1, %2;" : "=d"(y) : "d"(a), "d"(b)); '
        "return a != a || b != b ? a + b : a == b && a == 0 ? -(-a - b) : y; }"
    ),
    # The lower half of a word. The assembler takes neg.s16 and abs.s16 for instructions of 32 bits and does
    # not cut their results: -(-32768) is then 32768 for whoever compares or widens it. What the compiler
    # cannot look into it does not make narrower, so neither instruction comes about.
    "low16": _asm("unsigned short", "low16", "unsigned x", "=h", "cvt.u16.u32 %0, %1;", '"r"(x)'),
    # the same number in another register: no number of multiprocessors has a first bit, which the compiler
    # does not know
    "copied": (
        "__device__ __forceinline__ float copied(float x) { unsigned n; "
        'asm("mov.u32 %0, %%nsmid;" : "=r"(n)); '
        "return __uint_as_float(__float_as_uint(x) ^ (n >> 31)); }"
    ),
    # half precision as its bits
    "f32_f16": _asm("float", "f32_f16", "unsigned short h", "=f", "cvt.f32.f16 %0, %1;", '"h"(h)'),
    "f16_f32": _asm("unsigned short", "f16_f32", "float x", "=h", "cvt.rn.f16.f32 %0, %1;", '"f"(x)'),
    "f32_bf16": (
        "__device__ __forceinline__ float f32_bf16(unsigned short h) "
        "{ return __uint_as_float((unsigned)h << 16); }"
    ),
    "bf16_f32": _asm("unsigned short", "bf16_f32", "float x", "=h", "cvt.rn.bf16.f32 %0, %1;", '"f"(x)'),
    # two at once, the first in the lower half of a word
    "f16x2_f32": _asm(
        "unsigned", "f16x2_f32", "float a, float b", "=r", "cvt.rn.f16x2.f32 %0, %2, %1;", '"f"(a), "f"(b)'
    ),
    "bf16x2_f32": _asm(
        "unsigned", "bf16x2_f32", "float a, float b", "=r", "cvt.rn.bf16x2.f32 %0, %2, %1;", '"f"(a), "f"(b)'
    ),
    **_converters(),
}


class Arithmetic:
    """Expressions, and the helpers that they call."""

    def __init__(self) -> None:
        self.helpers: dict[str, None] = {}
        self.halves: dict[str, tuple[str, str]] = {}  # names of halves: how pairs are made, and of what

    def helper(self, name: str) -> str:
        if name in HELPERS:
            self.helpers[name] = None
        return name

    def rounded(self, node: UOp, names: list[str], given: list[str]) -> None:
        """Remembers what was rounded to half precision: two neighbours in a word are rounded together."""
        target = node.dtype.scalar
        if node.op is Ops.CAST and target in (float16, bfloat16):
            kind = "f16x2_f32" if target is float16 else "bf16x2_f32"
            self.halves |= {name: (kind, x) for name, x in zip(names, given, strict=True)}

    def word(self, lanes: list[str]) -> str | None:
        """Two lanes of half precision as a word, where both have just been rounded."""
        found = [self.halves[x] for x in lanes if x in self.halves]
        if len(lanes) != 2 or len(found) != 2 or found[0][0] != found[1][0]:
            return None
        return f"{self.helper(found[0][0])}({found[0][1]}, {found[1][1]})"

    def text(self, node: UOp, x: list[str]) -> str:
        """The op of `node` on operands with these texts, in one lane."""
        op, scalar = node.op, node.src[-1].dtype.scalar
        if op is Ops.WHERE:
            return f"{x[0]} ? {x[1]} : {x[2]}"
        if op is Ops.CAST:
            return self.cast(scalar, node.dtype.scalar, x[0], node)
        if op is Ops.BITCAST:
            return bitcast(scalar, node.dtype.scalar, x[0])
        if scalar.is_float:
            return self.floats(node, scalar, x)
        return bools(node, x) if scalar.is_bool else self.integers(node, scalar, x)

    def floats(self, node: UOp, scalar: DType, x: list[str]) -> str:
        op = node.op
        if scalar not in (float32, float64):
            raise CompileError(f"{op.name} on {scalar} should have been widened", place=place(node))
        if op is Ops.NEG:
            return f"-{x[0]}"
        if op in _FUNCTIONS:
            name = self.helper(_FUNCTIONS[op][scalar is float64])
            return f"{name}({', '.join(x)})"
        if op in (Ops.ADD, Ops.SUB, Ops.MUL) or op.is_compare:
            return f"{x[0]} {_SIGNS[op]} {x[1]}"
        if node.arg == APPROXIMATE:
            return f"{self.helper(_APPROXIMATE[op])}({x[0]})"
        if op is Ops.RECIP:
            one = "__frcp_rn" if scalar is float32 else "__drcp_rn"
            return f"{one}({x[0]})"
        raise CompileError(f"{op.name} on {scalar} should have been decomposed", place=place(node))

    def integers(self, node: UOp, scalar: DType, x: list[str]) -> str:
        op, name, plain = node.op, type_name(scalar), unsigned_name(scalar)
        if op is Ops.NEG:
            return self.cut(scalar, f"0u - (unsigned){x[0]}" if scalar.bits < 32 else f"0 - ({plain}){x[0]}")
        if op is Ops.NOT:
            return f"({name})~{x[0]}"
        if op is Ops.ABS:
            size = f"(unsigned){x[0]}" if scalar.bits < 32 else f"({plain}){x[0]}"
            return self.cut(scalar, f"{x[0]} < 0 ? 0 - {size} : {size}")
        if op in (Ops.MAX, Ops.MIN):
            return f"{x[0]} {'>' if op is Ops.MAX else '<'} {x[1]} ? {x[0]} : {x[1]}"
        if op is Ops.POPCOUNT:
            call = "__popcll" if scalar.bits == 64 else "__popc"
            return f"({name}){call}(({plain}){x[0]})"
        if op is Ops.MULHI:
            return mulhi(scalar, x)
        if op is Ops.DOT4:
            return f"__dp4a({x[0]}, {x[1]}, 0)"
        if op is Ops.MULACC:
            word = "unsigned" if scalar.bits < 32 else plain  # two of 16 bits may overflow C's int
            return self.cut(scalar, f"({word}){x[0]} * ({word}){x[1]} + ({word}){x[2]}")
        if op.is_compare:
            return f"{x[0]} {_SIGNS[op]} {x[1]}"
        if op not in _SIGNS:
            raise CompileError(f"{op.name} on {scalar} should have been decomposed", place=place(node))
        if scalar.bits < 32:  # C computes these as int, where only a product of 16 bits can overflow
            if op in _WRAPS:
                return self.cut(scalar, f"(unsigned){x[0]} {_SIGNS[op]} (unsigned){x[1]}")
            return f"({name})({x[0]} {_SIGNS[op]} {x[1]})"
        if op in _WRAPS and not scalar.is_unsigned and may_wrap(node):
            return f"({name})(({plain}){x[0]} {_SIGNS[op]} ({plain}){x[1]})"
        return f"{x[0]} {_SIGNS[op]} {x[1]}"

    def cut(self, scalar: DType, x: str) -> str:
        """An integer of the machine's width as one of its own, by dropping the bits above."""
        if scalar.bits == 16:
            return f"({type_name(scalar)}){self.helper('low16')}({x})"
        return f"({type_name(scalar)})({x})"

    def cast(self, source: DType, target: DType, x: str, node: UOp) -> str:
        """A conversion by value."""
        if target.is_bool:
            return f"{x} != 0" if not source.is_bool else x
        if source in (float16, bfloat16):
            if target is not float32:
                raise CompileError(
                    f"a cast from {source} to {target} should have been split", place=place(node)
                )
            return f"{self.helper('f32_f16' if source is float16 else 'f32_bf16')}({x})"
        if target in (float16, bfloat16):
            if source is not float32:
                raise CompileError(
                    f"a cast from {source} to {target} should have been split", place=place(node)
                )
            return f"{self.helper('f16_f32' if target is float16 else 'bf16_f32')}({x})"
        if source.is_float and target.is_int:
            return self.truncate(source, target, x)
        return f"({type_name(target)}){x}"

    def truncate(self, source: DType, target: DType, x: str) -> str:
        """Float to integer."""
        width = "64" if target in (int64, uint64) else "32"
        sign = "u" if target.is_unsigned and target.bits >= 32 else "s"
        call = self.helper(f"{sign}{width}_f{source.bits}")
        found = f"{call}({x})"
        if target.bits >= 32:
            return found
        low, high = (0, target.max) if target.is_unsigned else (target.min, target.max)
        return f"({type_name(target)})max({low}, min({high}, {found}))"


def bools(node: UOp, x: list[str]) -> str:
    op = node.op
    if op is Ops.NOT:
        return f"!{x[0]}"
    if op is Ops.CMPEQ:
        return f"{x[0]} == {x[1]}"
    if op is Ops.CMPLT:
        return f"!{x[0]} & {x[1]}"
    if op in _BOOLS:
        return f"{x[0]} {_BOOLS[op]} {x[1]}"
    raise CompileError(f"{op.name} on bool should have been decomposed", place=place(node))


def mulhi(scalar: DType, x: list[str]) -> str:
    """The upper half of a product."""
    name = type_name(scalar)
    sign = "u" if scalar.is_unsigned else ""
    if scalar.bits == 64:
        return f"__{sign}mul64hi({x[0]}, {x[1]})"
    if scalar.bits == 32:
        return f"__{sign}mulhi({x[0]}, {x[1]})"
    wide = "unsigned" if scalar.is_unsigned else "int"
    return f"({name})((({wide}){x[0]} * ({wide}){x[1]}) >> {scalar.bits})"


def bitcast(source: DType, target: DType, x: str) -> str:
    """The same bits as another type."""
    if source.is_float and target is float32:
        return x if source is float32 else f"__uint_as_float({x})"
    if source is float32:
        call = "__float_as_uint" if target.is_unsigned else "__float_as_int"
        return f"{call}({x})"
    if source is float64:
        return x if target is float64 else f"({type_name(target)})__double_as_longlong({x})"
    if target is float32:
        return f"__uint_as_float((unsigned){x})"
    if target is float64:
        return f"__longlong_as_double((long long){x})"
    return f"({type_name(target)}){x}"


def may_wrap(node: UOp) -> bool:
    """Whether the result of a signed op may leave its type, as far as the bounds of the operands tell."""
    (a, b), (c, d) = bounds(node.src[0]), bounds(node.src[1])
    scalar = node.dtype.scalar
    if node.op is Ops.ADD:
        low, high = a + c, b + d
    elif node.op is Ops.SUB:
        low, high = a - d, b - c
    elif node.op is Ops.MUL:
        corners = (a * c, a * d, b * c, b * d)
        low, high = min(corners), max(corners)
    else:
        if a < 0 or c < 0 or d >= scalar.bits:
            return True
        low, high = 0, int(b) << int(d)
    return not (scalar.min <= low and high <= scalar.max)


def joined(op: Op, dtype: DType, place: str, value: str) -> str:
    """A value joined with what lies in memory. A look before spares most of the largest or smallest: what is
    there only ever comes closer to the end, so an old value is as good a reason to pass."""
    if op is Ops.ADD:  # bits of signed numbers add up as those of others
        name = unsigned_name(dtype)
        return f"atomicAdd(({name}*)({place}), ({name}){value})"
    sign, call = (">", "atomicMax") if op is Ops.MAX else ("<", "atomicMin")
    return f"if ({value} {sign} *({place})) {call}({place}, {value})"
