"""Which writes run as one kernel: outputs over the same loops that belong together.

Two ways of belonging. A write that reads another's result only at the place where it is made takes it from
there: the value is stored and used in one go (an optimiser's moments and the parameter they update). And
writes of one shape that nobody makes wait are put side by side (horizontal fusion) if they are element-wise,
or if they reduce the same memory: fewer launches, and shared inputs are read once. Chains of products that
begin with the same one are one kernel where a thread can hold all their results: it is computed once then.

A group must not wait for itself through others, must not write one memory twice, and its effects must be able
to run one after the other. What fails these tests stays apart.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import final

from morok.ir.infer import Shape
from morok.ir.memory import base_of
from morok.ir.node import UOp, toposort
from morok.ir.ops import Ops
from morok.machine.devices import machine_of
from morok.schedule.contraction import contraction_at
from morok.schedule.costs import code_of, elements
from morok.schedule.graph.attention.chain import chain_of, holds_all
from morok.schedule.graph.attention.one_kernel import first_products, statistics_of
from morok.schedule.graph.attention.score_places import is_chain
from morok.schedule.indexing import known_shape
from morok.schedule.plan.detours import Detours
from morok.schedule.plan.kernels import lower, normal_form
from morok.schedule.plan.order import CyclicOrder, Reads, levels
from morok.schedule.split import KernelWrite, plain

MAX_MEMORY = 64  # buffers of a kernel that stores several outputs
# Operations of such a kernel, once ops that devices lack are written out. Equal writes that stay apart are
# one kernel, compiled once and run several times; together they are so many times the code.
MAX_CODE = 512


@final
@dataclass(eq=False)
class Facts:
    """What grouping asks about a write."""

    shape: Shape
    in_place: set[KernelWrite] = field(default_factory=set)  # results read only where they are made
    elsewhere: set[KernelWrite] = field(
        default_factory=set
    )  # results read from memory, so after they are there
    reduces: bool = False
    is_product: bool = False  # a reduction that uses its inputs many times over
    scores: UOp | None = None  # the one product whose results are reduced, the largest of them among others
    firsts: frozenset[UOp] = frozenset()  # products whose results are multiplied, or reduced
    is_alone: bool = False  # its loops are no others': rows put in place one by one, running sums, or nothing
    is_chain: bool = False  # two products in a chain
    code: int = 0  # operations that it computes


def group_writes(
    writes: Sequence[KernelWrite],
    waits: dict[KernelWrite, set[KernelWrite]],
    reads: dict[KernelWrite, Reads],
    wanted: Collection[UOp],
) -> list[list[KernelWrite]]:
    """The writes of each kernel, in the order of its effects. `wanted` memory outlives the schedule."""
    by_done = {write.done: write for write in writes}
    facts = {write: _facts(write, by_done) for write in writes}
    readers: dict[KernelWrite, int] = {}
    for write in writes:
        for maker in reads[write].after:
            readers[maker] = readers.get(maker, 0) + 1
    pairs = [
        (maker, write)
        for write in writes
        for maker in sorted(facts[write].in_place, key=lambda d: d.number)
        # What only one kernel reads was kept to relieve that kernel.
        if readers[maker] > 1 or base_of(maker.target) in wanted
    ]
    groups = _joined(pairs, lambda doubtful: _Groups(writes, waits, reads, facts, doubtful))
    groups.chains_together()
    groups.side_by_side()
    return groups.in_order()


def _joined(
    pairs: Sequence[tuple[KernelWrite, KernelWrite]], start: Callable[[Collection[KernelWrite]], _Groups]
) -> _Groups:
    """The groups that makers and users form, pair by pair.

    Whether effects can run one after the other is seen only in a lowered kernel, and lowering a group at each
    of its pairs takes the square of its length: a loop of a program, written out, is one long group. What is
    safe is so without some of its members, too, so a group is lowered once, at its end. If it turns out
    unsafe, all begins anew, and its members are looked at pair by pair.
    """
    doubtful: set[KernelWrite] = set()
    while True:
        groups = start(doubtful)
        for maker, user in pairs:
            groups.join(maker, user)
        unsafe = groups.unsafe()
        if not unsafe:
            return groups
        doubtful.update(unsafe)


def _facts(write: KernelWrite, by_done: dict[UOp, KernelWrite]) -> Facts:
    """Walks a write's value: what is read at its own place, and what is reduced."""
    sizes = known_shape(write.target)
    inside = toposort(write.value, stop=_is_made)
    runs = any(n.op is Ops.SCAN_AXIS for n in inside)
    chained = is_chain(inside, machine_of(write.device))
    alone = write.places is not None or 0 in sizes or runs or chained
    code = sum(code_of(n.op) for n in inside if n.op.is_alu)
    found = Facts(sizes, is_alone=alone, is_chain=chained, code=code)
    if write.kind == "kernel" and (chained or not alone) and machine_of(write.device).attention is not None:
        found.firsts = first_products(inside)
    if write.kind != "kernel" or found.is_alone:
        return found
    elsewhere = found.elsewhere
    loops = inputs = 0
    seen: set[tuple[UOp, bool]] = set()
    stack = [(write.value, True)]
    while stack:
        item = stack.pop()
        if item in seen:
            continue
        seen.add(item)
        node, here = item
        if node.op is Ops.AFTER:
            makers = [by_done[t] for t in node.src[1:]]
            whole = len(makers) == 1 and makers[0].kind == "kernel"
            whole = whole and plain(makers[0].target) is plain(node.src[0])
            (found.in_place if here and whole else elsewhere).update(makers)
            inputs += elements(known_shape(node))
            continue
        if node.op is Ops.PARAM:
            inputs += int(node.arg[1])
        if node.op is Ops.REDUCE_AXIS:
            found.reduces = True
            loops = max(loops, elements(known_shape(node.src[0])))
        stays = here and node.op.is_alu
        stack += [(s, stays) for s in node.src]
    found.in_place -= elsewhere
    found.is_product = loops > 2 * max(inputs, 1)
    if found.is_product:
        found.scores = statistics_of(inside)
    elif found.reduces and machine_of(write.device).grid is None:
        # a few rows beside parts of one matrix, too: a processor walks a matrix in one way for one result
        found.is_product = any(contraction_at(n) is not None for n in inside)
    return found


def _is_made(node: UOp) -> bool:
    """Whether another write computes it."""
    return node.op is Ops.AFTER


@final
class _Groups:
    """A partition of the writes that is made coarser step by step."""

    def __init__(
        self,
        writes: Sequence[KernelWrite],
        waits: dict[KernelWrite, set[KernelWrite]],
        reads: dict[KernelWrite, Reads],
        facts: dict[KernelWrite, Facts],
        doubtful: Collection[KernelWrite],
    ) -> None:
        self.doubtful = doubtful  # writes whose groups are lowered at every pair
        self.writes = writes
        self.waits = waits
        self.reads = reads
        self.facts = facts
        self.members: dict[KernelWrite, list[KernelWrite]] = {write: [write] for write in writes}
        self.detours = Detours(writes, waits, self.members)

    def memory(self, group: Sequence[KernelWrite]) -> set[UOp]:
        found: set[UOp] = set()
        for write in group:
            found.add(base_of(write.target))
            found.update(self.reads[write].memory)
        return found

    def join(self, maker: KernelWrite, user: KernelWrite) -> None:
        """A maker and the user that takes its value on the spot become one kernel, if they may."""
        first, second = self.members[maker], self.members[user]
        if (
            first is second
            or self.facts[maker].shape != self.facts[user].shape
            or maker.device != user.device
            or self.facts[maker].is_alone
            or self.facts[user].is_chain
            or self.loses_its_tile(maker, user)
        ):
            return
        together = [*second, *first]  # users store first: they may read what makers overwrite
        if any(not self.facts[d].elsewhere.isdisjoint(together) for d in together):
            return
        if any(self.facts[d].reduces for d in first) and any(self.facts[d].reduces for d in second):
            return
        if not self.fits(together) or (between := self.detours.between(first, second)) is None:
            return
        for order in (together, [*first, *second]):
            if self.is_trusted(order) or lower(normal_form(order).sink).is_safe:
                self.detours.merged(first, second, order, between)
                self.merge(order)
                return

    def is_trusted(self, group: Sequence[KernelWrite]) -> bool:
        return not any(write in self.doubtful for write in group)

    def unsafe(self) -> list[KernelWrite]:
        """The members of groups that were trusted and should not have been."""
        groups = [g for g in self.in_order() if len(g) > 1 and self.is_trusted(g)]
        return [write for g in groups if not lower(normal_form(g).sink).is_safe for write in g]

    def chains_together(self) -> None:
        """Chains of products that begin with the same product become one kernel, which computes it once; and
        what is made of the maximum and the sum of a row is stored beside what they weigh."""
        chains = [d for d in self.writes if self.facts[d].firsts]
        for n, user in enumerate(chains):
            for maker in chains[:n]:
                mine, other = self.facts[maker], self.facts[user]
                if (
                    self.members[maker] is not self.members[user]
                    and maker.device == user.device
                    and not mine.firsts.isdisjoint(other.firsts)
                ):
                    self.join_chains(*sorted((maker, user), key=lambda d: -elements(self.facts[d].shape)))

    def join_chains(self, maker: KernelWrite, user: KernelWrite) -> None:
        """Two groups become one if they are a chain together whose results a thread can hold."""
        first, second = self.members[maker], self.members[user]
        together = [*first, *second]
        between = self.detours.between(first, second)
        if not self.fits(together) or between is None or self.detours.between(second, first) is None:
            return
        kernel = lower(normal_form(together).sink)
        chain = chain_of(kernel.ast)
        if kernel.is_safe and chain is not None and holds_all(chain, machine_of(user.device)):
            self.detours.merged(first, second, together, between)
            self.merge(together)

    def loses_its_tile(self, maker: KernelWrite, user: KernelWrite) -> bool:
        """Whether a product of what is made on the spot would get no unit: tiles have results of the sum."""
        product = self.facts[user].is_product and not self.facts[maker].is_product
        return product and machine_of(user.device).products is not None

    def fits(self, group: Sequence[KernelWrite]) -> bool:
        targets = {base_of(write.target) for write in group}
        if len(targets) < len(group) or sum(self.facts[write].code for write in group) > MAX_CODE:
            return False
        return len(self.memory(group)) <= MAX_MEMORY

    def merge(self, group: list[KernelWrite]) -> None:
        for write in group:
            self.members[write] = group

    def numbered(self) -> tuple[list[list[KernelWrite]], list[set[int]]]:
        groups = list({id(g): g for g in (self.members[d] for d in self.writes)}.values())
        position = {write: n for n, group in enumerate(groups) for write in group}
        before = [{position[w] for d in g for w in self.waits[d]} - {n} for n, g in enumerate(groups)]
        return groups, before

    def side_by_side(self) -> None:
        """Independent groups of one level and shape become one."""
        groups, before = self.numbered()
        try:
            level = levels(range(len(groups)), before)
        except CyclicOrder:
            return  # reported by the caller, with places
        families: dict[object, list[list[KernelWrite]]] = {}
        for n, group in enumerate(groups):
            facts = [self.facts[d] for d in group]
            scores = facts[0].scores if len(facts) == 1 else None
            apart = any((f.is_product and f.scores is None) or f.is_alone for f in facts)
            if group[0].kind != "kernel" or apart:
                continue
            reduces = any(f.reduces for f in facts)
            families.setdefault((level[n], group[0].device, facts[0].shape, reduces, scores), []).append(
                group
            )
        for (_, _, _, reduces, _), family in families.items():  # type: ignore[misc]
            self.pack(family, bool(reduces))

    def pack(self, family: list[list[KernelWrite]], must_share: bool) -> None:
        """Puts groups together, first come first served, as long as they fit."""
        open_: list[KernelWrite] = []
        for group in family:
            together = [*open_, *group]
            # Safe without a look: who reads what another writes waits for it, and is on another level.
            if open_ and self.fits(together) and (not must_share or self.shares(open_, group)):
                self.merge(together)
                open_ = together
            else:
                open_ = group

    def shares(self, a: Sequence[KernelWrite], b: Sequence[KernelWrite]) -> bool:
        """Whether most of what the two read is the same."""
        left, right = ({m for d in g for m in self.reads[d].memory} for g in (a, b))
        common = sum(int(m.arg[1]) for m in left & right)
        return common > 0 and 2 * common >= min(sum(int(m.arg[1]) for m in side) for side in (left, right))

    def in_order(self) -> list[list[KernelWrite]]:
        return self.numbered()[0]
