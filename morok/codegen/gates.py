"""Stage 8, post-opt symbolic: simplifies, and moves conditions from values onto the loads that they guard.

    WHERE(c, a[i], 0)  →  a[i] if c        (a guarded read is 0 where its gate is false)
    WHERE(c, a[i], y)  →  WHERE(c, a[i] if c, y)

Then the place may be simplified under the gate, and memory that is not needed is not touched. Reductions of
several values become one reduction per value over the same loops; stage 11 lets them share the loop.
"""

from __future__ import annotations

from morok.dtype import identity
from morok.ir.build import reduce
from morok.ir.infer import ranges
from morok.ir.node import UOp, alu, const, make, toposort
from morok.ir.ops import Ops
from morok.ir.scan import parts, scan
from morok.rewrite.rules import Rules, why
from morok.rewrite.ruleset import join, rules
from morok.rewrite.terms import Bool, Head, Var, Where
from morok.symbolic.sets import symbolic
from morok.symbolic.validity import conjuncts, simplify_under


def _gate(read: UOp) -> UOp | None:
    return read.src[-1] if read.src[-1].dtype.is_bool else None


def _is_read(x: UOp) -> bool:
    return x.op is Ops.INDEX and not x.dtype.is_ptr and x.dtype.lanes == 1


def _is_index_condition(p: UOp) -> bool:
    """A condition on loop indices and variables only: known before the load."""
    return all(n.op not in (Ops.INDEX, Ops.REDUCE, Ops.SCAN) for n in toposort(p))


def _guarded(read: UOp, p: UOp) -> UOp | None:
    """The read under one more condition, if that is known where the read is."""
    if not ranges(p) <= ranges(read) or not _is_index_condition(p):
        return None
    old = _gate(read)
    gate = p if old is None else alu(Ops.AND, old, p)
    return make(Ops.INDEX, read.dtype, (*read.src[:2], gate), read.arg)


def gate_load(node: UOp, p: UOp, x: UOp, y: UOp) -> UOp | None:
    """WHERE(p, read, y)."""
    if not _is_read(x):
        return None
    is_zero = y is _zero(x)  # -0.0 is another constant
    if _implied(x, p):
        return x if is_zero else None
    guarded = _guarded(x, p)
    return None if guarded is None else guarded if is_zero else node.replace((p, guarded, y))


def _implied(read: UOp, p: UOp) -> bool:
    """The read's own gate already says p."""
    gate = _gate(read)
    return gate is not None and set(conjuncts(p)) <= set(conjuncts(gate))


def place_under_gate(node: UOp) -> UOp | None:
    """The place of a guarded access, simplified with what the gate says; 0 if the gate never holds."""
    gate = _gate(node)
    if gate is None:
        return None
    if gate.op is Ops.CONST:
        if gate.arg:
            return make(Ops.INDEX, node.dtype, node.src[:-1], node.arg)
        return None if node.dtype.is_ptr else _zero(node)
    better = simplify_under(gate, node.src[1], symbolic)
    return None if better is node.src[1] else node.replace((node.src[0], better, *node.src[2:]))


def _zero(node: UOp) -> UOp:
    return const(node.dtype, identity("ADD", node.dtype))


def split_values(node: UOp) -> UOp | None:
    """PICK(REDUCE(x, y; loops), 0) → REDUCE(x; loops)."""
    whole = node.src[0]
    if whole.op is not Ops.REDUCE:
        return None
    i = node.arg
    return reduce(whole.src[i], whole.arg[i], whole.src[len(whole.arg) :])


def close_what_runs(node: UOp) -> UOp | None:
    """END and REDUCE close loops; what has become a constant (a loop of one step) is none."""
    if node.op is Ops.SCAN:
        return _run_along(node)
    count = len(node.arg) if node.op is Ops.REDUCE else 1
    closed = node.src[count:]
    loops = tuple(s for s in closed if s.op is Ops.RANGE)
    if not loops and count == 1:
        return node.src[0]
    return None if loops == closed else node.replace((*node.src[:count], *loops))


def _run_along(node: UOp) -> UOp | None:
    """A SCAN along what is still a loop."""
    found = parts(node)
    loops = tuple(s for s in found.loops if s.op is Ops.RANGE)
    return None if loops == found.loops else scan(found.values, node.arg.op, loops, found.start, found.place)


def single_step(node: UOp) -> UOp | None:
    """A loop of one step is its only index."""
    end = node.src[0]
    return const(node.dtype, 0) if end is const(end.dtype, 1) else None


@rules("codegen.gates")
def gate_rules(p: Bool, x: Var, y: Var) -> Rules:
    """Conditions on loads."""
    # p ? a[i] : 0 reads a[i] where p holds
    yield "load", Where(p, x, y) >> gate_load, why("looks at the read's own gate")
    # p holds wherever a[i] is touched
    yield (
        "place",
        Head(Ops.INDEX).any() >> place_under_gate,
        why("simplifies under the gate"),
    )
    # a loop of one step is no loop
    yield "step", Head(Ops.RANGE).any() >> single_step, why("the end is the source")
    yield (
        "close",
        Head(Ops.END, Ops.REDUCE, Ops.SCAN).any() >> close_what_runs,
        why("any number of loops"),
    )
    # each value of a joint reduction by itself
    yield "pick", Head(Ops.PICK).any() >> split_values, why("any number of values")


post_opt_rules = join("codegen.post_opt", symbolic, gate_rules)
