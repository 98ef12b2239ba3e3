"""What a kernel would take if a value were computed in it, beside a kernel of its own for the value.

Fusion asks this about the two things that repeated work does not tell: whether a product still gets what its
unit wants, and whether a reduction still has the parallelism it needs. Times are clocks of a grid
(`machine/grid_time.py`), or simple operations of one core of a processor.
"""

from __future__ import annotations

import math
from collections.abc import Collection

from morok.ir.node import UOp
from morok.ir.ops import Ops
from morok.machine.grid_time import memory_clocks, units_for
from morok.machine.machine import Machine
from morok.schedule.contraction import GraphContraction, memory_axis
from morok.schedule.costs import STORED, Costs

LEAST_WORK = 1 << 17  # multiplications of a product that is worth a tile
GUARDED_READ = 16.0  # operations for an element of one part of what is joined, in a tile: no vector holds it
FEW_ROWS = 32  # that a processor multiplies as they lie, without packing
MANY_TIMES = 50  # launches' worth of multiplications, from which on a kernel for the rows is nothing
WAKING = 8  # launches that a processor's threads must save
UNTILED = 2.0  # times that a product takes without its tile: pools over convolutions measured 0.8 to 13
MIN_ROWS = 16  # that keep any machine at work
BUSY = 0.7  # of a processor's cores, on average, that rows must keep so
LONGER = 1.25  # a kernel may take so much longer before it is cut in two: prices are rough
WRITTEN_OUT = 16  # steps of a sum that has no loop
FEW_VECTORS = 2  # of columns; for fewer, rows are not packed
SPREAD = 4.0  # instructions to spread a number that was computed by itself: one from memory takes none


def operand_reason(node: UOp, product: GraphContraction, costs: Costs, spread: bool) -> str | None:
    """Why an operand of a product should be memory rather than computed on its way to a unit.

    Threads that compute it fill the tiles in place of an engine. What holds a reduction of its own, the
    statistics of a norm, would leave a kernel that no unit and no tile fits. `spread`: results do not lie
    along it, so that a processor takes it number by number.
    """
    machine = costs.machine
    count = costs.count[node]
    if not product.reads_operand(node, count) or not costs.leaves[node] or product.work < LEAST_WORK:
        return None
    if product.work <= count:  # every number is read once: a sum that nothing is shared in
        return None
    if machine.grid is None:
        found = _few_rows_reason(node, product, costs) or _unpacked_reason(node, product, costs)
        return found or (_few_columns_reason(node, product, costs) if spread else None)
    if machine.products is None or _is_memory(node):
        return None
    if costs.heaviest[node][0] and not shows_less(node, costs):
        return "a product of it could not be tiled: it is made of a reduction"
    own, read = count * node.dtype.itemsize, costs.bytes_read(node)
    other = product.operand_bytes - count * product.inputs.itemsize
    inline = max(
        product.clocks(machine, plain=False), memory_clocks(max(0, other) + read, machine.cores, machine)
    )
    product_alone = max(product.clocks(machine), memory_clocks(max(0, other) + own, machine.cores, machine))
    kept = product_alone + memory_clocks(read + own, machine.cores, machine) + machine.grid.launch
    by_units = bool(units_for(product.inputs, product.output, machine))
    reason = f"a {'unit' if by_units else 'product'} reads memory faster than what is computed on the way"
    return reason if inline > (LONGER if by_units else 1.0) * kept else None


def _is_memory(node: UOp) -> bool:
    """Whether a value is memory, shown otherwise or widened: a unit's tiles are filled from there."""

    def is_shown(n: UOp) -> bool:
        widened = n.op is Ops.CAST and n.src[0].dtype.itemsize < n.dtype.itemsize
        return n.op.is_movement or n.op is Ops.BITCAST or widened

    while is_shown(node):
        node = node.src[0]
    return node.op in STORED


def shows_less(node: UOp, costs: Costs) -> bool:
    """Whether a value only repeats or widens what it is made of, as windows do: that is kept instead."""
    below, own = node, costs.count[node] * node.dtype.itemsize
    while below.op.is_movement or below.op is Ops.CAST:
        below = below.src[0]
        if costs.count[below] * below.dtype.itemsize < own:
            return True
    return False


def _few_rows_reason(node: UOp, product: GraphContraction, costs: Costs) -> str | None:
    """The same on a processor. Many rows are packed, and computed meanwhile; a few are not, and what they are
    made of would stand in the way of walking the matrix as it lies."""
    rows = costs.count[node] / max(1, product.batch * product.steps)  # of nothing, none
    again = product.work > MANY_TIMES * costs.machine.rates.launch
    if costs.heaviest[node][0] and 1 < rows < FEW_ROWS and again:
        return "a product of few rows reads them many times, and they are made of a reduction"
    return None


def _few_columns_reason(node: UOp, product: GraphContraction, costs: Costs) -> str | None:
    """Rows that are used by few vectors of columns are read as they lie. What is computed of them is computed
    number by number then: all lanes of a register for one."""
    count, machine = costs.count[node], costs.machine
    lanes, columns = machine.lanes(node.dtype), product.work / count
    if not 1 < columns < FEW_VECTORS * lanes or lanes == 1:
        return None
    inline = count * lanes * (costs.work[node] + SPREAD)
    byte = machine.rates.memory_byte * lanes / machine.rates.issue
    if inline <= 2 * count * node.dtype.itemsize * byte + machine.rates.launch:
        return None
    return f"a product with {columns:.0f} columns would compute it number by number"


def _unpacked_reason(node: UOp, product: GraphContraction, costs: Costs) -> str | None:
    """A processor packs what is computed of one memory that moves with the rows and the steps of a product,
    and of others that do not. What is made of several it computes again for every tile of the other one."""
    count, rates = costs.count[node], costs.machine.rates
    if count < FEW_ROWS * product.batch * product.steps:
        return None
    moving = [leaf for leaf in costs.leaves[node] if costs.count[leaf] * product.batch >= count]
    parts = [leaf for leaf in costs.leaves[node] if leaf not in moving]
    if sum(costs.count[leaf] for leaf in parts) * product.batch < count:
        parts = []  # too few for all of it to be joined of them
    moving += parts
    each = costs.work[node] + len(parts) * GUARDED_READ
    again = (product.work / (count * rates.tile) - 1.0) * count * each
    stored = rates.ops_per_byte * 2 * count * node.dtype.itemsize + rates.launch
    if len(moving) < 2 or again <= stored:
        return None
    return f"a product would compute it of {len(moving)} memories again for every tile"


def reduction_of(node: UOp, collapsed: Collection[UOp], costs: Costs) -> UOp | None:
    """The heaviest reduction below a node, where each of its numbers is made of one of that."""
    inside = costs.heaviest[node]
    while node.op is not Ops.REDUCE_AXIS or node in collapsed:
        below = [s for s in node.src if costs.heaviest.get(s) == inside and costs.has_reduce[s]]
        if not inside[0] or not below:
            return None
        if costs.count[below[0]] != costs.count[node] and node.op is not Ops.SHRINK:
            return None
        node = below[0]
    return node


def loses_its_tile(
    node: UOp, product: GraphContraction | None, outputs: float, costs: Costs, instead: UOp | None = None
) -> bool:
    """Whether a product with so many outputs is better off in a kernel of its own than where no tile fits:
    inside of a window that is unrolled, as of a pool, or where a part of the outputs has none of it. Tiles
    are of outputs that all want the same. What is stored and read back for it is the product, or `instead`
    what stands in its way."""
    machine = costs.machine
    count, kept = min(costs.count[node], outputs), node if instead is None else instead
    stored = 2 * costs.count[kept] * kept.dtype.itemsize
    if machine.grid is None:
        longer = (UNTILED - 1) * costs.work[node] * count
        return longer > machine.rates.ops_per_byte * stored + machine.rates.launch
    if machine.products is None or product is None:
        return False
    tiled = product.clocks(machine) + memory_clocks(stored, machine.cores, machine) + machine.grid.launch
    return costs.work[node] * count / (machine.grid.operations * machine.cores) > LONGER * tiled


def waiting_reason(node: UOp, outputs: float, costs: Costs) -> str | None:
    """Why what holds a reduction should not be computed inside of another one: in a kernel of its own it has
    more blocks, or threads, than the few outputs of this one."""
    machine = costs.machine
    count = costs.count[node]
    work, rows = costs.heaviest[node]
    if not work or count > 2 * rows:  # rather the reduction itself, which is less to store
        return None
    nbytes = costs.bytes_read(node)
    here, alone = min(machine.cores, outputs), min(machine.cores, count)
    if here >= alone or not here:
        return None
    reason = f"its {rows} rows would be reduced by {outputs:.0f} {'block' if machine.has_grid else 'thread'}"
    reason += "" if outputs == 1 else "s"
    if machine.grid is not None:
        rate = machine.grid.operations
        inline = max(work / (rate * here), memory_clocks(nbytes, here, machine))
        own = max(work / (rate * alone), memory_clocks(nbytes, alone, machine))
        kept = (
            own + memory_clocks(2 * count * node.dtype.itemsize, machine.cores, machine) + machine.grid.launch
        )
        return reason if inline > LONGER * kept else None
    return reason if _waits(work, here, alone, machine) else None


def idle_reason(rows: float, outputs: float, itemsize: int, costs: Costs) -> str | None:
    """Why a reduction should not be computed before the outputs of a kernel: a grid's blocks would share its
    rows only, because each of them would have to compute it anew for the other loops."""
    machine = costs.machine
    if machine.grid is None or not rows or rows >= min(machine.cores, outputs):
        return None
    moved = 2 * outputs * itemsize  # something is read for each of them as well
    inline = memory_clocks(moved, rows, machine)
    kept = memory_clocks(moved, machine.cores, machine) + machine.grid.launch
    if inline <= LONGER * kept:
        return None
    return f"the {outputs:.0f} outputs of the kernel would have {rows:.0f} block{'' if rows == 1 else 's'}"


def again_reason(node: UOp, points: float, costs: Costs) -> str | None:
    """Why a reduction across memory should not be computed before the outputs of a kernel that repeat it: the
    threads of a grid share rows that lie in order, but all others each of them reduces anew."""
    machine = costs.machine
    if machine.grid is None or memory_axis(node.src[0]) in (None, *node.arg[1]):
        return None
    if costs.bytes_read(node) < costs.count[node.src[0]]:
        return None  # rather of what is computed than of memory
    count = costs.count[node]
    again = (points - count) * costs.work[node] / (machine.grid.operations * machine.cores)
    stored = 2 * count * node.dtype.itemsize
    kept = memory_clocks(stored, machine.cores, machine) + machine.grid.launch
    if again <= LONGER * kept:
        return None
    return f"threads would compute it {points / max(1, count):.3g} times, each for itself"


def shared_places_reason(node: UOp, costs: Costs) -> str | None:
    """Why a reduction should not be computed while rows are put in places: the threads of a grid share these,
    and each goes through all rows."""
    if costs.machine.grid is None or not costs.heaviest[node][0]:
        return None
    return "threads that share the places of rows would each compute all of them"


def beside_reason(node: UOp, product: GraphContraction, times: float, costs: Costs) -> str | None:
    """Why a product should not be computed in a kernel with loops that it does not move with: the blocks of a
    grid are for all loops, so it would be computed anew for each point of those."""
    machine = costs.machine
    if machine.grid is None or machine.products is None or times <= 1.0:
        return None
    again = (times - 1.0) * product.clocks(machine)
    stored = 2 * costs.count[node] * node.dtype.itemsize
    kept = memory_clocks(stored, machine.cores, machine) + machine.grid.launch
    return f"it would be computed {times:.3g} times by different blocks" if again > kept else None


def too_few_rows(rows: float, machine: Machine) -> bool:
    """Whether rows that are reduced before the parallel part of a kernel leave much of a machine idle."""
    if rows >= MIN_ROWS or not machine.threads:
        return rows < MIN_ROWS
    return rows < BUSY * math.ceil(rows / machine.cores) * machine.cores


def _waits(work: float, here: float, alone: float, machine: Machine) -> bool:
    """Whether a processor's threads are worth another kernel, with what waking them costs."""
    return machine.threads and work / here - work / alone > WAKING * machine.rates.launch


def are_short(a: GraphContraction | None, b: GraphContraction | None, costs: Costs) -> bool:
    """Whether a processor writes out all steps of two products: they have no panels, and may share what they
    read. So words of a block are decoded once for the sums of all parts and digits."""
    if costs.machine.has_grid or a is None or b is None:
        return False
    return max(a.steps, b.steps) <= WRITTEN_OUT
