"""Results of a replay: memory that is filled again when nobody knows of what it held."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, final

from morok.device.base import as_host
from morok.device.buffer import bind_fresh
from morok.device.registry import get_device
from morok.dtype import DType, void
from morok.ir.layout import is_mesh
from morok.ir.memory import base_of
from morok.ir.node import UOp, make
from morok.ir.ops import Ops
from morok.runtime.launch import PlanLaunch
from morok.tensor.core import Core
from morok.tensor.jit.variables import Bound, rebound_chain
from morok.tensor.memory.names import buffer_on, new_buffer
from morok.tensor.memory.storage import Storage, claim
from morok.tensor.memory.strides import Chain, moved

_new, _ref = object.__new__, weakref.ref


@final
@dataclass(frozen=True)
class OutputSpec:
    """What every replay makes anew: memory, and the tensors that show it."""

    memory: tuple[tuple[DType, int, str], ...]
    outputs: tuple[tuple[int, Chain] | None, ...]  # which memory; None: nothing is computed for it
    kind: type[Core]

    def sizes(self, number: int) -> Any:
        """The shape of an output that is all of its memory, in order; None of another one."""
        output = self.outputs[number]
        if output is None or any(step.op is not Ops.RESHAPE for step in output[1]):
            return None
        sizes = output[1][-1].shape if output[1] else (self.memory[output[0]][1],)
        return sizes if all(isinstance(n, int) for n in sizes) else None


@final
class Results:
    """Memory for the results of a replay, and the call that fills it.

    Whoever holds a result holds its tensor, its storage, or, as a graph does, the node of its memory. All are
    made for each replay and held weakly here, so the memory is free when they are gone and no array shows it.
    """

    __slots__ = (
        "bases", "bindings", "bound", "buffers", "devices", "held", "kind", "launch", "nodes", "output_spec",
        "run",
    )  # fmt: skip

    def __init__(self, output_spec: OutputSpec, launch: PlanLaunch | None) -> None:
        self.output_spec = output_spec
        self.buffers = [get_device(device).buffer(size, dtype) for dtype, size, device in output_spec.memory]
        self.devices = [
            None if is_mesh(name) else make(Ops.DEVICE, void, (), name) for _, _, name in output_spec.memory
        ]
        self.launch = launch
        self.kind = output_spec.kind
        self.run: Any = None if launch is None else launch.steps.run or launch.steps
        self.bases: list[UOp] | None = None  # the inputs whose memory the call reads, and the count of all
        self.bindings = -1  # bindings when it was looked up
        self.held: list[weakref.ref[Any]] = []
        self.nodes: dict[int, weakref.ref[UOp]] = {}
        self.bound: Bound = {}  # the values of variables at the last replay

    def lost(self) -> bool:
        """Whether a result has been assigned to: its memory has another name then, and stays its tensor's."""
        return any(b.renamed for b in self.buffers)

    def free(self) -> bool:
        """Whether nobody knows of these results, no tensor, no graph, no array, and none is lost."""
        for held in self.held:
            if held() is not None:
                return False
        for buffer in self.buffers:
            if buffer.renamed or (buffer._lease is not None and not buffer.is_private):
                return False
        return True

    def give(self) -> list[Core | None]:
        """New tensors on the memory, without storages until somebody looks at them."""
        if self.nodes:
            self.nodes = {}
        kind = self.output_spec.kind
        made: list[Core | None] = []
        self.held = held = []
        number = 0
        for output in self.output_spec.outputs:
            if output is None:
                made.append(None)
            else:
                tensor = _new(kind)
                tensor._made_by = (self, number)
                held.append(_ref(tensor))
                made.append(tensor)
            number += 1  # noqa: SIM113 - by hand is faster
        return made

    def give_one(self) -> Core:
        """The same where there is one result: tiny functions are called often."""
        if self.nodes:
            self.nodes = {}
        tensor = _new(self.kind)
        tensor._made_by = (self, 0)
        self.held = [_ref(tensor)]
        return tensor

    def storage(self, number: int) -> Storage:
        """The storage of a result."""
        node = self.node(number)
        storage = Storage(node)
        self.held.append(_ref(storage))
        claim(base_of(node), storage)
        return storage

    def array(self, number: int) -> Any:
        """The values of a result as an array that has borrowed the memory; None if they lie otherwise."""
        sizes = self.output_spec.sizes(number)
        output = self.output_spec.outputs[number]
        return None if sizes is None or output is None else as_host(self.buffers[output[0]]).reshape(sizes)

    def node(self, number: int) -> UOp:
        """The node of a result; results may share memory."""
        output = self.output_spec.outputs[number]
        assert output is not None
        place, chain = output
        known = self.nodes.get(place)
        memory = None if known is None else known()
        if memory is None:
            dtype, size, name = self.output_spec.memory[place]
            device = self.devices[place]
            memory = new_buffer(dtype, size, name) if device is None else buffer_on(device, dtype, size)
            bind_fresh(memory, self.buffers[place])
            self.nodes[place] = ref = _ref(memory)
            self.held.append(ref)
        return moved(memory, rebound_chain(chain, self.bound))


# --- how the results of a function are made


@final
@dataclass
class Made:
    """How a result is made: an argument, a view of a storage that was there, or one of what was computed."""

    kind: str  # "given", "captured", "storage", "output"
    number: int
    chain: Chain = ()


def describe(
    found: Sequence[Core], tensors: Sequence[tuple[str, int, Core]], storages: Sequence[Storage]
) -> tuple[list[Made], list[UOp]]:
    """How the results are made, and the nodes that have to be computed for them."""
    same = {id(t): (kind, n) for kind, n, t in tensors}
    known = {id(s): n for n, s in enumerate(storages)}
    users: dict[int, set[int]] = {}
    for t in found:
        users.setdefault(id(t._storage), set()).add(id(t))
    results: list[Made] = []
    nodes: list[UOp] = []
    made: dict[int, int] = {}
    for t in found:
        if id(t) in same:
            results.append(Made(*same[id(t)]))
        elif id(t._storage) in known:
            results.append(Made("storage", known[id(t._storage)], t._chain))
        else:  # of a storage that only one result shows, no more than that is computed
            alone = len(users[id(t._storage)]) == 1
            key = id(t) if alone else id(t._storage)
            if key not in made:
                made[key] = len(nodes)
                nodes.append(t._uop if alone else t._storage.node)
            results.append(Made("output", made[key], () if alone else t._chain))
    return results, nodes
