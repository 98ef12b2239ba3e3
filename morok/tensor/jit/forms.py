"""Arguments that lie in memory as those of an earlier call did: what is asked of each is asked by one look.

A call on new memory is the usual one, a batch, or parameters after a step. Its key need not be made again:
who finds every argument to be all of its memory, in order, with the sizes, type and device of last time,
knows that the same trace serves it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from morok.dtype import DType
from morok.ir.infer import shape
from morok.ir.layout import is_mesh
from morok.ir.node import UOp
from morok.ir.ops import Ops
from morok.tensor.core import Core
from morok.tensor.gradient_track import is_marked
from morok.tensor.jit.arguments import gradient_of, plain_memory
from morok.tensor.memory.storage import is_done

# class, sizes, type, elements and device of the memory, whether gradients were asked for and one is there
Form = tuple[type[Core], tuple[Any, ...], DType, int, UOp, bool, bool]


def plain_forms(given: Sequence[Core]) -> list[Form] | None:
    """The forms of arguments that are all of their memory, of one device, each for itself; None of others."""
    found: list[Form] = []
    memories: set[UOp] = set()
    for tensor in given:
        node = tensor._storage.node
        memory = None if tensor._chain else plain_memory(node)
        sizes = shape(node)
        if memory is None or sizes is None or is_mesh(str(memory.src[1].arg)):
            return None
        memories.add(memory)
        leaf, has_gradient = tensor._leaf, gradient_of(tensor) is not None
        found.append((type(tensor), sizes, memory.dtype, memory.arg, memory.src[1], leaf, has_gradient))
    return found if len(memories) == len(found) else None


def memory_like(given: Sequence[Core], forms: Sequence[Form]) -> list[UOp] | None:
    """The memory of arguments that have these forms; None of others."""
    if len(given) != len(forms):
        return None
    found: list[UOp] = []
    for tensor, (kind, sizes, dtype, size, device, leaf, has_gradient) in zip(given, forms, strict=True):
        if tensor.__class__ is not kind or tensor._chain or tensor._leaf is not leaf:
            return None
        node = tensor._storage.node
        memory = node.src[0] if node.op is Ops.RESHAPE else node
        if memory.op is not Ops.BUFFER or memory.dtype is not dtype or memory.arg != size:
            return None
        if memory.src[1] is not device or (node.shape_ or shape(node)) != sizes:
            return None
        if is_done(id(node)) or is_done(id(memory)):
            return None
        if (tensor._grad is not None) is not has_gradient if leaf else is_marked(memory):
            return None
        found.append(memory)
    return found if len(set(found)) == len(found) else None
