"""Attention in one kernel: the scores of a product, their softmax, and what it weighs, are never memory.

    softmax(q · kᵀ) · v        with a scale, a mask or a bias on the scores, and more after the sum

A GPU keeps a tile of scores in registers and walks along the keys once (`online_softmax.py`), a processor
keeps those of some rows in its cache; `score_places.py` has the table of places. So nothing between the two
products is kept, however often it seems to be computed. That is asked before fusion, because it would rightly
refuse: only this form can be computed so. Whether the kernel that comes of it has that form is found by
lowering it, with all that has been fused. If it has not, the result gets a kernel of its own; and if that
does not help either, everything is as if nobody had asked.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import final

from morok import knobs
from morok.ir.memory import device_of, own_device
from morok.ir.node import UOp, toposort
from morok.ir.ops import Ops
from morok.machine.devices import machine_of
from morok.machine.machine import Machine
from morok.schedule.costs import STORED
from morok.schedule.graph.attention.score_places import PLACES, UNITS, IsProduct, Place, is_narrow_product

REDUCED = frozenset((Ops.REDUCE_AXIS, Ops.SCAN_AXIS))
MOST_NODES = 64  # between the products
MOST_BESIDE = 24  # operations of a mask or a bias

Users = Mapping[UOp, Sequence[UOp]]


@final
@dataclass(frozen=True, eq=False)
class Attention:
    """Two products, and what lies between them, the first included."""

    result: UOp
    between: frozenset[UOp]
    end: UOp  # what is stored, if the result is: in the narrow type, where it goes on in that
    family: object = None  # those that must all be computed so, or none of them
    memory: frozenset[UOp] = frozenset()  # what a mask or a bias is made of, and is reduced itself
    place: Place = UNITS
    machine: Machine | None = None  # of which that is asked


def users_of(order: Iterable[UOp]) -> dict[UOp, list[UOp]]:
    """Who uses each node."""
    found: dict[UOp, list[UOp]] = {}
    for node in order:
        for s in dict.fromkeys(node.src):
            found.setdefault(s, []).append(node)
    return found


def attentions(order: Sequence[UOp]) -> list[Attention]:
    """What may be computed in passing, from one product to another."""
    tops = [(place, *pair) for place in PLACES for pair in able_tops(order, place).items()]
    users = users_of(order) if tops else {}
    found = [
        _between(scores, users, place, machine)
        for place, top, machine in tops
        if (scores := scores_below(top, place.is_product)) is not None
    ]
    return [a for a in found if a is not None]


def able_tops(order: Sequence[UOp], place: Place) -> dict[UOp, Machine]:
    """Maxima on machines that have a place for scores, and those machines."""
    tops = [n for n in order if n.op is Ops.REDUCE_AXIS and n.arg[0] is Ops.MAX]
    if not tops or knobs.NOOPT.value:  # in plain loops everything would be computed again and again
        return {}
    able = {d for n in order if n.op is Ops.PARAM and place.able(machine_of(d := own_device(n)))}
    if not able:
        return {}
    devices: dict[UOp, str] = {}
    for node in order:
        devices[node] = device_of(node, devices)
    return {top: machine_of(devices[top]) for top in tops if devices[top] in able}


def scores_below(top: UOp, is_product: IsProduct) -> UOp | None:
    """The product that a maximum goes over, if it is the only one; what else is reduced belongs to a mask."""
    below = [n for n in toposort(top.src[0], stop=_ends) if is_product(n)]
    return below[0] if len(below) == 1 else None


def _between(scores: UOp, users: Users, place: Place, machine: Machine) -> Attention | None:
    """From a product up to the one that uses all of it; None where others use it."""
    region = {scores}
    results: set[UOp] = set()
    front = [scores]
    while front:
        node = front.pop()
        for user in users.get(node, ()):
            if place.is_product(user):
                results.add(user)
            elif not is_computed(user):
                return None  # somebody else wants it as memory
            elif user not in region:
                region.add(user)
                front.append(user)
    if len(results) != 1 or len(region) > MOST_NODES:
        return None
    (result,) = results
    inner = [n for n in region if not _is_factored(n, users, place.is_product)]
    memory, above = reduced_beside([n for n in inner if n is not scores], region)
    between = frozenset(region | beside(inner, region) | above)
    return Attention(result, between, end_of(result, users), memory=memory, place=place, machine=machine)


def _is_factored(node: UOp, users: Users, is_product: IsProduct) -> bool:
    """Whether a node is the product under a sum of products."""
    return node.op is Ops.MUL and all(map(is_product, users.get(node, ())))


def beside(nodes: Iterable[UOp], region: Collection[UOp]) -> set[UOp]:
    """What meets scores and is computed cheaply, a mask or a bias made of positions: in registers, as they
    are. It would be as large as they are in memory."""
    found: set[UOp] = set()
    for s in dict.fromkeys(s for n in nodes for s in n.src if s not in region):
        below = toposort(s, stop=_ends)
        functions = [n for n in below if n.op.is_alu]
        if len(functions) <= MOST_BESIDE and not any(n.op in REDUCED for n in below):
            found.update(n for n in below if n.op not in STORED)
    return found


def reduced_beside(nodes: Iterable[UOp], region: Collection[UOp]) -> tuple[frozenset[UOp], set[UOp]]:
    """What is reduced, or gathered, for a mask or a bias, which becomes memory, and what is computed of that
    beside the scores: whether two positions belong to one document, a bias from a table."""
    reduced: set[UOp] = set()
    above: set[UOp] = set()
    for s in dict.fromkeys(s for n in nodes for s in n.src if s not in region):
        below = toposort(s, stop=_ends)
        ends = {n for n in below if n.op in REDUCED}
        if ends and sum(n.op.is_alu for n in below) <= MOST_BESIDE:
            reduced |= ends
            above.update(n for n in below if n.op not in STORED and n not in ends)
    return frozenset(reduced), above - reduced


def end_of(result: UOp, users: Users) -> UOp:
    """What is stored of a result, if it is: its conversion to a narrower type, if only that is used."""
    node = result
    while len(after := users.get(node, ())) == 1:
        (user,) = after
        if user.op is Ops.CAST and user.dtype.itemsize < result.dtype.itemsize:
            return user
        if not (user.op is Ops.MUL and Ops.CONST in {s.op for s in user.src}) and user.op not in _SAME:
            break
        node = user
    return result


_SAME = (Ops.RESHAPE, Ops.PERMUTE)


def is_computed(node: UOp) -> bool:
    """Whether a node may be a part of a kernel, rather than memory."""
    return node.op.is_alu or node.op.is_movement or node.op in (Ops.REDUCE_AXIS, Ops.DETACH)


def _ends(node: UOp) -> bool:
    return node.op in STORED or node.op in REDUCED


def statistics_of(nodes: Iterable[UOp]) -> UOp | None:
    """The product whose results are reduced in a kernel of these nodes, if that is all it reduces.

    Kernels of one product run together: it is computed once for all of them.
    """
    found = [n for n in nodes if n.op is Ops.REDUCE_AXIS]
    products = [n for n in found if is_narrow_product(n)]
    return products[0] if len(products) == 1 and any(n.arg[0] is Ops.MAX for n in found) else None


def first_products(nodes: Iterable[UOp]) -> frozenset[UOp]:
    """The products of a kernel of these nodes whose results are multiplied, or reduced, in it."""
    found = [n for n in nodes if n.op in REDUCED]
    products = list(filter(is_narrow_product, found))
    if len(found) < 2 or not products:
        return frozenset()
    return frozenset(n for n in products if not any(m.op in REDUCED for m in toposort(n.src[0], stop=_ends)))


# --- the kernel that would come of it


def works(found: Attention, kept: Collection[UOp], users: Users) -> bool:
    """Whether the kernel around a result can be computed so, where these nodes are kept in memory."""
    roots = _roots(found.result, kept, users)
    if len(roots) != 1:
        return False
    (root,) = roots
    if root in kept:
        value = root
    elif root.op in (Ops.CONTIGUOUS, Ops.ASSIGN):
        value = root.src[root.op is Ops.ASSIGN]
    else:
        return False
    return is_kernel(value, kept, found.place, found.machine)


def is_kernel(
    value: UOp, kept: Collection[UOp], place: Place = UNITS, machine: Machine | None = None
) -> bool:
    """Whether a place is right for the kernel of a value, where these nodes are kept in memory."""

    def is_leaf(node: UOp) -> bool:
        return node is not value and (node in kept or (node.op in STORED and not is_made_up(node)))

    return place.takes(value, is_leaf, machine)


def _roots(node: UOp, kept: Collection[UOp], users: Users) -> set[UOp]:
    """What is stored with a value inlined."""
    found: set[UOp] = set()
    seen = {node}
    front = [node]
    while front:
        here = front.pop()
        if here in kept:
            found.add(here)
            continue
        for user in users.get(here, ()):
            if not is_computed(user):
                found.add(user)
            elif user not in seen:
                seen.add(user)
                front.append(user)
    return found


def is_made_up(node: UOp) -> bool:
    """Whether a value that a device has is none of its memory: constants, and positions."""
    return node.op is Ops.COPY and not any(n.op in (Ops.PARAM, Ops.BUFFER) for n in toposort(node))
