"""Fusion: which values are kept in memory. All others are computed where they are needed.

Everything starts inline. The graph is walked from the outputs down, so that at each node all its *uses* are
known: in which kernel, at which indices, inside which reductions. From the indices follows how often the
value would be computed: a value lives in the ranges it depends on, so a row's sum that every column asks for
is computed once per row, but a value that depends on a reduction's loop is computed again for every output
that the loop runs for. If that repeats more work than writing the value to memory and reading it back would
cost, the value is kept, and becomes a kernel of its own; otherwise its sources inherit the uses.

What a value costs depends on what is kept below it, which is decided later. So the walk is done twice. The
first one takes everything as expensive as it is when nothing is kept below, and keeps too much. Its choices
are then gone through from the inputs up, each with the costs that follow from those below it, and the second
walk uses these costs. A layer norm in front of a matrix product is too expensive to repeat as long as the
product before it is part of it, and cheap once that is known to be kept.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import Any, final

from morok import knobs
from morok.ir.memory import is_alone
from morok.ir.node import UOp, toposort
from morok.ir.ops import AxisKind, Ops
from morok.ir.provenance import here
from morok.machine.devices import main_machine
from morok.rewrite.observe import current
from morok.schedule.contraction import GraphContraction, adds_words, known_contraction
from morok.schedule.costs import AGAIN, STORED, Costs, code_of, measure
from morok.schedule.graph.attention.one_kernel import attentions, is_kernel, users_of, works
from morok.schedule.graph.attention.recomputed_scores import Rewritten, families, with_scores_again
from morok.schedule.graph.boundaries import mark_kept
from morok.schedule.graph.compared import NOWHERE, Sides, find_comparisons, is_rounded, meet
from morok.schedule.graph.crowded import crowded
from morok.schedule.graph.explain_fusion import explain
from morok.schedule.graph.segments import limits_of_segments
from morok.schedule.graph.uses import (
    Level,
    Root,
    Use,
    around,
    comparing,
    counted,
    fix_order,
    is_averaged,
    is_cut,
    live_in,
    outermost,
    place_in,
    points,
    reason_to_run_apart,
    way_of,
    wider_sum,
)
from morok.schedule.indexing import Indices, known_shape, scanned_loop, source_indices
from morok.schedule.kernel.lower import INTERNAL, PASS_THROUGH, new_loop, output_ranges
from morok.schedule.kernel.probe import collapsible
from morok.schedule.prices import (
    again_reason,
    are_short,
    beside_reason,
    idle_reason,
    loses_its_tile,
    operand_reason,
    reduction_of,
    shared_places_reason,
    shows_less,
    too_few_rows,
    waiting_reason,
)
from morok.schedule.two_products import first_of_two

MAX_CODE = 1000  # operations of one kernel, functions written out: compilers need more than linear time
MAX_USES = 64  # of one value at different places
TRIVIAL = 4.0  # work on constants: a mask of positions is shorter to compute than to read
SERIAL_WORK = 1_000_000.0  # of a reduction that a kernel waits for before its parallel part
SMALL_WINDOW = 16  # a reduction that can be unrolled: pooling windows
EXPENSIVE_REDUCE = 32.0
FUNCTION = 20.0  # operations of what is not shorter to compute than to read, and is mentioned if done twice
TERMS = frozenset((Ops.ADD, Ops.SUB, Ops.NEG, Ops.CAST))  # the sum of these is made of sums


def choose_buffers(sink: UOp, ctx: object = None) -> UOp:
    """The graph with CONTIGUOUS around every value that is kept; its argument is the reason."""
    outer = here.origin
    here.origin = INTERNAL
    try:
        order = toposort(sink)
        chained = families(order)
        while True:
            graph = with_scores_again(order, sink, chained)
            inside = toposort(graph.sink)
            kept, chooser, failing = _choose(inside, graph)
            if not failing:
                break
            chained = [family for family in chained if family not in failing]
        if knobs.explains("fusion"):
            explain(kept, chooser.repeated, chooser.costs)
        observer = current()
        if observer is not None:
            for node, times in chooser.repeated.items():
                observer.note("fusion", f"computed {times:.3g} times", node)
        return mark_kept(inside, kept, graph.sink)
    finally:
        here.origin = outer


def _choose(order: list[UOp], graph: Rewritten) -> tuple[dict[UOp, str], Chooser, list[object]]:
    """What is kept, with the reasons; asked again where a kernel of attention is none. Where one of a family
    of chains is none, that is told instead."""
    collapsed, machine = collapsible(order), main_machine(order)
    compared = find_comparisons(order, collapsed)
    passing = [*attentions(order), *graph.chains]
    users = users_of(order) if passing else {}
    segments = limits_of_segments(order, collapsed) if machine.grid is not None else frozenset[UOp]()
    alone: dict[UOp, str] = {}
    products: dict[UOp, GraphContraction | None] = {}
    plain = {} if machine.has_grid else first_of_two(order, products)
    while True:
        inline = segments.union(*(found.between for found in passing))
        masks = dict.fromkeys((n for found in passing for n in found.memory), "a mask is made of it")
        apart = masks | plain | alone
        first = Chooser(measure(order, collapsed, machine), collapsed, compared, products, inline, apart)
        first.run(order)
        costs = measure(order, collapsed, machine, first.still_keeps)
        chooser = Chooser(costs, collapsed, compared, products, inline, {**crowded(order, costs), **apart})
        kept = chooser.run(order)
        failing = [found for found in passing if not works(found, kept, users)]
        if not failing:
            return kept, chooser, [f for n, f in graph.statistics.items() if not is_kernel(n, kept)]
        for found in failing:
            if found.end in alone:
                if found.family is not None:
                    return kept, chooser, [found.family]
                passing.remove(found)
                del alone[found.end]
            else:
                alone[found.end] = "attention takes a kernel of its own"


@final
class Chooser:
    """One walk from the outputs down."""

    def __init__(
        self,
        costs: Costs,
        collapsed: Collection[UOp],
        compared: dict[UOp, int],
        products: dict[UOp, GraphContraction | None],
        inline: Collection[UOp] = (),
        crowded: dict[UOp, str] | None = None,
    ) -> None:
        self.costs = costs
        self.collapsed = collapsed
        self.compared = compared  # comparisons of a sum with itself, by bit
        self.products = products  # what sums contract, as far as it has been asked for
        self.inline = inline  # never kept: computed in passing
        self.crowded = crowded or {}
        self.kept: dict[UOp, str] = {}
        self.kept_for: dict[UOp, list[Use]] = {}
        self.uses: dict[UOp, dict[tuple[Root, Indices], Use]] = {}
        self.users: dict[UOp, int] = {}
        self.decides: dict[UOp, Sides] = {}  # memory: of which comparisons it is on a side
        self.padded: set[UOp] = set()
        self.compares: set[UOp] = set()  # with all places of a gather, which never are
        self.repeated: dict[UOp, float] = {}  # reductions and functions, and how often they are computed

    def run(self, order: list[UOp]) -> dict[UOp, str]:
        for node in order:
            if self.is_padding(node):
                self.padded.add(node)
            if node in self.collapsed:
                self.compares.update(comparing(node))
            for s in dict.fromkeys(node.src):
                self.users[s] = self.users.get(s, 0) + 1
        for node in reversed(order):
            op = node.op
            if node in self.decides:
                for s in node.src:
                    if s.op in STORED:
                        self.decide(s, self.decides[node].stored())
            if op is Ops.CONTIGUOUS:
                self.root(node, node.src[0])
            elif op is Ops.ASSIGN:
                self.root(node, node.src[1])
            elif op is Ops.SCATTER:
                if not is_alone(node):
                    self.root(node, node.src[0])
                self.root(node.src[2], node.src[2], scatters=node)
            elif node in self.uses:
                self.visit(node, list(self.uses.pop(node).values()))
        return self.kept

    def still_keeps(self, node: UOp, costs: Costs) -> bool:
        """Whether a node that was kept would be kept at other costs."""
        uses = self.kept_for.get(node)
        if uses is None:
            return False
        if node in self.crowded:
            return True
        self.costs = costs
        return self.reason(node, uses) is not None

    # --- walking

    def root(self, node: UOp, value: UOp, scatters: UOp | None = None) -> None:
        """A kernel that stores `value`, or puts it in places of a SCATTER."""
        indices = output_ranges(known_shape(node))
        loops = frozenset(i for i in indices if i.op is Ops.RANGE)
        kernel = Root(node, loops, points(loops), len(indices), scatters=scatters)
        sides = self.decides.get(node if scatters is None else scatters, NOWHERE).stored()
        kernel.product = self.product_in(value)
        self.ask(value, Use(kernel, indices, (), sides=sides))
        if scatters is not None:
            self.ask(scatters.src[1], Use(kernel, indices[: len(known_shape(scatters.src[1]))], ()))

    def ask(self, node: UOp, use: Use) -> None:
        if node.op in STORED:
            self.decide(node, use.sides)
            return
        known = self.uses.get(node)
        if known is None:
            if node in self.costs.work:
                self.uses[node] = {(use.kernel, use.indices): use}
            return
        same = known.setdefault((use.kernel, use.indices), use)
        if same is not use:
            known[use.kernel, use.indices] = same._replace(
                averaged=use.averaged or same.averaged,
                sides=use.sides | same.sides,
                partial=use.partial and same.partial,
                looked_up=use.looked_up or same.looked_up,
            )

    def decide(self, node: UOp, sides: Sides) -> None:
        """Memory is read on these sides of comparisons."""
        if sides != NOWHERE:
            self.decides[node] = self.decides.get(node, NOWHERE) | sides

    def visit(self, node: UOp, uses: list[Use]) -> None:
        if node not in self.inline and self.is_candidate(node):
            reason = self.crowded.get(node) or self.reason(node, uses)
            if reason is not None:
                self.kept[node] = reason
                self.kept_for[node] = uses
                for use in uses:
                    self.decide(node, use.sides)
                self.root(node, node)  # asks for itself, which is answered at once below
                (own,) = self.uses.pop(node).values()
                uses = [own]
        for use in uses:
            use.kernel.code += code_of(node.op)
            self.descend(node, use)

    def reason(self, node: UOp, uses: list[Use]) -> str | None:
        """Why a node is kept: for itself, or for a wider sum that nobody else reads."""
        found = self.reason_to_keep(node, uses)
        wider = wider_sum(node, uses, self.users) if found is None else None
        if wider is not None and wider[0] not in self.inline:
            found = self.crowded.get(wider[0]) or self.reason_to_keep(*wider)
        return found

    def is_candidate(self, node: UOp) -> bool:
        """Whether it makes sense to keep this node rather than one below or above it."""
        op = node.op
        if op is Ops.REDUCE_AXIS or op is Ops.SCAN_AXIS:
            return True
        if node in self.compares or is_cut(node):
            return False
        if op is Ops.SHRINK:  # less to store than its source, if nobody else wants the source
            source = node.src[0]
            less = 2 * self.costs.count[node] <= self.costs.count[source] and not shows_less(node, self.costs)
            return self.users[source] == 1 and less
        if op is Ops.CAST:  # the narrower side
            return node.dtype.itemsize <= node.src[0].dtype.itemsize
        read = bool(self.costs.leaves[node]) or self.costs.work[node] >= FUNCTION  # or shorter to compute
        return op.is_alu and read and node not in self.padded

    def is_padding(self, node: UOp) -> bool:
        """Whether a value is a smaller one with an edge around it, filled in by cheap arithmetic.

        The smaller one is kept if anything is: an edge is a condition where the value is read. Asked for all
        nodes in order.
        """
        op, leaves = node.op, self.costs.leaves
        if op is Ops.PAD:
            return bool(leaves.get(node))
        if op in (Ops.RESHAPE, Ops.PERMUTE):
            return node.src[0] in self.padded
        if not op.is_alu or self.costs.machine.op_costs.of(op) > 1.0:
            return False
        sources = [s for s in dict.fromkeys(node.src) if leaves.get(s)]
        return len(sources) == 1 and sources[0] in self.padded

    def descend(self, node: UOp, use: Use) -> None:
        op = node.op
        kernel, indices, nest, averaged, sides, partial, found = use  # replaced by hand: that is done often
        if op.is_movement:
            moved, valid = source_indices(node, indices)
            found = found and source_indices(node, found)[0]
            partial = partial or valid is not None
            self.ask(node.src[0], Use(kernel, moved, nest, averaged, sides, partial, found))
        elif op in PASS_THROUGH:
            self.ask(node.src[0], use)
        elif op is Ops.REDUCE_AXIS:
            self.enter(node, use)
        elif op is Ops.SCAN_AXIS:
            use.kernel.running = use.kernel.running or scanned_loop(node, use.indices)
            for s in node.src:
                self.ask(s, use)
        elif op.is_alu:
            if averaged and op not in TERMS:
                use = Use(kernel, indices, nest, False, sides, partial, found)
            bit = self.compared.get(node)
            for n, s in enumerate(dict.fromkeys(node.src)):
                asked = use if known_shape(s) else use._replace(indices=(), looked_up=None)
                if bit is not None:
                    asked = asked._replace(sides=sides | (Sides(right=bit) if n else Sides(left=bit)))
                self.ask(s, asked)

    def enter(self, node: UOp, use: Use) -> None:
        """Into a reduction: its axes become loops."""
        kernel = use.kernel
        sizes = known_shape(node.src[0])
        below, loops = list(use.indices), []
        found = list(use.looked_up or use.indices)
        alive = live_in(use.indices)
        # a grid computes what it looks up while it waits for memory; a processor has no time for that
        looked_up = node in self.collapsed and self.costs.machine.grid is None
        for axis in node.arg[1]:
            if sizes[axis] in (0, 1):
                continue
            loop = new_loop(sizes[axis], kernel.next_range, AxisKind.REDUCE)
            kernel.next_range += 1
            below[axis], found[axis] = place_in(alive, loop) if looked_up else loop, loop
            loops.append(loop)
        times, depth = self.evaluations(alive, use)
        level = Level(frozenset(loops), times, self.contraction(node))
        nest = (*use.nest[:depth], level) if node not in self.collapsed else use.nest
        if not depth and node not in self.collapsed:
            fix_order(kernel, alive)
            if kernel.heavy is None and self.is_heavy(node):
                kernel.heavy = node
        averaged = node.arg[0] is Ops.ADD and bool(loops) and node not in self.collapsed
        partial = use.partial or node in self.collapsed  # numbers that are looked up are of no tile
        data = tuple(found) if looked_up or use.looked_up is not None else None
        self.ask(node.src[0], Use(kernel, tuple(below), nest, averaged, use.sides, partial, data))

    # --- counting

    def evaluations(self, alive: frozenset[UOp], use: Use) -> tuple[float, int]:
        """How often a value that lives in these ranges is computed, and inside how many of the reductions."""
        for depth in range(len(use.nest), 0, -1):
            level = use.nest[depth - 1]
            inner = alive & level.loops
            if inner:
                return level.times * points(inner), depth
        return points(outermost(use.kernel, alive)), 0

    def reason_to_keep(self, node: UOp, uses: list[Use]) -> str | None:
        costs = self.costs
        work, count = costs.work[node], costs.count[node]
        price, reduced = work, costs.has_reduce[node]
        if len(uses) > MAX_USES and (costs.leaves[node] or reduced or work > TRIVIAL):
            return f"it is read at {len(uses)} different places"
        if work > TRIVIAL and any(use.kernel.code > MAX_CODE for use in uses):
            return f"one kernel would have more than {MAX_CODE} operations"
        if node.op is Ops.SCAN_AXIS:
            apart = next((found for use in uses if (found := reason_to_run_apart(node, use))), None)
            if apart is not None:
                return apart
            ways: dict[Root, Any] = {}
            if any(ways.setdefault(u.kernel, way) != way for u in uses for way in [way_of(node, u)]):
                return "a running reduction is read in two directions"
        if node not in self.collapsed and is_rounded(node) and len(uses) > 1:
            if is_averaged(uses):
                return "its average and itself are both read, and must be of the same values"
            if meet([use.sides for use in uses]):
                return "it is compared with something made of itself, and must be the same on both sides"
        total = 0.0
        slow: str | None = None
        seen: dict[Root, set[frozenset[UOp]]] = {}  # kernels, and the loops that they read it in
        for use in uses:
            alive = live_in(use.indices)
            times, depth = self.evaluations(alive, use)
            if node.op is Ops.REDUCE_AXIS and node not in self.collapsed:
                if depth and costs.machine.grid is None:  # repeated in another one's loop it is no vector
                    price = work * costs.machine.lanes(node.dtype)
                slow = slow or self.structural_reason(node, use, alive, depth)
                if self.is_heavy(node) and work * count > costs.machine.rates.launch:
                    if use.kernel in seen:
                        slow = slow or "one kernel would hold a matrix product twice"
                    elif use.kernel.in_order:  # in order, by one thread
                        slow = slow or "rows are put in places one by one, where a product has no tiles"
            if slow is None and use.kernel.in_order:
                slow = shared_places_reason(node, costs)
            if slow is None and use.nest and use.nest[-1].product is not None:
                slow = operand_reason(node, use.nest[-1].product, costs, not use.kernel.is_along(alive))
            if slow is None and (depth or use.partial):
                slow = self.untiled_reason(node, depth)
            if slow is None and depth:
                slow = waiting_reason(node, use.kernel.points, costs)
            if not reduced:
                distinct = min(count, points(alive))
                if not depth and costs.machine.grid is None:
                    times = points(around(use.kernel, alive))
                times = min(times, distinct * costs.machine.rates.tile)
                if alive not in seen.get(use.kernel, (alive,)):
                    times *= AGAIN
            seen.setdefault(use.kernel, set()).add(alive)
            total += times
        reason = self.compare(node, uses, price, count, total, len(seen)) or slow
        heavy = (reduced and node.op is Ops.REDUCE_AXIS) or costs.machine.op_costs.of(node.op) >= FUNCTION
        if reason is None and heavy and total > 1.5 * count:
            self.repeated[node] = total / count
        return reason

    def compare(
        self, node: UOp, uses: list[Use], work: float, count: int, total: float, kernels: int
    ) -> str | None:
        """Repeated work and reads against writing once and reading back."""
        again = max(0.0, total - count) * work
        size = count * node.dtype.itemsize
        reads = self.costs.bytes_read(node) if kernels > 1 else 0
        rates = self.costs.machine.rates
        inline = again + rates.ops_per_byte * reads * kernels
        stored = rates.ops_per_byte * (reads + size * (1 + kernels)) + rates.launch
        if inline <= stored:
            return None
        if kernels > 1:
            return f"it is used by {kernels} kernels"
        if len(uses) > 1:
            return f"it is read under {'two' if len(uses) == 2 else len(uses)} different ranges"
        return f"it would be computed {total / count:.0f} times"

    def contraction(self, node: UOp) -> GraphContraction | None:
        return known_contraction(self.products, node)

    def untiled_reason(self, node: UOp, depth: int) -> str | None:
        """Why a product should be in no other reduction, and in no kernel that has outputs without it."""
        found = self.product_in(node)
        count = self.costs.count[node]
        if found is None or not loses_its_tile(found, self.contraction(found), count, self.costs):
            return None
        where = "inside another reduction" if depth else "that a part of the outputs has"
        return f"a matrix product {where} could not be tiled"

    def product_in(self, node: UOp) -> UOp | None:
        """The product that a node has one number of for each of its own; it may leave others out."""
        found = reduction_of(node, self.collapsed, self.costs)
        if found is None or self.costs.work[found] < EXPENSIVE_REDUCE or not self.is_heavy(found):
            return None
        return found

    def is_heavy(self, node: UOp) -> bool:
        """Whether a kernel is planned around a reduction: a product, or what uses its inputs like one.

        A processor walks a matrix in one way for one row of outputs; threads of a grid walk two side by side.
        """
        if self.costs.reuses(node):
            return True
        return self.costs.machine.grid is None and self.contraction(node) is not None

    def structural_reason(self, node: UOp, use: Use, alive: frozenset[UOp], depth: int) -> str | None:
        """What would make a kernel slow although nothing is repeated."""
        kernel, work = use.kernel, self.costs.work[node]
        if kernel.running is not None and kernel.running.loop in alive and work > SMALL_WINDOW:
            return "what runs along a loop would wait for it at every step"
        rows = points(alive)
        waiting = kernel.loops - alive or any(level.loops - alive for level in use.nest)
        if waiting and too_few_rows(rows, self.costs.machine) and work * rows > SERIAL_WORK:
            return f"the rest of the kernel would wait for {counted(rows, 'long row')}"
        if not depth and kernel.loops - alive:
            idle = idle_reason(rows, kernel.points, kernel.node.dtype.itemsize, self.costs)
            idle = idle or again_reason(node, kernel.points, self.costs)
            if idle is not None:
                return idle
        other = kernel.product
        if other is not None and other is not node and not depth and self.costs.machine.has_grid:
            later = other not in self.costs.work  # asked again from the inputs up, before that is known
            if later or loses_its_tile(other, self.contraction(other), kernel.points, self.costs, node):
                return "a matrix product beside another reduction could not be tiled"
        if not self.is_heavy(node) or work < EXPENSIVE_REDUCE or adds_words(node.src[0]):
            return None
        product = self.contraction(node)
        if not depth and product is not None:
            if beside := beside_reason(node, product, kernel.points / max(1, rows), self.costs):
                return beside
        if depth:
            window = math.prod(points(level.loops) for level in use.nest[:depth])
            if window > SMALL_WINDOW:
                return "a matrix product inside another reduction could not be tiled"
        heavy = kernel.heavy
        if heavy is None or heavy is node or are_short(self.contraction(heavy), product, self.costs):
            return None
        return "one kernel would hold two matrix products"
