"""The largest of several vectors on x86 with AVX-512: an instruction for each, a comparison for two.

`vrangeps` gives the larger one and knows the order of zeros, but passes a NaN over. So of a tree of maxima
two things are written: the largest of all that are no NaN, and a mask of the lanes where nothing was one, in
which a comparison looks at two leaves at once. Whoever asks for a value of the tree gets a choice between the
two. Of nodes in the middle nobody does, and LLVM drops what is not used.

    max(max(max(a, b), c), d)   →   ord(a, b) & ord(c, d) ? range(range(range(a, b), c), d) : NaN
"""

from __future__ import annotations

import re

from morok.ir.node import UOp
from morok.ir.ops import Op, Ops
from morok.render.llvm.types import type_name
from morok.render.llvm.writer import Many, Writer

RANGED = {32: ("ps", "i16"), 64: ("pd", "i8")}  # by the bits of an element
_ORDER: dict[Op, int] = {Ops.MAX: 5, Ops.MIN: 4}  # which of both, with the sign that the comparison gives
_MASKS = {"s": "i16", "d": "i8"}
_NAN = "0x7FF8000000000000"  # of either type, as LLVM writes them


def extreme_of_many(writer: Writer, node: UOp) -> str:
    """The text of the last instruction of a node, and in the writer what others may go on with."""
    t, lanes, bits = type_name(node.dtype), node.dtype.lanes, node.dtype.scalar.bits
    parts = [_part(writer, node.op, s) for s in node.src]
    kind, whole = RANGED[bits]
    name = f"llvm.x86.avx512.mask.range.{kind}.512"
    writer.declared[f"declare {t} @{name}({t}, {t}, i32, {t}, {whole}, i32)"] = None
    a, b = (part.value for part in parts)
    value = writer.let(
        f"call {t} @{name}({t} {a}, {t} {b}, i32 {_ORDER[node.op]}, {t} zeroinitializer, {whole} -1, i32 4)"
    )
    mask = f"<{lanes} x i1>"
    masks = [part.ordered for part in parts if part.ordered]
    alone = [part.alone for part in parts if part.alone]
    if len(alone) == 2:
        masks.append(writer.let(f"fcmp ord {t} {alone[0]}, {alone[1]}"))
        alone = []
    ordered = masks[0] if masks else ""
    for other in masks[1:]:
        ordered = writer.let(f"and {mask} {other}, {ordered}")
    writer.extremes[node] = Many(value, ordered, alone[0] if alone else "")
    if alone:
        last = writer.let(f"fcmp ord {t} {alone[0]}, {alone[0]}")
        ordered = writer.let(f"and {mask} {last}, {ordered}")
    nan = ", ".join([f"{type_name(node.dtype.scalar)} {_NAN}"] * lanes)
    return f"select {mask} {ordered}, {t} {value}, {t} <{nan}>"


def _part(writer: Writer, op: Op, node: UOp) -> Many:
    if node.op is op and node in writer.extremes:
        return writer.extremes[node]
    name = writer.name_of(node)
    return Many(name, "", name)


_DECLARED = re.compile(
    r"^declare (<\d+ x \w+>) @llvm\.(x86\.avx512\.mask\.range\.p(\w)\.512)\(.*i32\)$", re.M
)


def portable_extremes(text: str) -> str:
    """The text of a kernel with these instructions as functions of its own: it runs on any processor."""
    made = []
    for t, name, kind in _DECLARED.findall(text):
        ending = {"s": "v16f32", "d": "v8f64"}[kind]
        largest, least = (f"llvm.{word}imum.{ending}" for word in ("max", "min"))
        missing = [op for op in (largest, least) if f"declare {t} @{op}(" not in text]
        made += [f"declare {t} @{op}({t}, {t})" for op in missing]
        given = f"{t} %x, {t} %y, i32 %order, {t} %rest, {_MASKS[kind]} %mask, i32 %rounding"
        made += [
            f"define internal {t} @any.{name}({given}) {{",
            f"  %a = call {t} @{largest}({t} %x, {t} %y)",
            f"  %b = call {t} @{least}({t} %x, {t} %y)",
            f"  %which = icmp eq i32 %order, {_ORDER[Ops.MAX]}",
            f"  %c = select i1 %which, {t} %a, {t} %b",
            f"  ret {t} %c",
            "}",
        ]
        text = text.replace(f"@llvm.{name}(", f"@any.{name}(")
    text = re.sub(r"^declare .*@any\.x86\.avx512\.mask\.range.*$", "", text, flags=re.M)
    return "\n".join([text, *made, ""]) if made else text
