"""The shortest way of a call: one result, positional tensors, and no tensors from outside.

For tiny functions what surrounds the kernel is all there is, so everything is asked in one function, without
a lock: taking a set of results from the trace's queue is one step that no other thread can share. Whatever is
not as it was at the last call is left to the others (`jit.py`).
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any

from morok import knobs
from morok.device.buffer import bindings
from morok.ir.node import UOp
from morok.runtime.profile import active_profiles
from morok.tensor.core import Core
from morok.tensor.jit.trace import Trace

Quick = Callable[[tuple[Any, ...]], Core | None]
_new, _ref = object.__new__, weakref.ref


def quick_way(
    trace: Trace,
    nodes: Sequence[UOp],
    bases: list[UOp],
    around: Sequence[tuple[Callable[[], object], object]],
) -> Quick | None:
    """A function of the arguments that gives the result, or None; None where there is no such way."""
    if not nodes or not trace.single or trace.checks or trace.guards.names:
        return None
    suspects = trace.guards.suspects if trace.guards.values else None
    kind, take, put_back = trace.output_spec.kind, trace.idle.popleft, trace.idle.append
    (look, was), (look_also, also_was), *others = around
    looks, first, rest = tuple(others), nodes[0], tuple(nodes[1:])
    count, profiles, profiled = len(nodes), active_profiles, knobs.PROFILE

    def quick(args: tuple[Any, ...]) -> Core | None:
        if len(args) != count or profiles or profiled.value:
            return None
        try:
            tensor = args[0]
            if tensor._storage.node is not first or tensor._chain or tensor._leaf:
                return None
            if rest:
                for tensor, node in zip(args[1:], rest):  # noqa: B905 - they are of one length
                    if tensor._storage.node is not node or tensor._chain or tensor._leaf:
                        return None
            if look() is not was or look_also() is not also_was:
                return None
            for other, other_was in looks:
                if other() is not other_was:
                    return None
            if suspects is not None and suspects():
                return None
            results = take()
        except (AttributeError, IndexError):  # not a tensor, or other threads have all of the results
            return None
        if results.bases is bases and results.bindings == bindings.count:
            for held in results.held:  # `free`, written out
                if held() is not None:
                    break
            else:
                buffer = results.buffers[0]
                if not buffer.renamed and (buffer._lease is None or buffer.is_private):
                    results.run()
                    tensor = _new(kind)
                    tensor._made_by = (results, 0)
                    results.held = [_ref(tensor)]
                    if results.nodes:
                        results.nodes = {}
                    put_back(results)
                    return tensor
        put_back(results)
        return None

    return quick
