"""Which reductions of a tensor graph will collapse? Asked before fusion, because a gather costs no loop.

The answer comes from the passes themselves: the reduction is lowered alone, with everything below that is not
index arithmetic as memory, and looked at. Only reductions with positions (IOTA) or nothing but constants
below them are tried, and the answer is remembered per form, so equal layers ask once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import final

from morok import knobs
from morok.caches import Cache
from morok.dtype import void
from morok.ir.infer import numel, shape
from morok.ir.movement import reshape
from morok.ir.node import UOp, make, toposort
from morok.ir.ops import Ops
from morok.rewrite.engine import rewrite
from morok.rewrite.ruleset import RuleSet, join
from morok.schedule.costs import STORED
from morok.schedule.indexing import known_shape
from morok.schedule.kernel.collapse import collapse_rules
from morok.schedule.kernel.lower import lower_kernel
from morok.symbolic.identities import unsafe_rules
from morok.symbolic.sets import symbolic

# The unsafe rules take part only under their knob: they make a gather of a product with a one-hot row.
collapse: RuleSet = join("collapse", symbolic, collapse_rules, unsafe_rules)


def collapsible(order: Sequence[UOp]) -> frozenset[UOp]:
    """The reductions over axes that become arithmetic or a gather when they are lowered."""
    found: set[UOp] = set()
    if not any(node.op is Ops.REDUCE_AXIS for node in order):
        return frozenset()
    counts: set[UOp] = set()  # nodes with positions below them, or nothing but constants
    uniform: set[UOp] = set()  # one number everywhere: a product with it collapses as well without
    reads: set[UOp] = set()  # nodes with memory below them
    leaves: set[UOp] = set()  # memory, and what is made of it alone and depends on all of its own axes
    spread: set[UOp] = set()  # what is the same along some of its axes
    for node in order:
        op = node.op
        if op in STORED:
            leaves.add(node)
            reads.add(node)
            continue
        if any(s in reads for s in node.src):
            reads.add(node)
        if op is Ops.REDUCE_AXIS and node.src[0] in counts and _collapses(node, leaves):
            found.add(node)
            # A gather is as good as memory from here on; arithmetic goes on counting.
            (leaves if node in reads else counts).add(node)
        elif op is Ops.REDUCE_AXIS or op is Ops.SCAN_AXIS:
            leaves.add(node)
            reads.add(node)
        elif op is Ops.IOTA or op is Ops.CONST:
            counts.add(node)
            if op is Ops.CONST:
                uniform.add(node)
        elif op.is_movement:
            if node.src[0] not in counts:
                if node.src[0] in leaves and _has_own_axes(node):
                    leaves.add(node)
                elif op is not Ops.PAD and (node.src[0] in leaves or node.src[0] in spread):
                    spread.add(node)
            else:
                counts.add(node)
                if op is not Ops.PAD and node.src[0] in uniform:
                    uniform.add(node)
        elif op.is_alu:
            if all(s in uniform for s in node.src):
                counts.add(node)
                uniform.add(node)
            elif any(s in counts and s not in uniform for s in node.src):
                counts.add(node)
            elif all(s in leaves or s in uniform or s in spread for s in node.src):
                (leaves if any(s in leaves for s in node.src) else spread).add(node)
    return frozenset(found)


def _has_own_axes(node: UOp) -> bool:
    """Whether a view of known size depends on all of its axes if its source does."""
    if node.op is Ops.EXPAND or not isinstance(numel(known_shape(node)), int):
        return False
    if node.op is not Ops.PAD:
        return True
    sizes = zip(known_shape(node), known_shape(node.src[0]), strict=True)
    return all(new is old or new == old or old != 1 for new, old in sizes)


def _collapses(node: UOp, leaves: set[UOp]) -> bool:
    sizes = shape(node)
    if sizes is None or 0 in known_shape(node.src[0]) or not isinstance(numel(known_shape(node)), int):
        return False
    form = on_memory(node, leaves.__contains__)
    if form is None:
        return False
    return _answers.about(form, lambda sink: _is_arithmetic(rewrite(lower_kernel(sink), collapse)))


def _is_arithmetic(kernel: UOp) -> bool:
    return not any(n.op is Ops.REDUCE for n in toposort(kernel))


def on_memory(value: UOp, is_leaf: Callable[[UOp], bool]) -> UOp | None:
    """A kernel that stores a value, with all leaves as memory; None where a size is not known."""
    done: dict[UOp, UOp] = {}
    memory = 1
    for node in toposort(value, stop=is_leaf):
        if is_leaf(node):
            count = numel(known_shape(node))
            if not isinstance(count, int):
                return None
            param = make(Ops.PARAM, node.dtype, (), (memory, count, ""))
            done[node] = reshape(param, known_shape(node))
            memory += 1
        else:
            done[node] = node.replace(tuple([done[s] for s in node.src]))
    sizes = known_shape(value)
    count = numel(sizes)
    if not isinstance(count, int):
        return None
    target = make(Ops.PARAM, value.dtype, (), (0, count, ""))
    return make(Ops.SINK, void, (make(Ops.ASSIGN, value.dtype, (reshape(target, sizes), done[value])),))


@final
class Answers:
    """What is known about kernels, under the options of the time."""

    def __init__(self, name: str) -> None:
        self._known: Cache[tuple[UOp, object], bool] = Cache(name, 1024)

    def about(self, kernel: UOp, ask: Callable[[UOp], bool], where: str = "") -> bool:
        """The answer, which may depend on a machine; then `where` says which."""
        key = (kernel, (where, knobs.cache_key()))
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = ask(kernel)
        return found


_answers = Answers("schedule.collapsing")
