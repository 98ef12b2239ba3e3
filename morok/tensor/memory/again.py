"""What is computed a second time is kept.

A lazy value has no memory, and is computed along with what is made of it. A loop that carries one,

    for x in xs:
        h = cell(x, h)
        y = head(h).item()

would compute all turns before at each turn, and each would be another graph. So values that tensors show
while they are computed along are noted. The next graph that has one stores it where something new is made of
it: what comes later begins there. Where that has happened, equal graphs store theirs at once.

Only what takes work, a reduction somewhere: a mask, a cast, weights that are unpacked are made as fast as
they are read, in whatever kernel needs them. They are kept when those of several graphs stand on each other.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Iterable, Mapping, Sequence
from typing import final

from morok.caches import Cache
from morok.ir.infer import shape
from morok.ir.layout import is_mesh
from morok.ir.node import UOp
from morok.ir.ops import Ops
from morok.schedule.signature import Walk, graph_signature
from morok.tensor.gradient_track import is_tracked
from morok.tensor.memory.states import go_on_from, is_computed
from morok.tensor.memory.storage import Storage, births, graph_device, living_storages, realized_as

_WORK = frozenset((Ops.REDUCE_AXIS, Ops.SCAN_AXIS, Ops.SCATTER, Ops.WRITTEN))

_Place = tuple[int, int]  # a form of graphs, and the number of a node in it


class _Note(weakref.ref[UOp]):
    """A value that was computed along: where first, and the number of that graph."""

    __slots__ = ("key", "place", "turn")
    key: int
    place: _Place | None
    turn: int


_notes: dict[int, _Note] = {}  # by identity of the node: asked for every node of every graph
_expected: Cache[_Place, bool] = Cache("tensor.computed_again", 256)  # values that equal graphs need again
_turns = itertools.count(1)
_young = [0, 0]  # the number of the first storage since this was last done, and the time before


def _drop(note: _Note, table: dict[int, _Note] = _notes) -> None:
    if table.get(note.key) is note:
        del table[note.key]


def _note(node: UOp, place: _Place | None, turn: int) -> None:
    if id(node) not in _notes:
        note = _Note(node, _drop)
        note.key, note.place, note.turn = id(node), place, turn
        _notes[note.key] = note


@final
class Along:
    """Values that tensors show, or have shown, and that a graph computes on its way."""

    __slots__ = ("_again", "_number", "_places", "_stored", "storages")

    def __init__(self, asked: Iterable[Storage], number: Mapping[UOp, int]) -> None:
        """`number` has the nodes of the graph as tensors hold it, down to what has been computed."""
        ids = {id(storage) for storage in asked}
        self.storages = [
            storage
            for storage in living_storages()
            if storage.node in number and id(storage) not in ids and _is_lazy(storage)
        ]
        self._number = number
        self._again: set[UOp] = set()
        self._places: list[_Place | None] = []
        self._stored: list[bool] = []
        if not _notes.keys().isdisjoint(map(id, number)):
            shown, wanted = {s.node for s in self.storages}, {s.node for s in asked}
            again = [node for node in _computed_again(number) if node not in wanted]
            self._again.update(again)
            self.storages += [Storage(node) for node in again if node not in shown]

    def stored(self, walk: Walk, roots: Sequence[UOp], nodes: Sequence[UOp]) -> list[tuple[Storage, UOp]]:
        """What is stored, with its nodes in the graph as it is scheduled; `nodes` are those of all."""
        signature = graph_signature(roots, walk) if self.storages else None
        form = None if signature is None else hash(signature)
        self._places = [None if form is None else (form, walk.number[node]) for node in nodes]
        self._stored = []
        for storage, place in zip(self.storages, self._places, strict=True):
            again = storage.node in self._again
            if again and (note := _notes.get(id(storage.node))) is not None and note.place is not None:
                _expected[note.place] = True
            self._stored.append(again or (place is not None and _expected.get(place) is not None))
        chosen = zip(self.storages, nodes, self._stored, strict=True)
        return [(storage, node) for storage, node, stored in chosen if stored]

    def finish(self) -> None:
        """What was stored is memory now; what was not is noted."""
        turn = next(_turns)
        rest = [
            (storage, place)
            for storage, place, stored in zip(self.storages, self._places, self._stored, strict=True)
            if not stored
        ]
        for storage, place in rest:
            _note(storage.node, place, turn)
        if not any(self._stored):
            return
        for node in self._number:  # what a loop makes of what it carries may be needed again, too
            if node.src and realized_as(node) is None:
                _note(node, None, turn)
        # All turns would hang on each other else.
        young = [s for s in living_storages() if s.born >= _young[1] and _is_lazy(s)]
        _young[:] = [next(births), _young[0]]
        go_on_from([storage for storage in young if not is_tracked(storage.node)])
        for storage, place in rest:
            if _is_lazy(storage):
                _note(storage.node, place, turn)


def _is_lazy(storage: Storage) -> bool:
    """Whether a storage is something to be computed, and no leaf, which others look for by its node."""
    return not storage.leaf and not is_computed(storage.node)


def _computed_again(order: Iterable[UOp]) -> list[UOp]:
    """Values that an earlier graph has computed, and something new is made of, if they are worth keeping."""
    reads: set[UOp] = set()
    works: set[UOp] = set()
    first: dict[UOp, int] = {}  # the earliest graph of which something is below
    worth: set[UOp] = set()
    edge: dict[UOp, None] = {}
    for node in order:
        if node.op is Ops.BUFFER or realized_as(node) is not None:
            reads.add(node)
            continue
        note = _notes.get(id(node))
        earliest = None
        for source in node.src:
            if source in reads:
                reads.add(node)
            if source in works:
                works.add(node)
            turn = first.get(source)
            if turn is not None and (earliest is None or turn < earliest):
                earliest = turn
            if note is None and id(source) in _notes:
                edge[_moved(source)] = None
        if node.op in _WORK:
            works.add(node)
        if note is not None:
            if node in works or (earliest is not None and earliest < note.turn):
                worth.add(node)
            earliest = note.turn if earliest is None else min(earliest, note.turn)
        if earliest is not None:
            first[node] = earliest
    return [node for node in edge if node in worth and node in reads and _can_be_kept(node)]


def _moved(node: UOp) -> UOp:
    """What was computed before it was moved."""
    while node.op.is_movement and node.op is not Ops.PAD and id(node.src[0]) in _notes:
        node = node.src[0]
    return node


def _can_be_kept(node: UOp) -> bool:
    sizes = shape(node)
    whole = sizes is not None and all(isinstance(size, int) for size in sizes)
    return whole and node.op is not Ops.AFTER and not is_mesh(graph_device(node))
