"""Vectors of places, written as wide as they are asked for.

Places of many lanes, 48 columns of a tile, are compared in registers, a few lanes at a time: each comparison
takes its lanes out of a vector that no register holds. LLVM would cut such a vector up itself, once for what
computes it and once more for who asks, which was a fifth of its time for a convolution. Here the list says
already what is asked for, so whatever is computed on the way is written in those pieces, and nobody has to
take any lanes out.
"""

from __future__ import annotations

from collections.abc import Sequence

from morok.ir.node import UOp
from morok.ir.ops import Ops
from morok.render.llvm.list import is_splat
from morok.render.llvm.ops import plain_name
from morok.render.llvm.types import constant, type_name
from morok.render.llvm.writer import Writer

_WIDEST = 64  # bytes of the widest register
_NUMBERS = (Ops.CONST, Ops.VCONST)


def written_in_pieces(instructions: Sequence[UOp]) -> dict[UOp, int]:
    """Vectors that no register holds, of which only runs of lanes are asked for, and the runs' length."""
    asked: dict[UOp, int] = {}  # 0: nobody may cut it
    found: dict[UOp, int] = {}
    wide = {node for node in instructions if node.dtype.lanes > 1 and _is_wide(node)}
    for node in reversed(instructions) if wide else ():
        width = asked.get(node, 0) if node in wide else 0
        if width and _is_cut(node, width):
            found[node] = width
        else:
            width = 0
        if wide.isdisjoint(node.src):
            continue
        for s in node.src:
            if s in wide:
                wanted = width or _run(node)
                asked[s] = wanted if asked.setdefault(s, wanted) == wanted else 0
    return found


def _is_wide(node: UOp) -> bool:
    dtype = node.dtype
    return dtype.is_bounded_int and dtype.itemsize > _WIDEST and node.op not in _NUMBERS


def _run(node: UOp) -> int:
    """The length of the run of neighbours that a GEP takes, if it begins where such runs do."""
    lanes: tuple[int, ...] = node.arg if node.op is Ops.GEP else ()
    count = len(lanes)
    if count < 2 or count & (count - 1):
        return 0
    first = min(lanes)
    return count if first % count == 0 and lanes == tuple(range(first, first + count)) else 0


def _is_cut(node: UOp, width: int) -> bool:
    """Whether the pieces of a vector can be written by themselves."""
    if node.dtype.lanes % width:
        return False
    if node.op is Ops.VECTORIZE:
        return is_splat(node) and node.src[0].op is not Ops.GEP  # a lane may have no name of its own
    if node.op is Ops.GEP:  # each piece of which lies in one piece of its source
        starts = range(0, len(node.arg), width)
        return all(len({lane // width for lane in node.arg[i : i + width]}) == 1 for i in starts)
    same = all(s.dtype == node.dtype for s in node.src)
    return node.op.is_alu and same and plain_name(node) is not None


class Pieces:
    """The pieces of the vectors of one text, by name."""

    def __init__(self, instructions: Sequence[UOp]) -> None:
        self.cut = written_in_pieces(instructions)
        self.names: dict[UOp, list[str]] = {}

    def write(self, writer: Writer, node: UOp) -> None:
        """The pieces of a vector that is cut."""
        width, lanes = self.cut[node], node.dtype.lanes
        starts = range(0, lanes, width)
        if node.op is Ops.VECTORIZE:
            self.names[node] = [
                writer.splat(writer.name_of(node.src[0]), node.dtype.scalar.vec(width))
            ] * len(starts)
            return
        t = type_name(node.dtype.scalar.vec(width))
        if node.op is Ops.GEP:
            source = node.src[0]
            self.names[node] = [self._lanes(writer, source, node.arg[i : i + width]) for i in starts]
            return
        name = plain_name(node)
        known: dict[tuple[str, ...], str] = {}  # equal pieces are computed once
        made = []
        for i in starts:
            operands = tuple([self._lanes(writer, s, tuple(range(i, i + width))) for s in node.src])
            if operands not in known:
                known[operands] = writer.let(f"{name} {t} {', '.join(operands)}")
            made.append(known[operands])
        self.names[node] = made

    def taken(self, node: UOp) -> str | None:
        """What a GEP takes out of a vector that is cut: one of its pieces. None if it is not cut."""
        pieces = self.names.get(node.src[0])
        return None if pieces is None else pieces[node.arg[0] // self.cut[node.src[0]]]

    def _lanes(self, writer: Writer, source: UOp, lanes: tuple[int, ...]) -> str:
        """Some lanes of a vector, which may be cut, of lanes that lie in one of its pieces then."""
        if source.op is Ops.CONST:
            return constant(source.dtype, source.arg)
        if source.op is Ops.VCONST:
            return constant(source.dtype.scalar.vec(len(lanes)), tuple([source.arg[lane] for lane in lanes]))
        found = self.names.get(source)
        if found is None:
            return writer.shuffle(type_name(source.dtype), writer.name_of(source), "poison", lanes)
        width = self.cut[source]
        name, inner = found[lanes[0] // width], [lane % width for lane in lanes]
        if inner == list(range(width)):
            return name
        return writer.shuffle(type_name(source.dtype.scalar.vec(width)), name, "poison", inner)
