"""DOT4 in LLVM IR: the instructions that multiply bytes and add up four products, `sdot` and `vpdpbusd`.

Whoever adds the result to a sum gets one instruction for both: LLVM joins the addition with a product that is
added to zero.
"""

from __future__ import annotations

import re

from morok.errors import CompileError
from morok.ir.node import UOp
from morok.ir.provenance import place
from morok.render.llvm_writer import Writer


def dot4(writer: Writer, node: UOp) -> str:
    """Vectors of the registers' widths; fewer lanes are padded with zeros."""
    lanes = node.dtype.lanes
    arch = writer.arch
    widths = {"aarch64": (2, 4), "arm64": (2, 4), "x86_64": (4, 8, 16)}.get(arch)
    if widths is None or lanes > widths[-1]:
        raise CompileError(
            f"DOT4 of {lanes} lanes on {arch!r} should have been decomposed", place=place(node)
        )
    width = next(w for w in widths if w >= lanes)
    x, y = (_widened(writer, writer.name_of(s), lanes, width) for s in node.src)
    make = _sdot if arch in ("aarch64", "arm64") else _vpdpbusd
    found = make(writer, x, y, width)
    if width == lanes:
        return found
    whole = writer.let(found)
    if lanes == 1:
        return f"extractelement <{width} x i32> {whole}, i32 0"
    picked = ", ".join(f"i32 {i}" for i in range(lanes))
    return f"shufflevector <{width} x i32> {whole}, <{width} x i32> poison, <{lanes} x i32> <{picked}>"


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


def _vpdpbusd(writer: Writer, x: str, y: str, width: int) -> str:
    """Bytes without sign by signed ones: (x + 128) · y - 128 · y; x + 128 is x with its top bits turned."""
    words, raw = f"<{width} x i32>", f"<{4 * width} x i8>"
    name = f"llvm.x86.avx512.vpdpbusd.{32 * width}"
    writer.declared[f"declare {words} @{name}({words}, {raw}, {raw})"] = None

    def splat(value: int) -> str:
        return "<" + ", ".join([f"i8 {value}"] * (4 * width)) + ">"

    a, b = (_bytes(writer, v, width) for v in (x, y))
    shifted = writer.let(f"xor {raw} {a}, {splat(-128)}")
    sums = writer.let(f"call {words} @{name}({words} zeroinitializer, {raw} {splat(-128)}, {raw} {b})")
    whole = writer.let(f"call {words} @{name}({words} zeroinitializer, {raw} {shifted}, {raw} {b})")
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
