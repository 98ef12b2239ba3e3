"""Vectors whose lanes come from several others, in LLVM IR: as few shuffles of whole vectors as there can be.

Parts that are put together one after the other have odd lengths on the way, such as 7 and 15 lanes, and LLVM
takes those apart again into single elements. Here lanes of the first two sources are put in their places at
once, and those of each further source are put over what is there, which x86 does in one instruction.
"""

from __future__ import annotations

from morok.codegen.vector.vectors import turned_rows
from morok.ir.node import UOp
from morok.ir.ops import Ops
from morok.render.llvm.types import listed, type_name
from morok.render.llvm.writer import Writer

_MOST = 4  # sources


def picked(writer: Writer, node: UOp) -> str | None:
    """The name of a CAT; None where its parts are no lanes of a few vectors as long as it is."""
    lanes = [pair for part in node.src for pair in _lanes(writer, part)]
    whole = node.dtype.lanes
    vectors = list(dict.fromkeys(source for source, _ in lanes if source.dtype.lanes > 1))
    singles = [(i, source) for i, (source, _) in enumerate(lanes) if source.dtype.lanes == 1]
    if not 1 < len(vectors) <= _MOST or any(v.dtype.lanes != whole for v in vectors) or len(singles) > 2:
        return None
    t = type_name(node.dtype)
    name, there = writer.name_of(vectors[0]), {vectors[0]}
    picks = [str(lane) if source is vectors[0] else "poison" for source, lane in lanes]
    for vector in vectors[1:]:
        for i, (source, lane) in enumerate(lanes):
            if source is vector:
                picks[i] = str(whole + lane)
            elif source in there and len(there) > 1:
                picks[i] = str(i)
        there.add(vector)
        name = writer.let(
            f"shufflevector {t} {name}, {t} {writer.name_of(vector)}, <{whole} x i32> {listed('i32', picks)}"
        )
    for i, source in singles:
        scalar = type_name(node.dtype.scalar)
        name = writer.let(f"insertelement {t} {name}, {scalar} {writer.name_of(source)}, i32 {i}")
    return name


def _lanes(writer: Writer, part: UOp) -> list[tuple[UOp, int]]:
    """Where each lane of a part is taken from."""
    source = part.src[0] if part.op is Ops.GEP else part
    if part.op is not Ops.GEP or source not in writer.names or turned_rows(part) is not None:
        return [(part, i) for i in range(part.dtype.lanes)]
    return [(source, lane) for lane in part.arg]
