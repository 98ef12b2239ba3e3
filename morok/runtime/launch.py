"""A plan as one native call: the kernels of a plan with their tables of addresses, filled in once.

What changes from run to run (inputs, results, values of variables) is patched into the tables; the rest
stays. Nothing is looked up and nothing is allocated while it runs, so replaying a plan costs a call.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, final

from morok.device.buffer import Buffer
from morok.device.cpu_kernel import Kernel, Steps, address_of
from morok.ir.node import UOp


@final
class NativeLaunch:
    """Kernels in order on BUFFER nodes. Every node gets its memory with `bind` before the first call."""

    __slots__ = ("_places", "_values", "held", "steps")

    def __init__(self, items: Sequence[tuple[Kernel, Sequence[UOp]]], values: Mapping[str, int]) -> None:
        self._places: dict[UOp, list[tuple[Any, int]]] = {}
        self._values: dict[str, list[tuple[Any, int]]] = {}
        self.held: dict[UOp, Buffer] = {}  # what each node is bound to
        steps = []
        for kernel, nodes in items:
            table = kernel.table(values)
            for i, node in enumerate(nodes):
                self._places.setdefault(node, []).append((table, i))
            for i, name in enumerate(kernel.compiled.variables, kernel.compiled.buffers):
                self._values.setdefault(name, []).append((table, i))
            steps.append((kernel, table))
        self.steps = Steps(steps)  # all of them; calling it runs the plan

    @property
    def nodes(self) -> tuple[UOp, ...]:
        """The memory that has to be bound."""
        return tuple(self._places)

    def bind(self, node: UOp, buffer: Buffer) -> None:
        """From now on the node's memory is this buffer's. A node that no kernel touches is ignored."""
        if self.held.get(node) is buffer:
            return
        self.held[node] = buffer
        address = address_of(buffer)
        for table, i in self._places.get(node, ()):
            table[i] = address

    def set(self, name: str, value: int) -> None:
        """Another value for a variable."""
        for table, i in self._values.get(name, ()):
            table[i] = value

    def __call__(self) -> None:
        self.steps()


def native_launch(
    items: Sequence[tuple[object, Sequence[UOp]]], values: Mapping[str, int]
) -> NativeLaunch | None:
    """Programs with their BUFFER nodes as one call; None if one of them is no kernel of the CPU."""
    kernels = []
    for program, nodes in items:
        if not isinstance(program, Kernel):
            return None
        kernels.append((program, nodes))
    return NativeLaunch(kernels, values)
