"""Scores that several products use: computed again for each of them, they are never memory.

The gradient of attention multiplies the weights, and what is made of them, three times more:

    V gets  Wᵀ g,    Q gets  S' K,    K gets  S'ᵀ Q       with S' = W ∘ (g Vᵀ - r)

Each of these is a chain of products, if the maximum and the sum of each row of scores are known. So these
become memory, one number per row; the scores, which are as large as the square of the length, do not.
Attention itself still finds them on its way. It is all or nothing: where one of a family's values cannot be
computed so, the scores have to be memory, and then everybody reads them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, final

from morok.ir.node import UOp, make, toposort
from morok.ir.ops import Ops
from morok.schedule.contraction import contraction_at
from morok.schedule.costs import STORED
from morok.schedule.graph.attention.chain import NARROW
from morok.schedule.graph.attention.one_kernel import (
    MOST_NODES,
    REDUCED,
    Attention,
    Users,
    able_tops,
    beside,
    end_of,
    is_computed,
    is_made_up,
    reduced_beside,
    scores_below,
    users_of,
)
from morok.schedule.graph.attention.score_places import UNITS

REASON = "scores are computed again from it"


@final
@dataclass(frozen=True, eq=False)
class Family:
    """What is made of some products: values as large as they are, reductions of these, products of these."""

    products: frozenset[UOp]
    region: frozenset[UOp]
    results: frozenset[UOp]
    statistics: frozenset[UOp]
    rows: frozenset[UOp]  # reductions of other things that meet them


def families(order: Sequence[UOp]) -> list[Family]:
    """Scores with more than one use."""
    tops = able_tops(order, UNITS)
    users = users_of(order) if tops else {}
    found: dict[UOp, Family] = {}
    for top in tops:
        scores = scores_below(top, UNITS.is_product)
        family = None if scores is None or scores in found else _family(scores, users)
        if scores is not None and family is not None and len(family.results) > 1:
            found[scores] = family
    return list(found.values())


def _family(scores: UOp, users: Users) -> Family | None:
    """Everything that is computed from scores and from the products beside them; None if it is wanted as
    memory, or too much."""
    products = {scores}
    while True:
        found = _above(products, users)
        if found is None:
            return None
        region, results, statistics = found
        rows: set[UOp] = set()
        more: set[UOp] = set()
        for node in region:
            for below in toposort(*(s for s in node.src if s not in region), stop=_is_end):
                if below.op in REDUCED and below not in statistics and below not in products:
                    (more if _is_contraction(below) else rows).add(below)
        if not more:
            return Family(*map(frozenset, (products, region, results, statistics, rows)))
        products |= more


def _is_contraction(node: UOp) -> bool:
    """A product whose operands are used many times over, rather than a row's sum."""
    return UNITS.is_product(node) and contraction_at(node) is not None


def _is_end(node: UOp) -> bool:
    return node.op in STORED or node.op in REDUCED


def _above(products: set[UOp], users: Users) -> tuple[set[UOp], set[UOp], set[UOp]] | None:
    region: set[UOp] = set()
    results: set[UOp] = set()
    statistics: set[UOp] = set()
    front = list(products)
    while front:
        for user in users.get(front.pop(), ()):
            sums = users.get(user, ())
            if user.op is Ops.MUL and sums and all(map(_is_contraction, sums)):
                results.update(sums)
            elif user.op is Ops.REDUCE_AXIS:
                statistics.add(user)
            elif not is_computed(user):
                return None
            elif user not in region:
                region.add(user)
                front.append(user)
        if len(region) > MOST_NODES:
            return None
    if not results.isdisjoint(products):  # an operand of one is made of another
        return None
    return region, results, statistics


class Rewritten(NamedTuple):
    """A graph whose scores are computed again, and the chains of products in it."""

    sink: UOp
    chains: list[Attention]
    statistics: dict[UOp, Family]  # values of rows that are memory, and whose they are


def with_scores_again(order: Sequence[UOp], sink: UOp, found: Sequence[Family]) -> Rewritten:
    """The graph with the statistics of the families' scores in memory, for all but attention itself."""
    if not found:
        return Rewritten(sink, [], {})
    users = users_of(order)
    kept = {_tail(n, f, users): f for f in found for n in f.statistics}
    family_of = {**{n: f for f in found for n in f.results}, **kept}
    rows = frozenset().union(*(f.rows for f in found))
    made = _made(order, found)
    done: dict[UOp, UOp] = {}
    inline: dict[Family, set[UOp]] = {f: set() for f in found}
    statistics: dict[UOp, Family] = {}
    for node in order:
        family = family_of.get(node)
        if family is not None and (node in kept or _is_attention(node, made)):
            new = _as_it_was(node, family, made, done, inline[family])
            if node in kept:
                inline[family].add(new)
                statistics[new] = family
                new = make(Ops.CONTIGUOUS, new.dtype, (new,), REASON, node.origin)
        else:
            new = node.replace(tuple([done[s] for s in node.src]))
            if node in rows:
                new = make(Ops.CONTIGUOUS, new.dtype, (new,), REASON, node.origin)
        done[node] = new
    for family, nodes in inline.items():
        mine = family.region | family.products
        _, masks = reduced_beside(family.region, mine | made)  # what is reduced there is one of the rows
        nodes.update(done[n] for n in mine | beside(family.region, mine | made) | masks)
    above = users_of(toposort(done[sink]))
    chains = [
        Attention(result, frozenset(inline[f]), end_of(result, above), f)
        for f in found
        for result in (done[n] for n in order if n in f.results)
    ]
    return Rewritten(done[sink], chains, statistics)


def _tail(statistic: UOp, family: Family, users: Users) -> UOp:
    """What is kept of a statistic: the last value of a row made of nothing else, as its reciprocal."""
    node, last = statistic, statistic
    while len(after := users.get(node, ())) == 1:
        (node,) = after
        if node in family.region or not is_computed(node) or node.op in (Ops.EXPAND, Ops.REDUCE_AXIS):
            break
        if node.op.is_alu:
            if len(dict.fromkeys(s for s in node.src if s.op is not Ops.CONST)) > 1:
                break
            last = node
    return last


def _made(order: Sequence[UOp], found: Sequence[Family]) -> set[UOp]:
    """What is made of the families' products, up to what is summed of it."""
    starts = frozenset().union(*(f.products for f in found))
    ends = frozenset().union(*(f.results for f in found))
    made: set[UOp] = set(starts)
    for node in order:
        if node not in ends and node.op not in STORED and any(s in made for s in node.src):
            made.add(node)
    return made


def _is_attention(node: UOp, made: set[UOp]) -> bool:
    """Whether a result finds the statistics of its scores on its way, if operands are memory."""

    def is_leaf(n: UOp) -> bool:
        if n.op in STORED:
            return not is_made_up(n)
        return n not in made and n is not node and (n.dtype in NARROW or n.op in REDUCED)

    return UNITS.takes(node, is_leaf)


def _as_it_was(node: UOp, family: Family, made: set[UOp], done: dict[UOp, UOp], inline: set[UOp]) -> UOp:
    """A node with the statistics below it computed on the way, rather than read."""
    raw: dict[UOp, UOp] = {}

    def is_other(n: UOp) -> bool:
        return n is not node and (n not in made or n in family.products)

    for n in toposort(node, stop=is_other):
        raw[n] = done[n] if is_other(n) else n.replace(tuple([raw[s] for s in n.src]))
        if n is not node and not is_other(n):
            inline.add(raw[n])
    return raw[node]
