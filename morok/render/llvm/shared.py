"""The loop that workers share: how many pieces it is handed out in, and its size as a function of arguments.

A worker calls the kernel once for every piece of the loop that it takes, and what lies before the loop, such
as the sum that all elements are divided by, is computed in each of these calls. Where that is nothing, every
iteration may be a piece of its own: workers that are done take what others have left. Where it is not, there
are as few pieces as keep its share small, one for each worker at least.

A loop may have phases: all of its turns in one are done before one of the next begins.
"""

from __future__ import annotations

from collections.abc import Sequence

from morok.errors import CompileError
from morok.ir.bounds import vmax
from morok.ir.node import UOp
from morok.ir.ops import AxisKind, Ops
from morok.ir.provenance import place

MOST_PIECES = 8  # of a worker: more are not taken one by one
PHASES = 40  # the bit of an extent from which on it says how many phases there are, of as many pieces each
SHARE = 1 / 16  # of a worker's time that may be spent on what is computed again


def before_and_inside(nodes: Sequence[UOp]) -> tuple[float, float]:
    """How many instructions run before the shared loop, and inside of it for all iterations together."""
    before = inside = 0.0
    times = [1.0]
    shared = -1  # the depth of the shared loop, once it is open
    for node in nodes:
        if node.op is Ops.RANGE:
            times.append(times[-1] * (int(vmax(node)) + 1))
            if node.arg[1] is AxisKind.THREAD and shared < 0:
                shared = len(times) - 1
        elif node.op is Ops.END:
            if len(times) - 1 == shared:
                break
            times.pop()
        elif shared >= 0:
            inside += times[-1]
        elif node.op not in (Ops.CONST, Ops.VCONST, Ops.DEFINE_GLOBAL, Ops.DEFINE_VAR, Ops.DEFINE_LOCAL):
            before += times[-1]
    return before, inside


def pieces_of(nodes: Sequence[UOp], cores: int) -> int:
    """Pieces that the shared loop is handed out in; 0: as many as it has iterations."""
    before, inside = before_and_inside(nodes)
    each = 1 + inside / max(1, cores) * SHARE / max(before, 1.0)
    return 0 if cores < 2 or each >= MOST_PIECES else cores * int(each)


def phases_of(nodes: Sequence[UOp]) -> int:
    """How many phases the shared loop has; 1: none has to wait."""
    found = [n.src[0].arg for n in nodes if n.op is Ops.BARRIER and n.src and n.src[0].op is Ops.CONST]
    return found[0] if found else 1


def count_pieces(size: str, pieces: int) -> list[str]:
    """`%pieces`: no more than there are iterations, one at least."""
    return [
        f"  %few = icmp ult i64 {size}, {pieces}",
        f"  %fewer = select i1 %few, i64 {size}, i64 {pieces}",
        "  %none = icmp eq i64 %fewer, 0",
        "  %pieces = select i1 %none, i64 1, i64 %fewer",
    ]


def bounds_of_pieces(size: str) -> list[str]:
    """Where the iterations of pieces `lo` up to `hi` begin and end."""
    lines = []
    for name in ("lo", "hi"):
        lines.append(f"  %{name}.m = mul i64 %{name}, {size}")
        lines.append(f"  %{name}.i = udiv i64 %{name}.m, %pieces")
    return lines


def size_of(thread: UOp | None) -> str:
    """The size of the shared axis: a number, or the name of a variable's value."""
    if thread is None:
        return "1"
    end = thread.src[0]
    if end.op is Ops.CONST:
        return str(end.arg)
    if end.op is not Ops.DEFINE_VAR:
        raise CompileError("a shared axis needs a size that is constant or a variable", place=place(end))
    return f"%v.{end.arg[0]}"


def extent_text(
    name: str, size: str, pieces: int, variables: Sequence[str], count: int, nodes: Sequence[UOp]
) -> list[str]:
    """In how many pieces the shared axis is handed out, as a function of the arguments."""
    phases = phases_of(nodes)
    head = [f"define i64 @{name}.extent(ptr %args) #2 {{", "entry:"]
    if phases > 1:
        return [*head, f"  ret i64 {phases << PHASES | int(size) // phases}", "}"]
    if size.isdigit():
        return [*head, f"  ret i64 {pieces or size}", "}"]
    i = count + variables.index(size.removeprefix("%v."))
    head += [f"  %p = getelementptr i64, ptr %args, i64 {i}", f"  {size} = load i64, ptr %p, align 8"]
    if not pieces:
        return [*head, f"  ret i64 {size}", "}"]
    return [*head, *count_pieces(size, pieces), "  ret i64 %pieces", "}"]
