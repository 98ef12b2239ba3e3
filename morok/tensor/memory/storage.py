"""Storages: the identity of memory, which values do not have.

Tensors that show the same memory share a storage. It knows one thing, the node of what the memory holds now:
something to be computed, a view of a BUFFER, or a state of one after assignments (see `states.py`). A tensor
is a storage and a chain of movement ops, so whoever writes through one of them is seen by all; what was
computed from a tensor has taken its node, and keeps the values of its line.

A node that has been computed is found in memory by `realized_as`, whoever computed it. That is a remembered
value and no claim to the memory: a storage owns memory, and only its owner writes it.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable, Iterable, Iterator

from morok.device.registry import default_device
from morok.errors import IRError
from morok.ir.cached_graph import is_placeholder
from morok.ir.infer import Shape, shape
from morok.ir.layout import is_mesh
from morok.ir.memory import base_of, own_device
from morok.ir.node import UOp, make
from morok.ir.ops import Ops


class AnyDevice(IRError):
    """Somebody asks a placeholder for its device, or for what it repeats, and it may be any."""


births = itertools.count()


class Storage:
    """What tensors that show the same memory share."""

    __slots__ = ("__weakref__", "alone", "born", "exposed", "frozen", "leaf", "node", "views")

    def __init__(self, node: UOp) -> None:
        self.node = node
        self.born = next(births)  # storages are numbered
        self.alone: list[tuple[UOp, UOp]] | None = None  # parts computed for themselves, and where they lie
        self.leaf = False  # whether gradients were asked for
        self.frozen: str | None = None  # why nothing may be assigned
        self.exposed = (
            False  # whether somebody outside may have changed what was computed from it, see `renew`
        )
        self.views: list[UOp] | None = None  # nodes of views of the node, see `keep_view`
        _living[_ref(self, _forget)] = None

    def become(self, node: UOp) -> None:
        """The storage holds something else, or the same in another place."""
        self.node = node
        self.alone = self.views = None

    def keep_view(self, node: UOp) -> None:
        """The node of a view lives as long as the storage holds what it shows.

        A tensor cannot hold it: that would keep values that have been overwritten. Of very many views the
        nodes are made anew when they are asked for.
        """
        views = self.views
        if views is None or len(views) >= _KEPT_VIEWS:
            self.views = [node]
        else:
            views.append(node)


_KEPT_VIEWS = 64
_living: dict[weakref.ref[Storage], None] = {}  # oldest first, so that equal programs make equal graphs
_ref = weakref.ref
_forget = _living.pop


def living_storages() -> Iterator[Storage]:
    """All storages that somebody holds, in the order in which they were made."""
    for ref in list(_living):
        storage = ref()
        if storage is not None:
            yield storage


# --- who owns memory


class _Memory(weakref.ref[UOp]):
    """What is known of a BUFFER node, as long as it lives."""

    __slots__ = ("guests", "key", "owner", "values")
    guests: list[weakref.ref[Storage]] | None  # that hold values there without owning it
    key: int
    owner: weakref.ref[Storage] | None
    values: set[int] | None  # nodes whose values it holds, to be forgotten when it is overwritten


_memories: dict[int, _Memory] = {}  # by identity: asked whenever something is computed


def _lost(memory: _Memory, table: dict[int, _Memory] = _memories) -> None:
    if table.get(memory.key) is memory:  # the table by itself: at the end of a process modules lose names
        del table[memory.key]


def _known(memory: UOp) -> _Memory:
    found = _memories.get(id(memory))
    if found is None or found() is not memory:
        found = _Memory(memory, _lost)
        found.key = id(memory)
        found.owner = found.values = found.guests = None
        _memories[found.key] = found
    return found


def claim(memory: UOp, storage: Storage) -> bool:
    """Whether a storage owns a BUFFER: the first one that asks does.

    When that is gone nobody does: graphs that it was in may read the memory still, and so it is no place for
    what is assigned to another storage, nor for what is written to its array.
    """
    known = _known(memory)
    owner = known.owner
    if owner is not None:
        return owner() is storage
    known.owner = _ref(storage)
    return True


def hand_over(memory: UOp, storage: Storage) -> None:
    """A storage owns memory that was made for it, whichever tensor stood for it while it was computed."""
    _known(memory).owner = _ref(storage)


def owner_of(memory: UOp) -> Storage | None:
    """The storage that owns a BUFFER; None if none has asked, or it is gone."""
    owner = _known(memory).owner
    return None if owner is None else owner()


def add_guest(memory: UOp, storage: Storage) -> None:
    """The value of a storage lies in memory that another one owns."""
    known = _known(memory)
    guests = [ref for ref in known.guests or () if ref() not in (None, storage)]
    known.guests = [*guests, _ref(storage)]


def take_guests(memory: UOp) -> list[Storage]:
    """The storages that were added, as far as they live; they are not known any more."""
    known = _known(memory)
    guests, known.guests = known.guests, None
    return [storage for ref in guests or () if (storage := ref()) is not None]


def inherit(old: UOp, new: UOp) -> None:
    """The memory has got another name."""
    known = _known(old)
    if known.owner is not None:
        _known(new).owner = known.owner
    _known(new).guests, known.guests = known.guests, None


# --- values that are in memory


class _Done(weakref.ref[UOp]):
    """What became of a node: the view of a buffer that holds its value. It goes when no graph holds the node.

    Caches of schedules hold graphs that read no memory as they are, so for those the view is held weakly and
    lives only as long as some tensor shows it.

    If the memory was shown to somebody outside, who can write to it, the value is found elsewhere, or not at
    all; the memory is still the place of the tensor that was computed as the node, which gradients ask for.
    """

    __slots__ = ("key", "place", "view")
    key: int
    place: UOp | weakref.ref[UOp] | None  # None: where its value is
    view: UOp | weakref.ref[UOp] | None


_done: dict[int, _Done] = {}  # by identity of the node: asked for every node of every graph
is_done = _done.__contains__  # whether a node with that identity may have been computed
done_values = _done.keys()


def _undo(done: _Done, table: dict[int, _Done] = _done) -> None:
    if table.get(done.key) is done:
        del table[done.key]


def realized_as(node: UOp) -> UOp | None:
    """The view of memory that holds a node's value; None if it was not computed yet."""
    done = _done.get(id(node))
    if done is None or done() is not node:
        return None
    return _where(done.view)


def place_of(node: UOp) -> UOp | None:
    """The view of memory that a node became, whatever somebody outside has written there since."""
    done = _done.get(id(node))
    if done is None or done() is not node:
        return None
    return _where(done.view if done.place is None else done.place)


def _where(view: UOp | weakref.ref[UOp] | None) -> UOp | None:
    if view is None or isinstance(view, UOp):
        return view
    found = view()  # without memory of its own the node belongs wherever tensors live by default now
    return found if found is None or graph_device(found) == default_device() else None


def is_deviceless(node: UOp) -> bool:
    """Whether a node that was computed reads no memory, so that graphs on any device may have it in them."""
    done = _done.get(id(node))
    return done is not None and not isinstance(done.view, UOp)


def any_realized(nodes: Iterable[UOp]) -> bool:
    """Whether some of the nodes have been computed."""
    return not _done.keys().isdisjoint(map(id, nodes))


def set_realized(node: UOp, view: UOp, reads_memory: bool = True) -> None:
    """From now on whoever has the node in a graph reads the memory instead."""
    known = _done.get(id(node))
    done = _Done(node, _undo)
    done.key = id(node)
    done.view = view if reads_memory else weakref.ref(view)
    done.place = known.place if known is not None and known() is node else None
    _done[done.key] = done
    _held_by(view).add(done.key)


def _held_by(view: UOp) -> set[int]:
    known = _known(base_of(view))
    if known.values is None:
        known.values = set()
    return known.values


def values_in(memory: UOp) -> list[tuple[UOp, UOp]]:
    """Nodes of living graphs whose values are found in a BUFFER, and the views of it that hold them."""
    known = _known(memory)
    found = []
    for key in list(known.values or ()):
        done = _done.get(key)
        node = None if done is None else done()
        view = None if node is None or done is None else _view_of(done)
        if node is not None and view is not None and base_of(view) is memory:
            found.append((node, view))
        elif known.values is not None:
            known.values.discard(key)
    return found


def show_value(node: UOp, elsewhere: UOp | None) -> None:
    """The memory that holds a node's value is shown: the value is found elsewhere, or computed again."""
    done = _done[id(node)]
    if done.place is None:
        done.place = done.view
    done.view = elsewhere
    if elsewhere is not None:
        _held_by(elsewhere).add(done.key)


def follow_places(old: UOp, new: UOp, renamed: Callable[[UOp], UOp]) -> list[UOp]:
    """Memory that may have been written has got another name, which is the place of what is held weakly.

    The views that it returns are to be held until the storage has its own.
    """
    views = []
    for key in list(_known(old).values or ()):
        done = _done.get(key)
        place = None if done is None else done.view if done.place is None else done.place
        view = None if place is None or isinstance(place, UOp) else place()
        if done is None or view is None or base_of(view) is not old:
            continue
        views.append(renamed(view))
        done.view, done.place = None, _ref(views[-1])
        _held_by(new).add(key)
    return views


def _view_of(done: _Done) -> UOp | None:
    view = done.view
    return view if view is None or isinstance(view, UOp) else view()


def forget_values(memory: UOp) -> None:
    """A BUFFER node stands for values that are gone: nothing is found there any more."""
    gone = [memory]  # and the earlier states of which it was the copy
    while gone:
        memory = gone.pop()
        known = _known(memory)
        held, known.values = known.values, None
        for key in held or ():
            done = _done.get(key)
            node = None if done is None else done()
            if done is None or node is None:
                continue
            view = _view_of(done)
            while view is not None and (moved := realized_as(view)) is not None:
                view = moved  # a view that was copied elsewhere
            if view is None or base_of(view) is memory:
                del _done[key]
                if node.op is Ops.BUFFER:
                    gone.append(node)
            else:
                done.view = view if isinstance(done.view, UOp) else weakref.ref(view)
                _held_by(view).add(key)


# --- nodes

_numbers = itertools.count()
_BESIDE = -1


def identified(node: UOp) -> UOp:
    """A value as that of one tensor: equal ones of others are other nodes, so gradients tell them apart."""
    if not node.dtype.is_float:
        return node
    return make(Ops.IDENTITY, node.dtype, (node,), next(_numbers))


def beside(node: UOp) -> UOp:
    """A node as computed together with its sources, also if its value is in memory already.

    The slope of an extreme goes to the elements that equal it. Those of a sum that is computed a second time
    may differ in the last bit from what is in memory, and would equal nothing.
    """
    sources = [make(Ops.IDENTITY, s.dtype, (s,), _BESIDE) if s.dtype.is_float else s for s in node.src]
    return node.replace(tuple(sources))


def graph_device(root: UOp) -> str:
    """The device of the first memory that a graph reads, or the default one."""
    below = root
    while below.op.is_movement:
        below = below.src[0]
    if _has_device(below):  # a view of memory, as most are
        return own_device(below)
    for node in _sources_first(root):
        if _has_device(node):
            return own_device(node)
        if is_placeholder(node):
            if node.arg[3] is None:
                raise AnyDevice("a placeholder may be on any device")
            return str(node.arg[3])
    return default_device()


def before_expand(node: UOp) -> Shape | None:
    """The shape of what a node repeats along axes; None if it repeats nothing."""
    found = None
    while node.op is Ops.EXPAND:
        node = node.src[0]
        found = shape(node)
    if not is_placeholder(node):
        return found
    known: tuple[Shape | None] | None = node.arg[4]
    if known is None:
        raise AnyDevice("a placeholder may repeat anything")
    return found if known[0] is None else known[0]


def first_device(root: UOp) -> str | None:
    """The device of the first memory that a graph reads, if it reads any that is known."""
    return next((own_device(n) for n in _sources_first(root) if _has_device(n)), None)


def mesh_device(root: UOp) -> str | None:
    """The device of the first memory on a mesh that a graph reads; a copy to a plain device is on none."""
    found = (own_device(node) for node in _sources_first(root) if _has_device(node))
    return next((name for name in found if is_mesh(name)), None)


def _sources_first(root: UOp) -> Iterator[UOp]:
    """As `toposort`, down to memory, but found one by one: who looks for the first memory of a large graph is
    through after a few steps."""
    seen = {root}
    waiting = [(root, iter(() if _has_device(root) else root.src))]
    while waiting:
        node, rest = waiting[-1]
        for s in rest:
            if s not in seen:
                seen.add(s)
                waiting.append((s, iter(() if _has_device(s) else s.src)))
                break
        else:
            yield node
            waiting.pop()


def has_device(root: UOp) -> bool:
    """Whether a graph reads memory, or is copied, somewhere; else it is computed wherever it is needed."""
    stack, seen = [root], {root}
    while stack:
        node = stack.pop()
        if _has_device(node):
            return True
        new = [s for s in node.src if s not in seen]
        seen.update(new)
        stack += new
    return False


def _has_device(node: UOp) -> bool:
    return node.op is Ops.BUFFER or node.op is Ops.COPY
