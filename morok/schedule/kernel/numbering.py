"""The last step of a kernel: ranges and buffers get the numbers that equal kernels share.

Ranges are numbered outer loops first: loops over outputs, then reductions in the order of a walk. Among the
loops over outputs, those that reductions depend on come first, so that a row's maximum is computed once per
row. Buffers are numbered outputs first, then in the order of a walk.
"""

from __future__ import annotations

from morok.dtype import PtrDType
from morok.ir.build import define_global
from morok.ir.infer import ranges
from morok.ir.node import UOp, make, toposort
from morok.ir.ops import AxisKind, Ops
from morok.ir.scan import scan_loops
from morok.rewrite.engine import substitute


def number_ranges(kernel: UOp, ctx: object = None) -> UOp:
    """Ranges numbered from 0, outer ones first."""
    order = toposort(kernel)
    loops = _ordered_loops(kernel, order)
    inner = [n for n in order if n.op is Ops.RANGE and n not in loops]
    inner.sort(key=lambda r: 0 if r.arg[1] is AxisKind.LOOP else 1)
    mapping = {
        r: make(Ops.RANGE, r.dtype, r.src, (number, r.arg[1]), r.origin)
        for number, r in enumerate((*loops, *inner))
    }
    if all(old is new for old, new in mapping.items()):
        return kernel
    # Two ranges may swap numbers; a substitution does not enter what it has put in.
    return _ends_in_order(substitute(kernel, mapping))


def _ordered_loops(kernel: UOp, order: list[UOp]) -> list[UOp]:
    """Loops over outputs, those first that more of the hoisted reductions depend on; ordered ones stay.

    Along ordered loops rows are put in place, which is outermost but for loops that have places of their own;
    or something runs, which is innermost.
    """
    loops: dict[UOp, int] = {}
    for effect in kernel.src:
        for r in effect.src[1:]:
            loops.setdefault(r, len(loops))
    hoisted = [alive for n in order if n.op is Ops.REDUCE and (alive := ranges(n)) and alive < loops.keys()]
    votes = {r: -sum(r in alive for alive in hoisted) for r in loops}
    ordered = [r for r in loops if r.arg[1] is AxisKind.ORDERED]
    free = [r for r in loops if r.arg[1] is not AxisKind.ORDERED]
    outer = sorted(free, key=lambda r: (votes[r], loops[r]))
    if scan_loops(order):
        return outer + ordered
    apart = {r for n in order if n.op is Ops.INDEX and not ranges(n).isdisjoint(ordered) for r in _placed(n)}
    return [r for r in outer if r in apart] + ordered + [r for r in outer if r not in apart]


def _placed(access: UOp) -> frozenset[UOp]:
    """The loops that say which place is read, of an access to such a place."""
    inside = [n for n in toposort(access.src[1]) if n.op is Ops.INDEX]
    return frozenset().union(*(ranges(n) for n in inside))


def _ends_in_order(kernel: UOp) -> UOp:
    effects = []
    for effect in kernel.src:
        inner = sorted(effect.src[1:], key=lambda r: int(r.arg[0]))
        effects.append(effect.replace((effect.src[0], *inner)))
    return kernel.replace(tuple(effects))


def number_buffers(kernel: UOp) -> tuple[UOp, tuple[int, ...]]:
    """The kernel with its buffers numbered from 0, and the old number of each."""
    outputs = [effect.src[0].src[0].src[0] for effect in kernel.src]
    inputs = [n for n in toposort(kernel) if n.op is Ops.DEFINE_GLOBAL]
    wanted = list(dict.fromkeys((*outputs, *inputs)))
    mapping = {}
    for number, old in enumerate(wanted):
        assert isinstance(old.dtype, PtrDType)
        mapping[old] = define_global(old.dtype.elem, old.dtype.size, number)
    return substitute(kernel, mapping), tuple(int(old.arg) for old in wanted)
