"""The action space: every action as a triple of condition, action and public name.

    reason = can(kernel, Opt("UPCAST", 1, 4), machine)      # None, or one sentence
    kernel = apply(kernel, Opt("UPCAST", 1, 4), machine)    # raises OptError with that sentence

Any legal sequence gives the same answer; sums of floats may be added in another order.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import final

from morok.ir.node import UOp, toposort
from morok.ir.ops import AxisKind, Ops
from morok.ir.scan import scan_loops
from morok.machine.machine import Machine
from morok.optimize.actions import (
    accumulate_in_cache,
    atomic,
    back_to_back_gemm,
    cache_result,
    cache_row,
    cache_scores,
    cluster,
    edges,
    halo,
    online,
    pack,
    partition,
    scans,
    skip,
    split_k,
    splits,
    stage,
    stage_result,
    tile_unit,
    warp_specialize,
)
from morok.optimize.actions import join as joining
from morok.optimize.grid import grid_loops
from morok.optimize.loops import LANE_KINDS, Loops, loops_of
from morok.optimize.record import STAGE, Opt, OptError, applied, recorded
from morok.rewrite.observe import current, observed, report
from morok.rewrite.observer import By, place_of

Condition = Callable[[Loops, Opt, Machine], "str | None"]
Change = Callable[[Loops, Opt], UOp]


@final
@dataclass(frozen=True)
class Action:
    """A public name, when it is allowed, and what it does; the docstring of `change` shows before → after."""

    name: str
    condition: Condition
    change: Change

    @property
    def meaning(self) -> str:
        return inspect.getdoc(self.change) or ""


ACTIONS: dict[str, Action] = {
    action.name: action
    for action in (
        Action("UPCAST", splits.can_upcast, splits.upcast),
        Action("UNROLL", splits.can_unroll, splits.unroll),
        Action("LOCAL", splits.can_local, splits.local),
        Action("GROUP", splits.can_group, splits.group),
        Action("GROUPTOP", splits.can_group, splits.group_top),
        Action("THREAD", splits.can_thread, splits.thread),
        Action("SWAP", splits.can_swap, splits.swap),
        Action("TILE", splits.can_tile, splits.tile),
        Action("JOIN", joining.can_join, joining.join),
        Action("PADTO", edges.can_pad, edges.pad),
        Action("PEEL", edges.can_peel, edges.peel),
        Action("PEEL_FIRST", edges.can_peel_first, edges.peel_first),
        Action("PACK", pack.can_pack, pack.pack),
        Action("HALO", halo.can_halo, halo.halo),
        Action("CACHE_ROW", cache_row.can_cache_row, cache_row.cache_row),
        Action("CACHE_SCORES", cache_scores.can_cache_scores, cache_scores.cache_scores),
        Action(
            "ACCUMULATE_IN_CACHE",
            accumulate_in_cache.can_accumulate_in_cache,
            accumulate_in_cache.accumulate_in_cache,
        ),
        Action("SPLIT_K", split_k.can_split_k, split_k.split_k),
        Action("STAGE", stage.can_stage, stage.stage),
        Action("STAGE_RESULT", stage_result.can_stage_result, stage_result.stage_result),
        Action("CACHE_RESULT", cache_result.can_cache_result, cache_result.cache_result),
        Action("ONLINE", online.can_online, online.online),
        Action("SKIP", skip.can_skip, skip.skip),
        Action("PARTITION", partition.can_partition, partition.partition),
        Action("ATOMIC", atomic.can_atomic, atomic.atomic),
        Action("TILE_UNIT", tile_unit.can_use_tiles, tile_unit.use_tiles),
        Action("TC", back_to_back_gemm.can_use, back_to_back_gemm.use),
        Action("WARP_SPECIALIZE", warp_specialize.can_warp_specialize, warp_specialize.warp_specialize),
        Action("CLUSTER", cluster.can_cluster, cluster.cluster),
        Action("PERSISTENT", warp_specialize.can_be_persistent, warp_specialize.persistent),
    )
}


def outcome(loops: Loops, opt: Opt, machine: Machine) -> UOp | str:
    """The kernel after an action, or the reason why it is not allowed."""
    action = ACTIONS.get(opt.name)
    if action is None:
        return f"there is no action {opt.name}; there are {', '.join(ACTIONS)}"
    reason = (
        warp_specialize.refuses(loops, opt)
        or action.condition(loops, opt, machine)
        or scans.refuses(loops, opt)
        or atomic.refuses(loops, opt)
    )
    if reason is not None:
        return reason
    new = action.change(loops, opt)
    reason = crossing(new, machine) if len(new.src) > 1 else None
    return recorded(new, applied(loops.ast), opt) if reason is None else reason


def can(ast: UOp, opt: Opt, machine: Machine) -> str | None:
    """Why an action is not allowed; None if it is."""
    found = outcome(loops_of(ast), opt, machine)
    return found if isinstance(found, str) else None


def apply(ast: UOp, opt: Opt, machine: Machine) -> UOp:
    """The kernel after an action; an OptError if it is not allowed."""
    found = outcome(loops_of(ast), opt, machine)
    if isinstance(found, str):
        raise OptError(f"{opt} is not possible: {found}")
    tell(opt, ast, found)
    return found


def tell(opt: Opt, before: UOp, after: UOp) -> None:
    """Says to whoever listens that an action was applied."""
    if current() is not None:
        report(By("action", str(opt), place=place_of(ACTIONS[opt.name].change)), before, after)


_THREADS = (AxisKind.LOCAL, AxisKind.WARP)


def crossing(ast: UOp, machine: Machine) -> str | None:
    """Why the loops of the effects cannot be written as one nest; None if they can.

    Effects share loops from the outside in: what two of them have in common must be outermost in both. The
    blocks of a grid and their threads are around all others, whatever their numbers.
    """
    innermost = frozenset(scan_loops(toposort(ast)))
    blocks: frozenset[UOp] = frozenset()
    if machine.has_grid:
        ends = [effect for effect in ast.src if effect.op is Ops.END]
        loops = [r for effect in ends for r in effect.src[1:] if r.arg[1] in _THREADS]
        blocks = frozenset((*loops, *(r for r in grid_loops(ast) if r.src[0].op is Ops.CONST)))
    nests = [_nest(effect, innermost, blocks) for effect in ast.src if effect.op is Ops.END]
    around: dict[UOp, tuple[UOp, ...]] = {}  # all nests have one order, so the same loops must come before
    for nest in nests:
        for depth, r in enumerate(nest):
            if around.setdefault(r, tuple(nest[:depth])) != tuple(nest[:depth]):
                return "loops that two effects share would not be outermost in both"
    return None


def _nest(effect: UOp, innermost: frozenset[UOp], blocks: frozenset[UOp]) -> list[UOp]:
    """The loops of an effect, outer ones first; lanes are no loops, and blocks and threads none here."""
    loops = [r for r in effect.src[1:] if r.arg[1] not in LANE_KINDS and r not in blocks]
    return sorted(loops, key=lambda r: (r in innermost, r.arg[1] is not AxisKind.THREAD, r.arg[0]))


def apply_all(ast: UOp, opts: Iterable[Opt], machine: Machine) -> UOp:
    """The kernel after several actions."""

    def after() -> UOp:
        done = ast
        for opt in opts:
            done = apply(done, opt, machine)
        return done

    return observed(STAGE, ast, after)
