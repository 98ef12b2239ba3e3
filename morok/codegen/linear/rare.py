"""Stage 21a, rare choices: what is hardly ever needed is computed under a branch.

    v = WHERE(c, far, near), rare   →   v ← near;  IF any(c): …far…;  v ← WHERE(c, far, near);  ENDIF

Functions with a range reduction have a cheap way for arguments that are small and a long one for the others.
Without a branch every element pays for both. Only what nothing but the far side needs moves under the
branch, and only arithmetic: it has no effects, so it may run later, or not at all. Choices by the same
condition share a branch.

    v = WHERE(c and e, far, near)   →   v ← near;  IF e: …c…;  v ← WHERE(c, far, near);  ENDIF

So do choices in a loop of matrix units whose conditions have a factor in common that is the same for all
threads of a block: a mask, which shows all of a tile unless that lies at its edge.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from morok.dtype import AddrSpace, PtrDType, bool_, int64, void
from morok.ir.build import RARE, define_reg
from morok.ir.matrix import Products
from morok.ir.node import UOp, const, make, toposort
from morok.ir.ops import Op, Ops

_LEAST = 8  # instructions that a branch must save to be worth its price
_OPENS = frozenset((Ops.RANGE, Ops.IF))
_CLOSES = frozenset((Ops.END, Ops.ENDIF))
_SIDES: dict[Op, int] = {Ops.AND: 2, Ops.OR: 1}  # the side of a choice that one part alone decides for
_WRITES = _OPENS | _CLOSES | {Ops.STORE, Ops.BARRIER, Ops.MBARRIER, Ops.ASYNC_COPY, Ops.ASYNC_WAIT}
_LANES = frozenset((Ops.GEP, Ops.VECTORIZE, Ops.CAT))


def _is_pure(node: UOp) -> bool:
    return node.op.is_alu or node.op in _LANES


def rare_stage(root: UOp, ctx: Any) -> UOp:
    """LINEAR without rare choices."""
    units = ctx is not None and ctx.machine.has_grid and any(n.op is Ops.WMMA for n in root.src)
    marked = any(n.op is Ops.WHERE and n.arg == RARE for n in root.src)
    if not units and not marked:
        return root
    lists = _Lists(root.src)
    groups = [*lists.groups(), *(lists.masks() if units else ())]
    if not groups and not marked:
        return root
    return make(Ops.LINEAR, void, tuple(_Writer(lists, groups).write()))


class _Group:
    """Rare choices by one condition in one loop, which of their sides is near, and what only others need."""

    __slots__ = ("choices", "condition", "far", "near")

    def __init__(self, condition: UOp, choices: list[UOp], far: list[UOp], near: int = 2) -> None:
        self.condition = condition
        self.choices = choices
        self.far = far
        self.near = near


class _Lists:
    """Where the instructions stand and who uses them."""

    def __init__(self, instructions: tuple[UOp, ...]) -> None:
        self.instructions = instructions
        self.home: dict[UOp, int] = {}  # the number of the loop or branch that an instruction stands in
        self.users: dict[UOp, list[UOp]] = {}
        open_, count = [0], 0
        for node in instructions:
            if node.op in _CLOSES:
                open_.pop()
            self.home[node] = open_[-1]
            if node.op in _OPENS:
                count += 1
                open_.append(count)
            for s in node.src:
                self.users.setdefault(s, []).append(node)

    def groups(self) -> list[_Group]:
        found: dict[tuple[int, UOp], list[UOp]] = {}
        for node in self.instructions:
            if node.op is Ops.WHERE and node.arg == RARE:
                found.setdefault((self.home[node], node.src[0]), []).append(node)
        result = []
        for (home, condition), choices in found.items():
            apart = self._independent(choices, [(c.src[0], c.src[2]) for c in choices])
            far = self._only_for(apart, home)
            if len(far) >= _LEAST:
                result.append(_Group(condition, apart, far))
        return result

    def masks(self) -> list[_Group]:
        """Choices whose conditions share a factor that is the same for a block, in loops of units."""
        loops = {self.home[n] for n in self.instructions if n.op is Ops.WMMA} - {0}
        found: dict[tuple[int, UOp, int], list[UOp]] = {}
        for node in self.instructions:
            if node.op is Ops.WHERE and self.home[node] in loops and node.dtype.lanes == 1:
                factor = self._common(node.src[0], self.home[node])
                if factor is not None:
                    found.setdefault((self.home[node], *factor), []).append(node)
        result = []
        for (home, condition, near), left in found.items():
            every = self._only_for(left, home, near, frozenset(toposort(condition)))
            groups = []
            while left:
                choices = self._independent(left, [(condition, c.src[near]) for c in left], True)
                under = frozenset(toposort(*(s for c in choices for s in c.src)))
                groups.append(_Group(condition, choices, [n for n in every if n in under], near))
                left = [c for c in left if c not in choices]
            if all(len(g.far) >= _LEAST for g in groups):  # or what moves would be missing
                result += groups
        return result

    def _common(self, condition: UOp, home: int) -> tuple[UOp, int] | None:
        """The part of a condition that all threads agree in, and the side that is taken where it fails."""
        if condition.op not in _SIDES:
            return None
        op, near = condition.op, _SIDES[condition.op]
        for part in toposort(condition, stop=lambda x: x.op is not op):
            if part.op is op or (op is Ops.OR and part.op is not Ops.NOT):
                continue
            asked = part if op is Ops.AND else part.src[0]
            if self.home.get(asked) == home and all(map(_is_uniform, toposort(asked))):
                return asked, near
        return None

    def _reads(self, first: int) -> frozenset[UOp]:
        """What is read from there on before anything is written."""
        found: set[UOp] = set()
        for node in self.instructions[first:]:
            if node.op in _WRITES and not _is_kept(node):
                break
            if node.op is Ops.INDEX or (node.op is Ops.LOAD and not _is_kept(node)):
                found.add(node)
        return frozenset(found)

    def _independent(
        self, choices: list[UOp], needs: list[tuple[UOp, UOp]], with_reads: bool = False
    ) -> list[UOp]:
        """Those whose condition and near side need none of the others, and but arithmetic from below."""
        first = self.instructions.index(choices[0])
        before = set(self.instructions[:first])
        reads = self._reads(first) if with_reads else frozenset()
        kept: list[UOp] = []
        for choice, needed in zip(choices, needs, strict=True):
            stack, seen = [*needed], set()
            fits = True
            while stack and fits:
                node = stack.pop()
                if node in seen or node in before or node.op in (Ops.CONST, Ops.VCONST):
                    continue
                seen.add(node)
                fits = (_is_pure(node) or node in reads) and node not in choices
                stack += node.src
            if fits:
                kept.append(choice)
        return kept

    def _only_for(
        self, choices: list[UOp], home: int, near: int = 0, asked: frozenset[UOp] = frozenset()
    ) -> list[UOp]:
        """What stands in the same loop and is used by the far sides alone, in the order of the list; where a
        part of the condition is asked for before, the rest of it as well."""
        rare: set[UOp] = set()
        far = []
        for node in reversed(self.instructions):
            if self.home[node] != home or not _is_pure(node) or node in choices or node in asked:
                continue
            users = self.users.get(node, ())
            if users and all(u in rare or _is_far_of(node, u, choices, near) for u in users):
                rare.add(node)
                far.append(node)
        far.reverse()
        return far


def _is_kept(node: UOp) -> bool:
    """Whether it is a thread's own business: registers, or products."""
    place = node.src[0].dtype if node.src else node.dtype
    return isinstance(node.arg, Products) or (isinstance(place, PtrDType) and place.space is AddrSpace.REG)


def _is_far_of(node: UOp, user: UOp, choices: Iterable[UOp], near: int) -> bool:
    if near:
        return user in choices and node is not user.src[near]
    return user in choices and node is user.src[1] and node is not user.src[0] and node is not user.src[2]


def _is_uniform(node: UOp) -> bool:
    """Whether a node makes no difference between the threads of a block."""
    if node.op is Ops.SPECIAL:
        return str(node.arg).startswith("gidx")
    return node.op.is_alu or node.op in (Ops.CONST, Ops.RANGE, Ops.DEFINE_VAR)


class _Writer:
    """The list anew."""

    def __init__(self, lists: _Lists, groups: list[_Group]) -> None:
        self.lists = lists
        self.group_of = {choice: g for g in groups for choice in g.choices}
        self.moved = {node for g in groups for node in g.far}
        self.out: list[UOp] = []
        self.written: set[UOp] = set()
        self.renamed: dict[UOp, UOp] = {}
        self.registers = 0

    def write(self) -> list[UOp]:
        for node in self.lists.instructions:
            if node not in self.moved:
                self.instruction(node)
        return self.out

    def put(self, node: UOp) -> UOp:
        self.out.append(node)
        return node

    def instruction(self, node: UOp) -> None:
        if node in self.written:
            return
        group = self.group_of.get(node)
        if group is not None:
            self.branch(group)
            return
        self.written.add(node)
        src = tuple([self.renamed.get(s, s) for s in node.src])
        if node.op is Ops.WHERE and node.arg == RARE:
            new = make(Ops.WHERE, node.dtype, src, None, node.origin)
        else:
            new = node if src == node.src else node.replace(src)
        self.renamed[node] = self.put(new)

    def needed(self, node: UOp) -> None:
        """An instruction that stands further down, with what it needs."""
        stack = [node]
        while stack:
            node = stack[-1]
            pending = [
                s for s in node.src if s not in self.written and s in self.lists.home and s not in self.moved
            ]
            if pending and node not in self.written:
                stack += pending
                continue
            stack.pop()
            self.instruction(node)

    def branch(self, group: _Group) -> None:
        for choice in group.choices:
            self.written.add(choice)
        outer = {s for n in (*group.choices, *group.far) for s in n.src} | {group.condition}
        outer -= self.moved
        for source in outer:
            if source in self.lists.home:
                self.needed(source)
        places = []
        for choice in group.choices:
            lanes = choice.dtype.lanes
            register = self.put(define_reg(choice.dtype.scalar, lanes, f"{RARE}{self.registers}"))
            self.registers += 1
            pointer = choice.dtype.ptr(lanes, AddrSpace.REG)
            place = make(Ops.INDEX, pointer, (register, const(int64, 0)))
            places.append(self.put(place))
            near = choice.src[group.near]
            self.put(make(Ops.STORE, void, (place, self.renamed.get(near, near))))
        condition = self.renamed.get(group.condition, group.condition)
        if condition.dtype.lanes > 1:
            condition = self.put(make(Ops.VREDUCE, bool_, (condition,), Ops.OR))
        opened = self.put(make(Ops.IF, void, (condition,)))
        for node in group.far:  # another branch may have it as well
            self.written.discard(node)
            self.instruction(node)
        for choice, place in zip(group.choices, places, strict=True):
            src = tuple([self.renamed.get(s, s) for s in choice.src])
            value = self.put(make(Ops.WHERE, choice.dtype, src, None, choice.origin))
            self.put(make(Ops.STORE, void, (place, value)))
        self.put(make(Ops.ENDIF, void, (opened,)))
        for choice, place in zip(group.choices, places, strict=True):
            self.renamed[choice] = self.put(make(Ops.LOAD, choice.dtype, (place,)))
