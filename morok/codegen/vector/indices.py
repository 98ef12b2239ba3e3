"""Vector indices, lane by lane, as a root plus a constant: it decides which lanes lie side by side.

A place such as `r*96 + lanes` becomes the root `r*96` and the offsets 0, 1, 2, …. Sums and constant factors
keep that form without looking at single lanes; anything else is computed and simplified per lane. So are
floats that a place is made of: (x + 1)·5 and x·5 + 5 are two numbers there.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple, final

from morok.codegen.vector.vectors import joined, lane, swizzle
from morok.ir.node import UOp, alu, const, make, toposort
from morok.ir.ops import Ops
from morok.rewrite.engine import rewrite, substitute
from morok.symbolic.sets import symbolic

Root = UOp | None  # None: zero


class Places(NamedTuple):
    """Lane i is `roots[i] + offsets[i]`; a single root stands for all lanes."""

    roots: tuple[Root, ...]
    offsets: tuple[int, ...]

    def root(self, i: int) -> Root:
        return self.roots[0] if len(self.roots) == 1 else self.roots[i]

    def each(self) -> tuple[Root, ...]:
        """The root of every lane."""
        return self.roots * len(self.offsets) if len(self.roots) == 1 else self.roots

    def scalar(self, i: int, like: UOp) -> UOp:
        """Lane i as a node."""
        return join(self.root(i), self.offsets[i], like)


def split(x: UOp) -> tuple[Root, int]:
    """A simplified scalar index as root and constant."""
    if x.op is Ops.CONST:
        return None, x.arg
    if x.op is Ops.ADD and x.dtype.is_int and x.src[1].op is Ops.CONST:
        return x.src[0], x.src[1].arg
    return x, 0


def join(root: Root, offset: int, like: UOp) -> UOp:
    """The node `root + offset`."""
    dtype = like.dtype.scalar
    if root is None:
        return const(dtype, offset)
    return root if offset == 0 else alu(Ops.ADD, root, const(dtype, offset))


def places(x: UOp, known: dict[UOp, Places] | None = None) -> Places:
    """All lanes of an index, with what is known of others. Iterative, bottom-up."""
    done: dict[UOp, Places] = {} if known is None else known
    stack = [x]
    while stack:
        node = stack[-1]
        if node in done:
            stack.pop()
            continue
        pending = [s for s in _operands(node) if s not in done]
        if pending:
            stack += pending
            continue
        stack.pop()
        done[node] = _combine(node, done)
    return done[x]


def _operands(node: UOp) -> tuple[UOp, ...]:
    if node.dtype.lanes == 1:
        return ()
    inner = node.op.is_alu and all(s.dtype.lanes == node.dtype.lanes for s in node.src)
    return node.src if inner or node.op in (Ops.GEP, Ops.CAT) else ()


def _combine(node: UOp, done: dict[UOp, Places]) -> Places:
    n = node.dtype.lanes
    op = node.op
    if op is Ops.CONST:
        return Places((None,), (node.arg,) * n)
    if op is Ops.VCONST:
        return Places((None,), node.arg)
    if n == 1:
        root, offset = split(simplify(lane(node, 0)))
        return Places((root,), (offset,))
    if op is Ops.VECTORIZE:
        return _many(list(node.src))
    if op is Ops.GEP:
        inner = done[node.src[0]]
        roots = inner.roots if len(inner.roots) == 1 else tuple(inner.roots[i] for i in node.arg)
        return Places(roots, tuple(inner.offsets[i] for i in node.arg))
    if op is Ops.CAT:
        parts = [(done[s], s.dtype.lanes) for s in node.src]
        return _shared(
            tuple(p.root(i) for p, lanes in parts for i in range(lanes)),
            tuple(o for p, _ in parts for o in p.offsets),
        )
    if op is Ops.ADD and node.dtype.is_int:
        return _add(node, done[node.src[0]], done[node.src[1]])
    if op is Ops.MUL and node.dtype.is_int:
        scaled = _scale(node, done[node.src[0]], done[node.src[1]])
        if scaled is not None:
            return scaled
    if not _operands(node):
        return _lanes(node)
    operands = [done[s] for s in node.src]
    if any(len(p.roots) == len(set(p.roots)) == n for p in operands):
        # of places that were read no two lie side by side: they are computed as a vector
        return _lanes(node)
    return _many(
        [
            make(
                op,
                node.dtype.scalar,
                tuple(p.scalar(i, s) for p, s in zip(operands, node.src, strict=True)),
                node.arg,
            )
            for i in range(n)
        ]
    )


def _lanes(node: UOp) -> Places:
    """Of a vector of which nothing is known."""
    return _many([make(Ops.GEP, node.dtype.scalar, (node,), (i,)) for i in range(node.dtype.lanes)])


def simplify(x: UOp) -> UOp:
    return rewrite(x, symbolic)


def _many(xs: list[UOp]) -> Places:
    known: dict[UOp, tuple[Root, int]] = {}
    for x in xs:
        if x not in known:
            known[x] = split(simplify(x))
    return _shared(tuple(known[x][0] for x in xs), tuple(known[x][1] for x in xs))


def _shared(roots: tuple[Root, ...], offsets: tuple[int, ...]) -> Places:
    return Places(roots[:1] if all(r is roots[0] for r in roots) else roots, offsets)


def _add(node: UOp, a: Places, b: Places) -> Places:
    lanes = 1 if len(a.roots) == len(b.roots) == 1 else node.dtype.lanes
    known: dict[tuple[Root, Root], tuple[Root, int]] = {}
    sums = []
    for i in range(lanes):
        pair = (a.root(i), b.root(i))
        if pair not in known:
            x, y = pair
            known[pair] = (
                split(simplify(alu(Ops.ADD, x, y)))
                if x is not None and y is not None
                else (y if x is None else x, 0)
            )
        sums.append(known[pair])
    extra = [sums[0][1] if lanes == 1 else sums[i][1] for i in range(node.dtype.lanes)]
    offsets = tuple(p + q + e for p, q, e in zip(a.offsets, b.offsets, extra, strict=True))
    return _shared(tuple(root for root, _ in sums), offsets)


def _scale(node: UOp, a: Places, b: Places) -> Places | None:
    """A product with a constant that is the same in all lanes, or of constants."""
    if a.roots == (None,):
        a, b = b, a
    if b.roots != (None,):
        return None
    if a.roots == (None,):
        return Places((None,), tuple(p * q for p, q in zip(a.offsets, b.offsets, strict=True)))
    factor = b.offsets[0]
    if any(q != factor for q in b.offsets):
        return None
    dtype = node.dtype.scalar
    known: dict[Root, Root] = {None: None}
    for root in a.roots:
        if root is not None and root not in known:
            known[root] = simplify(alu(Ops.MUL, root, const(dtype, factor)))
    split_roots = [split(r) if r is not None else (None, 0) for r in (known[root] for root in a.roots)]
    extra = [split_roots[0][1] if len(a.roots) == 1 else split_roots[i][1] for i in range(node.dtype.lanes)]
    offsets = tuple(p * factor + e for p, e in zip(a.offsets, extra, strict=True))
    return _shared(tuple(r for r, _ in split_roots), offsets)


def factor(x: UOp) -> int:
    """A number that divides every value of an index, as large as its form tells; 0 for what is always 0."""
    done: dict[UOp, int] = {}
    for node in toposort(x):
        below = [done[s] for s in node.src]
        if node.op is Ops.CONST:
            done[node] = abs(int(node.arg)) if node.dtype.is_int else 1
        elif node.op is Ops.MUL:
            done[node] = below[0] * below[1]
        elif node.op in (Ops.ADD, Ops.SUB, Ops.MAX, Ops.MIN):
            done[node] = math.gcd(*below)
        elif node.op is Ops.WHERE:
            done[node] = math.gcd(*below[1:])
        elif node.op is Ops.NEG:
            done[node] = below[0]
        elif node.op is Ops.FLOORDIV and node.src[1].op is Ops.CONST and node.src[1].arg:
            divisor = abs(int(node.src[1].arg))
            done[node] = below[0] // divisor if below[0] % divisor == 0 else 1
        elif node.op is Ops.FLOORMOD:
            done[node] = math.gcd(*below)  # x - q*y
        else:
            done[node] = 1
    return done[x]


def lane_conditions(gate: UOp) -> list[UOp]:
    """The condition of each lane. Lanes that agree have one and the same, a plain expression.

    Where a vector of conditions has been cut into registers, a lane that nobody agrees with is taken out of
    its register: to compute it by itself would cost more.
    """
    return Conditions(gate).of(range(gate.dtype.lanes))


@final
class Conditions:
    """The conditions of lanes, each made when somebody asks for it.

    Those of padding around a picture all differ, and are long. Whether lanes agree is then known from two of
    them, and nobody needs the rest: a mask says it for all.
    """

    __slots__ = ("_found", "_gate", "_lanes", "_where")

    def __init__(self, gate: UOp) -> None:
        self._gate = gate
        self._lanes = _Lanes()
        self._found: dict[int, UOp] = {}
        self._where: list[tuple[UOp, int]] = []  # register and lane, where there are registers
        if gate.op is Ops.CAT:
            self._where = [(part, i) for part in gate.src for i in range(part.dtype.lanes)]
            self._find_shared()

    def of(self, lanes: Sequence[int]) -> list[UOp]:
        """The conditions of some lanes."""
        found = self._found
        if self._where:
            for i in lanes:
                if i not in found:
                    found[i] = rounded(self._lanes.taken(*self._where[i]))
        elif not found:
            found.update(enumerate(map(self._lanes.rounded, self._lanes.of(self._gate))))
        return [found[i] for i in lanes]

    def __getitem__(self, lane: int) -> UOp:
        return self.of((lane,))[0]

    def alike(self, lanes: Sequence[int]) -> bool:
        """Whether some lanes have one condition: three of them tell, if they differ."""
        some = (lanes[0], lanes[len(lanes) // 2], lanes[-1])
        if self._where:
            asked = self.of(some)
        elif self._found or len(lanes) <= len(some):
            asked = []
        else:  # looked at by themselves, conditions may have another form: it does not say what is alike
            asked = list(map(rounded, self._lanes.of(push_lanes(self._gate, list(some)))))
        if any(x is not asked[0] for x in asked):
            return False
        first, *others = self.of(lanes)
        return all(x is first for x in others)

    def _find_shared(self) -> None:
        """Conditions that lanes of registers share. If neighbours at both ends differ there are none."""
        lanes, where = self._lanes, self._where

        def alike(i: int) -> bool:
            one, other = (rounded(lanes.simplified(lane(*where[k]))) for k in (i, i + 1))
            return one is other

        if alike(0) or alike(len(where) - 2):
            plain = [lanes.rounded(x) for part in self._gate.src for x in lanes.of(part)]
            shared = Counter(plain)
            self._found = {i: x for i, x in enumerate(plain) if shared[x] > 1}


def push_lanes(x: UOp, lanes: list[int]) -> UOp:
    """Lanes of a condition, computed from lanes of its operands: cheaper than cutting a wide one up.

    So are lanes from here and there of a condition that has been cut into registers: taken out of these one
    by one, the mask of a window of two strides was two instructions for each lane.
    """
    done: dict[UOp, UOp] = {}
    stack = [x]
    apart = 4 * sum(other != one + 1 for one, other in pairwise(lanes)) > len(lanes)
    while stack:
        node = stack[-1]
        if node in done:
            stack.pop()
            continue
        if apart and node.op is Ops.CAT and (whole := _before_cut(node)) is not None:
            if whole in done:
                done[node] = done[whole]
            else:
                stack.append(whole)
            continue
        inner = node.op.is_alu and all(s.dtype.lanes == node.dtype.lanes for s in node.src)
        pending = [s for s in node.src if s not in done] if inner else []
        if pending:
            stack += pending
            continue
        stack.pop()
        if inner:
            dtype = node.dtype.scalar.vec(len(lanes))
            done[node] = make(node.op, dtype, tuple(done[s] for s in node.src), node.arg)
        else:
            done[node] = swizzle(node, lanes)
    return done[x]


def _before_cut(cat: UOp) -> UOp | None:
    """What has been cut into registers: the op that they all are, on what their operands are parts of."""
    first = cat.src[0]
    if not first.op.is_alu:
        return None
    for part in cat.src:
        if part.op is not first.op or part.arg != first.arg or len(part.src) != len(first.src):
            return None
        if any(s.dtype.lanes != part.dtype.lanes for s in part.src):
            return None
    columns = [joined(column) for column in zip(*[part.src for part in cat.src], strict=True)]
    return make(first.op, cat.dtype, tuple(columns), first.arg)


@final
class _Lanes:
    """The lanes of vectors of conditions as plain expressions, simplified, also where operands have been cut
    into lanes before. Each vector is gone through once, and each combination of operands once."""

    __slots__ = ("_found", "_opened", "_places", "_rounded", "_steps")

    def __init__(self) -> None:
        self._found: dict[UOp, tuple[UOp, ...]] = {}
        self._places: dict[UOp, Places] = {}
        self._opened: dict[UOp, UOp] = {}
        self._rounded: dict[UOp, UOp] = {}
        self._steps: dict[UOp, int] = {}

    def of(self, x: UOp) -> tuple[UOp, ...]:
        """All lanes of x."""
        found = self._found
        stack = [x]
        while stack:
            node = stack[-1]
            if node in found:
                stack.pop()
                continue
            pending = [s for s in self._operands(node) if s not in found]
            if pending:
                stack += pending
                continue
            stack.pop()
            found[node] = self._lanes(node)
        return found[x]

    @staticmethod
    def _operands(node: UOp) -> tuple[UOp, ...]:
        return () if node.dtype.is_index else _operands(node)

    def _lanes(self, node: UOp) -> tuple[UOp, ...]:
        n, op, found = node.dtype.lanes, node.op, self._found
        if op is Ops.CONST:
            return (node if n == 1 else const(node.dtype.scalar, node.arg),) * n
        if op is Ops.VCONST:
            return tuple([const(node.dtype.scalar, value) for value in node.arg])
        if n == 1:
            return (self.simplified(lane(node, 0)),)
        if node.dtype.is_index:
            where = places(node, self._places)
            joined: dict[tuple[Root, int], UOp] = {}
            for root, offset in zip(where.each(), where.offsets, strict=True):
                if (root, offset) not in joined:
                    joined[root, offset] = join(root, offset, node)
            return tuple([joined[pair] for pair in zip(where.each(), where.offsets, strict=True)])
        if op is Ops.GEP:
            return tuple([found[node.src[0]][i] for i in node.arg])
        if op is Ops.CAT:
            return tuple([x for s in node.src for x in found[s]])
        if not self._operands(node):
            return tuple([self.simplified(lane(node, i)) for i in range(n)])
        scalar, known = node.dtype.scalar, dict[tuple[UOp, ...], UOp]()
        rows = list(zip(*[found[s] for s in node.src], strict=True))
        if op is Ops.CMPLT and node.src[0].dtype.is_index:
            rows = [self._reached(*row) for row in rows]
        for row in rows:
            if row not in known:
                known[row] = self.simplified(make(op, scalar, row, node.arg))
        return tuple([known[row] for row in rows])

    def _reached(self, left: UOp, right: UOp) -> tuple[UOp, UOp]:
        """The sides of a comparison, its constant rounded as `rounded` does it: before 48 lanes of a tile are
        simplified one by one that are all the same condition."""
        if left.op is Ops.CONST:
            root, offset = split(right)
            if root is not None and (step := self._step(root)) > 1:
                return const(left.dtype, (int(left.arg) - offset) // step * step), root
        elif right.op is Ops.CONST:
            root, offset = split(left)
            if root is not None and (step := self._step(root)) > 1:
                return root, const(right.dtype, -(-(int(right.arg) - offset) // step) * step)
        return left, right

    def _step(self, root: UOp) -> int:
        found = self._steps.get(root)
        if found is None:
            found = self._steps[root] = factor(root)
        return found

    def taken(self, part: UOp, i: int) -> UOp:
        """A lane that is taken out of a register, as far as there is one."""
        found = lane(make(Ops.CAT, part.dtype, (part,)), i) if part.dtype.lanes > 1 else part
        if found.op is not Ops.GEP:
            return self.simplified(found)
        register = found.src[0]
        if register not in self._opened:
            self._opened[register] = self.simplified(register)
        return simplify(make(Ops.GEP, found.dtype, (self._opened[register],), found.arg))

    def simplified(self, x: UOp) -> UOp:
        """With lanes of places inside of it opened."""
        mapping = {
            n: lane(n.src[0], n.arg[0])
            for n in toposort(x)
            if n.op is Ops.GEP and len(n.arg) == 1 and n.dtype.is_index
        }
        return simplify(substitute(x, mapping) if mapping else x)

    def rounded(self, x: UOp) -> UOp:
        """`rounded`, once for each."""
        found = self._rounded.get(x)
        if found is None:
            found = self._rounded[x] = rounded(x)
        return found


def rounded(gate: UOp) -> UOp:
    """A condition with its constants rounded to what the other side can reach: equal conditions look alike.

    x*8 + y*64 < 997 is x*8 + y*64 < 1000, for neither is a value in between.
    """
    if gate.op is Ops.AND and gate.dtype.is_bool:
        return gate.replace(tuple([rounded(s) for s in gate.src]))
    if gate.op is not Ops.CMPLT or not gate.src[0].dtype.is_index or gate.dtype.lanes > 1:
        return gate
    left, right = gate.src
    if right.op is Ops.CONST and (step := factor(left)) > 1:
        return gate.replace((left, const(right.dtype, -(-int(right.arg) // step) * step)))
    if left.op is Ops.CONST and (step := factor(right)) > 1:
        return gate.replace((const(left.dtype, int(left.arg) // step * step), right))
    return gate
