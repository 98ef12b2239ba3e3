"""DOT4 in LLVM IR: the instructions that multiply bytes and add up four products, `sdot` and `vpdpbusd`.

Whoever adds the result to a sum gets one instruction for both: for ARM LLVM joins the addition with a product
that is added to zero, for x86 the text does.
"""

from __future__ import annotations

import re

from morok.errors import CompileError
from morok.ir.node import UOp
from morok.ir.ops import Ops
from morok.ir.provenance import place
from morok.render.llvm.writer import Writer

_SIGNS = 0x80808080
_ALL = 0xFFFFFFFF
_WIDTHS = {"aarch64": (2, 4), "arm64": (2, 4), "x86_64": (4, 8, 16)}


def dot4(writer: Writer, node: UOp, total: str = "zeroinitializer") -> str:
    """Vectors of the registers' widths; fewer lanes are padded with zeros. What it is added to may come along
    where `_joins` says so."""
    lanes = node.dtype.lanes
    arch = writer.arch
    widths = _WIDTHS.get(arch)
    if widths is None or lanes > widths[-1]:
        raise CompileError(
            f"DOT4 of {lanes} lanes on {arch!r} should have been decomposed", place=place(node)
        )
    width = next(w for w in widths if w >= lanes)
    x, y = (_widened(writer, writer.name_of(s), lanes, width) for s in node.src)
    unsigned = [not may_have_bits(s) & _SIGNS for s in node.src]
    if arch != "x86_64":
        found = _sdot(writer, x, y, width)
    elif any(unsigned):
        found = _vpdpbusd(writer, total, *((x, y) if unsigned[0] else (y, x)), width)
    else:
        found = _with_signs(writer, total, x, y, width)
    if width == lanes:
        return found
    whole = writer.let(found)
    if lanes == 1:
        return f"extractelement <{width} x i32> {whole}, i32 0"
    picked = ", ".join(f"i32 {i}" for i in range(lanes))
    return f"shufflevector <{width} x i32> {whole}, <{width} x i32> poison, <{lanes} x i32> <{picked}>"


def sum_with_dot4(writer: Writer, node: UOp) -> str | None:
    """An addition of such a product as one instruction; None where there is none, or LLVM finds it itself."""
    found = next((s for s in node.src if _joins(writer.arch, s)), None)
    if found is None:
        return None
    return dot4(writer, found, writer.name_of(node.src[1] if node.src[0] is found else node.src[0]))


def _joins(arch: str, node: UOp) -> bool:
    """Whether the one instruction that a product is adds to any sum."""
    return node.op is Ops.DOT4 and arch == "x86_64" and node.dtype.lanes in _WIDTHS[arch]


def may_have_bits(node: UOp) -> int:
    """The bits that lanes of 32-bit words may have; all of them where nothing is known."""
    if node.op is Ops.CONST:
        return int(node.arg) & _ALL
    if node.op in (Ops.AND, Ops.OR):
        x, y = map(may_have_bits, node.src)
        return x & y if node.op is Ops.AND else x | y
    return _ALL


def _widened(writer: Writer, x: str, lanes: int, width: int) -> str:
    if lanes == width:
        return x
    if lanes == 1:
        return writer.let(f"insertelement <{width} x i32> zeroinitializer, i32 {x}, i32 0")
    picked = ", ".join(f"i32 {min(i, lanes)}" for i in range(width))
    t = f"<{lanes} x i32>"
    return writer.let(f"shufflevector {t} {x}, {t} zeroinitializer, <{width} x i32> <{picked}>")


def _bytes(writer: Writer, x: str, width: int) -> str:
    return writer.let(f"bitcast <{width} x i32> {x} to <{4 * width} x i8>")


def _sdot(writer: Writer, x: str, y: str, width: int) -> str:
    """Signed bytes by signed bytes."""
    words, raw = f"<{width} x i32>", f"<{4 * width} x i8>"
    name = f"llvm.aarch64.neon.sdot.v{width}i32.v{4 * width}i8"
    writer.declared[f"declare {words} @{name}({words}, {raw}, {raw})"] = None
    a, b = (_bytes(writer, v, width) for v in (x, y))
    return f"call {words} @{name}({words} zeroinitializer, {raw} {a}, {raw} {b})"


def _vpdpbusd(writer: Writer, total: str, x: str, y: str, width: int) -> str:
    """Bytes without sign, or whose top bits are zero, by signed ones."""
    words, raw = f"<{width} x i32>", f"<{4 * width} x i8>"
    name = f"llvm.x86.avx512.vpdpbusd.{32 * width}"
    writer.declared[f"declare {words} @{name}({words}, {raw}, {raw})"] = None
    a, b = (_bytes(writer, v, width) for v in (x, y))
    return f"call {words} @{name}({words} {total}, {raw} {a}, {raw} {b})"


def _with_signs(writer: Writer, total: str, x: str, y: str, width: int) -> str:
    """(x + 128) · y - 128 · y; x + 128 is x with its top bits turned. What is taken off is the same for all
    other x, so LLVM computes it once for them."""
    words, top = f"<{width} x i32>", "<" + ", ".join([f"i32 {_SIGNS - 2**32}"] * width) + ">"
    shifted = writer.let(f"xor {words} {x}, {top}")
    sums = writer.let(_vpdpbusd(writer, "zeroinitializer", top, y, width))
    whole = writer.let(_vpdpbusd(writer, total, shifted, y, width))
    return f"sub {words} {whole}, {sums}"


_DECLARED = re.compile(
    r"^declare <(\d+) x i32> @llvm\.((?:x86\.avx512\.vpdpbusd|aarch64\.neon\.sdot)[.\w]*)\(.*$", re.M
)


def portable(text: str) -> str:
    """The text of a kernel with these instructions as functions of its own: it runs on any processor."""
    found = _DECLARED.findall(text)
    text = _DECLARED.sub("", text)
    for _, name in found:
        text = text.replace(f"@llvm.{name}(", f"@any.{name}(")
    return "\n".join([text, *(_written_out(int(width), name) for width, name in found)])


def _written_out(width: int, name: str) -> str:
    words, raw, wide = f"<{width} x i32>", f"<{4 * width} x i8>", f"<{4 * width} x i32>"
    lines = [
        f"define internal {words} @any.{name}({words} %sum, {raw} %x, {raw} %y) {{",
        f"  %a = {'sext' if 'sdot' in name else 'zext'} {raw} %x to {wide}",
        f"  %b = sext {raw} %y to {wide}",
        f"  %p = mul {wide} %a, %b",
    ]
    total = "%sum"
    for i in range(4):
        picked = ", ".join(f"i32 {4 * lane + i}" for lane in range(width))
        lines.append(f"  %p{i} = shufflevector {wide} %p, {wide} poison, <{width} x i32> <{picked}>")
        lines.append(f"  %s{i} = add {words} {total}, %p{i}")
        total = f"%s{i}"
    return "\n".join([*lines, f"  ret {words} {total}", "}", ""])
