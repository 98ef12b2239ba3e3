"""Stages 20 to 22: from a graph to a list.

Nothing in the graph says when a node runs, except for what it depends on. `end_rules` make the nesting of
loops explicit: one END per range, inner ones inside. `linearize` then puts every node into the innermost loop
it depends on and no deeper (so it runs as seldom as possible: loop-invariant code motion), and orders the
nodes of each loop: what takes long and is needed first comes first, so that little is kept alive across a
loop. On a grid, where nothing but other threads hides the time of a read, the reads of a loop's body come
first in it, as many as registers hold. `guard_stores` adds IF and ENDIF for devices whose stores take no
condition.
"""

from __future__ import annotations

from collections.abc import Collection
from itertools import chain
from typing import Any

from morok.codegen.linear.leave import leave_early
from morok.dtype import void
from morok.errors import CompileError
from morok.ir.bounds import vmax
from morok.ir.infer import ranges
from morok.ir.node import UOp, make, toposort
from morok.ir.ops import AxisKind, Ops
from morok.ir.provenance import place
from morok.machine.machine import Machine
from morok.rewrite.rules import Rules, unproved, why
from morok.rewrite.ruleset import rules
from morok.rewrite.terms import Head

# --- 20: control flow


_OUTERMOST = (AxisKind.THREAD, AxisKind.ROLE)


def _depth_key(r: UOp, closed: Collection[UOp]) -> tuple[int, int, int]:
    """Outer loops first: shared work first of all, then by number; a range inside whatever its end needs of
    those that are closed with it."""
    return (0 if r.arg[1] in _OUTERMOST else 1, sum(s in closed for s in ranges(r)), r.arg[0])


def close_one_by_one(node: UOp) -> UOp | None:
    """END(body, r, c) → END(END(body, c), r)."""
    if len(node.src) <= 2:
        return None
    body = node.src[0]
    closed = node.src[1:]
    for r in sorted(closed, key=lambda r: _depth_key(r, closed), reverse=True):
        body = make(Ops.END, void, (body, r), None, node.origin)
    return body


@rules("codegen.control_flow")
def end_rules() -> Rules:
    """One END per loop."""
    # for r, c: body = for r: (for c: body)
    yield (
        "end",
        Head(Ops.END).any() >> close_one_by_one,
        why("any number of loops, ordered by their kinds"),
        unproved("restructures loops"),
    )


# --- 21: linearise


class _Block:
    """A loop body, or the whole kernel: its nodes, and the loops directly inside."""

    __slots__ = ("end", "level", "loop", "needs", "nodes", "parent")

    def __init__(self, loop: UOp | None, end: UOp | None) -> None:
        self.loop = loop
        self.end = end
        self.parent: _Block | None = None
        self.level = 0  # the number of loops around it and itself
        self.nodes: dict[UOp, None] = {}
        self.needs: dict[UOp, None] = {}  # what the loop as a whole uses from outside


_SILENT = frozenset((Ops.GROUP, Ops.SINK))
READ_AHEAD = 256  # bytes of a thread's registers that reads at the beginning of a loop's body may fill


def linearize(root: UOp, ctx: Any) -> UOp:
    """SINK(effects) → LINEAR(instructions)."""
    order = toposort(root)
    blocks, top = _blocks(order)
    home = _homes(order, blocks, top)
    _fill(order, home, blocks)
    instructions: list[UOp] = []
    written = _written(order) if ctx is not None and ctx.machine.has_grid else None
    _emit(top, home, blocks, instructions, written)
    return make(Ops.LINEAR, void, tuple(instructions))


def _blocks(order: list[UOp]) -> tuple[dict[UOp, _Block], _Block]:
    """A block per range, with the blocks around it."""
    top = _Block(None, None)
    blocks: dict[UOp, _Block] = {}
    for node in order:
        if node.op is Ops.END:
            r = node.src[1]
            if r in blocks:
                raise CompileError(f"range {r.arg} is closed twice", place=place(node))
            blocks[r] = _Block(r, node)
    for block in _outside_in(blocks):
        assert block.end is not None
        block.parent = _innermost(ranges(block.end), blocks, top)
        block.level = block.parent.level + 1
    return blocks, top


def _outside_in(blocks: dict[UOp, _Block]) -> list[_Block]:
    """Blocks after those around them: the level of a loop is known once the loops it lies in are placed."""
    done: dict[UOp, _Block] = {}
    entered: set[UOp] = set()
    stack = list(blocks)
    while stack:
        r = stack[-1]
        block = blocks.get(r)
        if r in done or block is None:
            stack.pop()
            continue
        assert block.end is not None
        pending = [outer for outer in ranges(block.end) if outer not in done and outer in blocks]
        if pending:
            if r in entered:
                raise CompileError(f"range {r.arg} lies inside itself", place=place(block.end))
            entered.add(r)
            if len(stack) > len(blocks) * len(blocks) + 1:
                raise CompileError("loops lie inside each other", place=place(block.end))
            stack += pending
            continue
        stack.pop()
        done[r] = block
    return list(done.values())


def _innermost(open_: frozenset[UOp], blocks: dict[UOp, _Block], top: _Block) -> _Block:
    """The deepest of the loops that a value depends on."""
    best = top
    for r in open_:
        block = blocks.get(r)
        if block is None:
            raise CompileError(f"range {r.arg} is never closed", place=place(r))
        if block.level > best.level:
            best = block
    return best


def _homes(order: list[UOp], blocks: dict[UOp, _Block], top: _Block) -> dict[UOp, _Block]:
    known: dict[frozenset[UOp], _Block] = {}
    home: dict[UOp, _Block] = {}
    for node in order:
        if node.op is Ops.RANGE:
            block = blocks.get(node)
            if block is None:
                raise CompileError(f"range {node.arg} is never closed", place=place(node))
            home[node] = block
            continue
        open_ = node.ranges_
        if open_ is None:
            open_ = ranges(node)
        found = known.get(open_)
        if found is None:
            found = known[open_] = _innermost(open_, blocks, top)
        home[node] = found
    return home


def _fill(order: list[UOp], home: dict[UOp, _Block], blocks: dict[UOp, _Block]) -> None:
    """Nodes into their blocks, and what each loop needs from around it."""
    for node in order:
        inside = mine = home[node]
        is_end = node.op is Ops.END
        if is_end:
            inside = blocks[node.src[1]]
        if node.op is not Ops.RANGE:
            mine.nodes[node] = None
        for s in node.src:
            theirs = home[s]
            if theirs is inside or (is_end and s.op is Ops.RANGE):
                continue
            # the loops around this node, up to the source's own level, wait for the source
            block: _Block | None = inside
            while block is not None and block is not theirs and block.level > theirs.level:
                block.needs[s] = None
                block = block.parent


def _sources(node: UOp, home: dict[UOp, _Block], blocks: dict[UOp, _Block]) -> list[UOp]:
    """What must come before a node in its own block. A loop needs whatever its body needs from outside."""
    mine = home[node]
    if node.op is Ops.END:
        inner = blocks[node.src[1]]
        return [s for s in inner.needs if home[s] is mine and s.op is not Ops.RANGE]
    return [s for s in node.src if home[s] is mine and s.op is not Ops.RANGE]


def _written(order: list[UOp]) -> frozenset[UOp]:
    """The memory that a kernel writes."""
    found = set()
    for node in order:
        if node.op is not Ops.LOAD and node.op is not Ops.INDEX:
            for s in node.src:
                if s.op is Ops.INDEX and s.dtype.is_ptr:
                    found.add(_memory(s))
    return frozenset(found)


def _memory(address: UOp) -> UOp:
    node = address.src[0]
    while node.op is Ops.AFTER:
        node = node.src[0]
    return node


def _emit(
    top: _Block,
    home: dict[UOp, _Block],
    blocks: dict[UOp, _Block],
    out: list[UOp],
    written: frozenset[UOp] | None,
) -> None:
    """Writes blocks outside in. The work of a node is the number of times that the loops below it run.

    With what is `written`, reads of all other memory come first in the body of a loop.
    """
    work = _work(home, blocks)
    stack: list[Any] = [("block", top)]
    orders: dict[int, list[UOp]] = {}
    while stack:
        kind, item = stack.pop()
        if kind == "write":
            out.append(item)
            continue
        block: _Block = item
        nodes = orders.get(id(block)) or _order(block, home, blocks, work, written)
        steps: list[Any] = []
        for node in nodes:
            if node.op is Ops.END:
                steps.append(("write", node.src[1]))
                steps.append(("block", blocks[node.src[1]]))
                steps.append(("write", node))
            elif node.op not in _SILENT:
                steps.append(("write", node))
        stack += reversed(steps)


_FIRST = frozenset(
    (Ops.DEFINE_GLOBAL, Ops.DEFINE_VAR, Ops.DEFINE_LOCAL, Ops.DEFINE_REG, Ops.SPECIAL, Ops.CONST, Ops.VCONST)
)


def _work(home: dict[UOp, _Block], blocks: dict[UOp, _Block]) -> dict[UOp, int]:
    """For each node, how much runs in the loops that must have finished before it: its weight as a source."""
    result: dict[UOp, int] = {}
    for node in home:
        weight = 0
        for s in node.src:
            if result[s] > weight:
                weight = result[s]
        if node.op is Ops.END:
            weight += int(min(vmax(node.src[1]) + 1, 1 << 40))
        result[node] = weight
    return result


def _refuse_cycle(block: _Block, placed: dict[UOp, None], sources: dict[UOp, list[UOp]]) -> None:
    """Loops that need each other would be left out, and all of their work.

    What is left out may be, where only a definition asks for it: how large the grid is the host computes.
    """
    given: set[UOp] = set()
    stack = [s for n in block.nodes if n.op in _FIRST for s in sources[n]]
    while stack:
        node = stack.pop()
        if node not in given:
            given.add(node)
            stack += sources[node]
    for node in block.nodes:
        if node not in placed and node not in given:
            raise CompileError(f"{node.op.name} would have to run before itself", place=place(node))


def _order(
    block: _Block,
    home: dict[UOp, _Block],
    blocks: dict[UOp, _Block],
    work: dict[UOp, int],
    written: frozenset[UOp] | None,
) -> list[UOp]:
    """The nodes of a block, sources first, the heaviest source first. Definitions come before everything."""
    placed: dict[UOp, None] = {n: None for n in block.nodes if n.op in _FIRST}
    sources = {node: _sources(node, home, blocks) for node in block.nodes}
    used = set(chain.from_iterable(sources.values()))
    # roots: what nothing else in the block uses, in the order of the graph
    roots = [n for n in block.nodes if n not in used and n not in placed]
    stack = list(reversed(roots))
    if written is not None and block.loop is not None:
        stack += reversed(_reads_ahead(block, sources, written))
    while stack:
        node = stack[-1]
        if node in placed:
            stack.pop()
            continue
        pending = [s for s in sources[node] if s not in placed]
        if pending:
            pending.reverse()  # the last one is entered first
            if (
                len(pending) > 1 and node.op not in _SILENT
            ):  # effects keep their order: a later one may overwrite what one reads
                pending.sort(key=work.__getitem__)
            stack += pending
            continue
        stack.pop()
        placed[node] = None
    if len(placed) < len(block.nodes):
        _refuse_cycle(block, placed, sources)
    # roles run side by side, so they stand side by side, after what all of them need
    return sorted(placed, key=_is_role) if any(map(_is_role, placed)) else list(placed)


def _reads_ahead(block: _Block, sources: dict[UOp, list[UOp]], written: frozenset[UOp]) -> list[UOp]:
    """The reads of a loop's body that wait for nothing in it but arithmetic, as many as registers hold: first
    those of what no other block reads, which come from farthest away."""
    waits: set[UOp] = set()
    found: list[UOp] = []
    for node in block.nodes:
        if not waits.isdisjoint(sources[node]) or not (node.op.is_alu or node.op in _PLACES):
            waits.add(node)
        elif node.op is Ops.LOAD:
            memory = _memory(node.src[0])
            if memory.op is not Ops.DEFINE_GLOBAL or memory in written:
                waits.add(node)
                continue
            found.append(node)
    if sum(node.dtype.itemsize for node in found) > READ_AHEAD:
        found.sort(key=_is_shared)
        room = READ_AHEAD
        for count, node in enumerate(found):
            room -= node.dtype.itemsize
            if room < 0:
                del found[count:]
                break
    return found if len(found) > 1 else []


def _is_shared(read: UOp) -> bool:
    """Whether all blocks of a grid read the same."""
    return not any(n.op is Ops.SPECIAL and str(n.arg).startswith("gidx") for n in toposort(read.src[0]))


_PLACES = frozenset((Ops.INDEX, Ops.LOAD, Ops.CONST, Ops.VCONST, Ops.GEP, Ops.VECTORIZE))


def _is_role(node: UOp) -> bool:
    return node.op is Ops.END and node.src[1].arg[1] is AxisKind.ROLE


# --- 22: IF and ENDIF


def guard_stores(root: UOp, ctx: Any) -> UOp:
    """STORE under a scalar gate → IF, STORE, ENDIF. Neighbours under the same gate share one IF."""
    machine: Machine = ctx.machine
    if machine.predicated_stores:
        return root
    out: list[UOp] = []
    current: UOp | None = None
    # addresses of guarded stores are written anew beside the store
    gates = {n: gate for n in root.src if n.op is Ops.STORE and (gate := _gate(n)) is not None}
    replaced = {n.src[0] for n in gates}
    if replaced:
        replaced -= {s for n in root.src if n not in gates for s in n.src}
    for node in root.src if gates else ():
        gate = gates.get(node)
        if current is not None and gate is not current and node not in replaced:
            out.append(make(Ops.ENDIF, void, (make(Ops.IF, void, (current,)),)))
            current = None
        if gate is not None:
            if current is None:
                out.append(make(Ops.IF, void, (gate,)))
                current = gate
            where = node.src[0]
            plain = make(Ops.INDEX, where.dtype, where.src[:2])
            out += (plain, node.replace((plain, node.src[1])))
        else:
            out.append(node)
    if current is not None:
        out.append(make(Ops.ENDIF, void, (make(Ops.IF, void, (current,)),)))
    return make(Ops.LINEAR, void, tuple(leave_early(_without_unused(out or list(root.src)))))


def _gate(node: UOp) -> UOp | None:
    """The scalar condition of a STORE."""
    if len(node.src[0].src) < 3:
        return None
    gate = node.src[0].src[2]
    return gate if gate.dtype.lanes == 1 else None


def _without_unused(instructions: list[UOp]) -> list[UOp]:
    """Addresses with a gate that only stores used are gone now."""
    used = {s for n in instructions for s in n.src}
    return [n for n in instructions if n.op is not Ops.INDEX or n in used]
