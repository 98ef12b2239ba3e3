"""Back-to-back products in a kernel: what is made of the results of some is multiplied once more, or reduced.

    O(i, j) = Σ over k of f(Σ over e of a(i, e) · b(k, e), …) · v(k, j)

There may be several such results, of the same rows, steps and columns: each is a store of its own.

Values over rows and steps, i and k, are the large ones, and are never memory: a tile of them lies in the
registers in which a matrix unit leaves it. Of this form are attention, which goes along with a maximum
(`online_softmax.py`), which may be stored beside it, as may the sum; the gradients of its operands, where f
has two products below it; and, without the second product, the maxima and sums of its scores.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import final

from morok import knobs
from morok.dtype import DType, bfloat16, float16, float32
from morok.ir.bounds import vmax
from morok.ir.infer import closed_ranges, ranges
from morok.ir.matrix import FUSED_ROWS, FUSED_SIDE, MMA_F16
from morok.ir.node import UOp, toposort
from morok.ir.ops import Ops
from morok.machine.machine import Machine
from morok.schedule.graph.attention.online_softmax import Weighted, power_sum, unrounded, weighted_sum

NARROW = (float16, bfloat16)
STEP = MMA_F16.k  # steps, and elements of a row of an operand, that a unit multiplies at once
COLUMNS = MMA_F16.n  # of the second product
FEWEST_ROWS = 32
MOST_REGISTERS = 192  # of a thread, for its part of 16 rows of operands and of the result: heads of 256
MOST_WIDTH = 256  # of rows in float32, which have no unit: a thread has eight rows of every 16th column
MOST_FIRST = 2  # products below the second one
ONLINE_REDUCTIONS = 6  # of attention as it stands: its scores three times, the maximum and the two sums
STATISTICS = 4  # of a maximum and a sum of powers: scores twice, and both


@final
@dataclass(frozen=True, eq=False)
class Chain:
    """The products of a kernel, and its loops by role."""

    firsts: tuple[UOp, ...]  # REDUCEs, each over a loop of its own or a shared one
    seconds: tuple[UOp, ...]
    rows: UOp
    steps: UOp  # of the second product, or of what is reduced
    columns: UOp | None
    weighted: Weighted | None = None  # if it goes along with a maximum
    online: bool = False  # whether the steps are those of sums of powers below a maximum

    @property
    def inner(self) -> tuple[UOp, ...]:
        """The loops of the first products, each once."""
        return tuple(dict.fromkeys(closed_ranges(first)[0] for first in self.firsts))

    @property
    def values(self) -> tuple[UOp, ...]:
        """The factor of each second product that is memory."""
        firsts = frozenset(self.firsts)
        return tuple(
            next(f for f in second.src[0].src if firsts.isdisjoint(toposort(f))) for second in self.seconds
        )


def size_of(r: UOp) -> int:
    """The steps of a loop; 0 where they are known only when the kernel runs."""
    return int(r.src[0].arg) if r.src[0].op is Ops.CONST else 0


def is_narrow(x: UOp) -> bool:
    """A factor that a unit takes: a narrow float, widened."""
    return x.op is Ops.CAST and x.src[0].dtype in NARROW


def input_type(x: UOp) -> DType:
    """The type of a factor as it is multiplied: before it was widened, if it was."""
    return x.src[0].dtype if is_narrow(x) else x.dtype


def is_unit_product(node: UOp) -> bool:
    """A lowered sum of products that units multiply, or fused products as exactly."""
    if node.op is not Ops.REDUCE or node.arg != (Ops.ADD,) or len(node.src) != 2:
        return False
    return node.src[0].op is Ops.MUL and all(map(_is_factor, node.src[0].src))


def _is_factor(x: UOp) -> bool:
    return is_narrow(x) or x.dtype is float32


def scores_of(found: Weighted) -> UOp | None:
    """The product that a weighted sum's scores are made of, if there is just one."""
    inner = [n for n in toposort(found.power.scores) if n.op is Ops.REDUCE]
    return inner[0] if len(inner) == 1 and is_unit_product(inner[0]) else None


def chain_of(ast: UOp) -> Chain | None:
    """The chain that a whole kernel is, as units can compute it; None if it is none."""
    if not ast.src or any(effect.op is not Ops.END for effect in ast.src):
        return None
    reductions = [n for n in toposort(ast) if n.op is Ops.REDUCE]
    if len(reductions) < 2 or len(reductions) > ONLINE_REDUCTIONS:
        return None
    found = _attention(ast, reductions) or _plain(ast, reductions) or _statistics(ast, reductions)
    return found if found is not None and _suits_units(found) else None


def _attention(ast: UOp, reductions: list[UOp]) -> Chain | None:
    sums = [found for n in reductions if (found := weighted_sum(n)) is not None]
    if len(reductions) != ONLINE_REDUCTIONS or len(sums) != 1:
        return None
    scores = scores_of(sums[0])
    if scores is None or not _stored_beside(ast, sums[0]):
        return None
    columns = _columns(ast, sums[0].sum, (scores,))
    return _with_rows((scores,), (sums[0].sum,), closed_ranges(sums[0].sum)[0], columns, sums[0])


def _stored_beside(ast: UOp, found: Weighted) -> bool:
    """Whether all stores but the first are made of the maximum and the sum of a row, found on its way."""
    known = (found.power.top, found.total)
    if len(ast.src) > 1 and unrounded(found.power.scores) is not found.power.scores:
        return False
    for effect in ast.src[1:]:
        inside = toposort(effect.src[0], stop=lambda n: n in known)
        if not set(effect.src[1:]) < set(ast.src[0].src[1:]):
            return False
        if any(n.op is Ops.REDUCE and n not in known for n in inside):
            return False
    return True


def _plain(ast: UOp, reductions: list[UOp]) -> Chain | None:
    """Products of something that is made of others, one for each store, and no further reduction."""
    below = {n: [m for m in toposort(n.src[0]) if m.op is Ops.REDUCE] for n in reductions}
    firsts = tuple(n for n in reductions if not below[n])
    seconds = tuple(n for n in reductions if below[n])
    if len(firsts) > MOST_FIRST or len(seconds) != len(ast.src) or not all(map(is_unit_product, reductions)):
        return None
    for second in seconds:
        sides = [[n for n in toposort(f) if n.op is Ops.REDUCE] for f in second.src[0].src]
        if sorted(map(len, sides)) != [0, len(below[second])] or not set(below[second]) <= set(firsts):
            return None
    if any(closed_ranges(n) != closed_ranges(seconds[0]) for n in seconds):
        return None
    columns = {_columns(ast, second, firsts) for second in seconds}
    if len(columns) != 1 or any(effect.src[1:] != ast.src[0].src[1:] for effect in ast.src):
        return None
    return _with_rows(firsts, seconds, closed_ranges(seconds[0])[0], columns.pop(), None)


def _statistics(ast: UOp, reductions: list[UOp]) -> Chain | None:
    """A maximum of scores, or a sum of their powers below it, or both."""
    firsts = [n for n in reductions if is_unit_product(n)]
    others = [n for n in reductions if n not in firsts]
    powers = [n for n in others if power_sum(n) is not None]
    tops = [n for n in others if n.arg == (Ops.MAX,) and len(n.src) == 2]
    if len(firsts) != len(others) or len(powers) > 1 or len(tops) != 1 or len(powers) + 1 != len(others):
        return None
    main = powers[0] if powers else tops[0]
    (steps,) = closed_ranges(main)
    mine = [n for n in firsts if steps in ranges(n)]
    if len(mine) != 1 or any(n is not main and main in toposort(n) for n in others):
        return None
    return _with_rows((mine[0],), (), steps, None, None, bool(powers))


def _columns(ast: UOp, second: UOp, firsts: tuple[UOp, ...]) -> UOp | None:
    """The loop over outputs that only the second product has."""
    own = frozenset().union(*(ranges(first) for first in firsts))
    found = [r for r in ast.src[0].src[1:] if r in ranges(second) and r not in own]
    return found[0] if len(found) == 1 else None


def _with_rows(
    firsts: tuple[UOp, ...],
    seconds: tuple[UOp, ...],
    steps: UOp,
    columns: UOp | None,
    weighted: Weighted | None,
    online: bool = False,
) -> Chain | None:
    """The chain with its rows: of several loops that no factor over the steps moves with (heads that share
    one key), the longest."""
    if seconds and columns is None:
        return None
    rows: set[UOp] | None = None
    for first in firsts:
        with_steps = frozenset().union(*(ranges(f) for f in first.src[0].src if steps in ranges(f)))
        mine = {r for r in ranges(first) - with_steps if size_of(r)}
        rows = mine if rows is None else rows & mine
    if not rows:
        return None
    best = max(rows, key=lambda r: (size_of(r), r.arg[0]))
    return Chain(firsts, seconds, best, steps, columns, weighted, online or weighted is not None)


def _suits_units(found: Chain) -> bool:
    """Whether matrix units can compute all products, by the sizes of the loops and the types."""
    widths = [size_of(closed_ranges(first)[0]) for first in found.firsts]
    wide = COLUMNS if found.columns is None else size_of(found.columns)
    if size_of(found.steps) < STEP or size_of(found.rows) < FEWEST_ROWS or not wide:
        return False
    products = [*found.firsts, *found.seconds]
    types = {input_type(f) for product in products for f in product.src[0].src}
    if len(types) > 1:
        return False
    exact = float32 in types
    if not all(widths) or (any(width % COLUMNS for width in widths) and not exact):
        return False
    for first in found.firsts:  # one factor along the rows alone, one along the steps alone
        moving = [(found.rows in ranges(f), found.steps in ranges(f)) for f in first.src[0].src]
        if sorted(moving) != [(False, True), (True, False)]:
            return False
    if exact:
        return not knobs.TF32.value and max(wide * max(1, len(found.seconds)), *widths) <= MOST_WIDTH
    held = sum(in_steps(width) for width in widths) // 4
    return not wide % COLUMNS and wide * max(1, len(found.seconds)) // 2 + held <= MOST_REGISTERS


def others_of(ast: UOp, found: Chain) -> int:
    """How many chains run side by side: the outputs but for rows and columns."""
    loops = closed_ranges(ast.src[0]) if ast.src[0].op is Ops.END else ()
    return math.prod(max(1, int(vmax(r.src[0]))) for r in loops if r not in (found.rows, found.columns))


def in_steps(width: int) -> int:
    """A width of the first products, filled up with zeros to whole steps of a unit."""
    return -(-width // STEP) * STEP


def panels(width: int) -> int:
    """A width in float32 in whole panels."""
    return -(-width // FUSED_SIDE) * FUSED_SIDE


def fused_registers(found: Chain, rows: int, keys: int) -> int:
    """Registers of a thread for results, scores and operands of so many rows by fused products."""
    columns = 0 if found.columns is None else panels(size_of(found.columns)) * len(found.seconds)
    return rows * (columns + keys * len(found.firsts)) // 32 + FUSED_ROWS * 4


def holds_all(found: Chain, machine: Machine) -> bool:
    """Whether a thread has registers for all results of a chain beside the scores of the narrowest tile."""
    rates = machine.attention
    if rates is None:
        return False
    width = 0 if found.columns is None else size_of(found.columns)
    results, inner = width * len(found.seconds) // 2, [size_of(r) for r in found.inner]
    dtype = input_type(found.firsts[0].src[0].src[0])
    if dtype is float32:
        return any(
            fused_registers(found, u.m, FUSED_SIDE) <= rates.fused_registers for u in machine.fused_units
        )
    if any(u.shared and u.inputs is dtype for u in machine.matrix_units):
        keys = min(n for n, _ in rates.group_keys)
        return results + len(found.firsts) * keys // 2 <= rates.wide_registers
    keys = min(n for n, _ in rates.keys)
    return results + sum(inner) // 4 + len(found.firsts) * keys // 2 <= rates.registers
