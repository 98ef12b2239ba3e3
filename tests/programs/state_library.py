"""The two libraries that random programs about memory are run with: NumPy, and morok under the same names."""

from __future__ import annotations

from typing import Any

import numpy as np

BOUND = 50  # values stay within it

JITTED = """
def both(x, y):
    return clip(x + y)

def mirrored(x):
    return flip(x, 0)

def first_of(x):
    return x[0, ...]

def set_first(x):
    x[0, ...] = 7
    return clip(x * 2)

def add_to_first(x, y):
    x += 1
    return clip(y * 2)

def copy_into(x, y):
    x[...] = y
    return clip(x + y)

def swap_parts(x, y):
    a = val(x * 1)
    x[...] = y
    y[...] = a
    return x, y

def own_part(x):
    y = clip(x * 2)
    y[0, ...] = 1
    return y, y[0, ...]

def twins(x):
    return clip(x + 1), clip(x + 1)

def same_in_both(x, y):
    a = clip(x + y)
    x[...] = a
    y[...] = a
    return a, val(a + 0)

def turned(x):
    x[...] = flip(x, 0)
    return transposed(x)

def count_up():
    assign(counter, counter + 1)
    return clip(counter * 3)

def count_part(x):
    counter[1, ...] = x
    return val(counter + 0)
"""
ONE = ["mirrored", "first_of", "set_first", "own_part", "turned", "twins"]
TWO = ["both", "add_to_first", "copy_into", "swap_parts", "same_in_both"]
WRITES = {"set_first", "turned", "add_to_first", "copy_into", "swap_parts", "same_in_both"}  # to the first
WRITES_BOTH = {"swap_parts", "same_in_both"}
PAIRS = {"swap_parts": 1, "own_part": 1, "twins": 0, "same_in_both": 0}  # two results: views, or values


# --- the two libraries


def _value(x: Any) -> Any:
    return np.array(x, order="C")


def _frozen(x: Any) -> Any:
    result = np.array(x, order="C")
    result.flags.writeable = False
    return result


def _assign(t: Any, value: Any) -> None:
    t[...] = value


NUMPY: dict[str, Any] = {
    "new": lambda data, dtype: np.array(data, dtype),
    "outside": lambda data, dtype: np.array(data, dtype),
    "shared": lambda array: array[...],
    "write_outside": lambda array, t, value, *ts: _assign(array[..., :1] if array.ndim else array, value),
    "poke": lambda t, value, *ts: _assign(t[..., :1] if t.ndim else t, value),
    "joined": lambda t: _value(np.concatenate([t])),
    "zeros": lambda shape, dtype: np.zeros(shape, dtype),
    "full": lambda shape, value, dtype: np.full(shape, value, dtype),
    "arange": lambda n, dtype: np.arange(n, dtype=dtype),
    "val": _value,
    "clip": lambda x: _value(np.clip(x, -BOUND, BOUND)),
    "transposed": lambda t: t.T,
    "permute": lambda t, order: t.transpose(order),
    "flip": lambda t, axis: np.flip(t, axis),
    "reshape": lambda t, shape: t.reshape(shape),
    "unsqueeze": lambda t, axis: np.expand_dims(t, axis),
    "expand": lambda t, shape: _frozen(np.broadcast_to(t, shape)),
    "pad": lambda t: _frozen(np.pad(t, [(1, 1)] * t.ndim)),
    "take": lambda t, places: _frozen(t[places]),
    "total": lambda t: _value(t.sum(dtype=t.dtype)),
    "greatest": lambda t: _value(t.max(0)),
    "put_rows": lambda t, places, value: t.__setitem__(places, value),
    "put_mask": lambda t, value: t.__setitem__(t > 0, value),
    "assign": _assign,
    "gradient_of_product": lambda a, c: _value(c + np.float32(1)),
    "gradients_of_line": lambda x, w, b: (_value(x), _value(np.ones_like(x))),
    "gradient_to_copy": lambda copy, source: _value(np.full_like(copy, 3)),
    "at": lambda k, size: k,
    "realize": lambda *ts: None,
    "look": lambda t: None,
    "jit": lambda function: function,
}  # fmt: skip


def library() -> dict[str, Any]:
    """The same under morok."""
    from morok import Tensor, Variable, grad, jit
    from morok.device.registry import default_device, get_device
    from morok.ir.ops import Ops
    from morok.tensor.memory.states import is_computed, shown
    from morok.tensor.realize import realize_storages

    on_host = get_device(default_device()).on_host

    def gradients_of_line(x: Any, w: Any, b: Any) -> Any:
        return (x.detach() * w + b).sum().gradient(w, b)

    def realize(*ts: Any) -> None:
        ts[0].realize(*ts[1:])

    def realized(*ts: Any) -> Any:
        realize(*ts)
        return ts[0]

    def write_outside(array: Any, t: Any, value: Any, *ts: Any) -> None:
        realize(t, *ts)
        (array if on_host else t)[(..., slice(0, 1)) if array.ndim else ...] = value

    def poke(t: Any, value: Any, *ts: Any) -> None:
        # What was built on memory reads it when it is computed: so now. What was built on a value keeps it.
        node = t._storage.node
        on_memory = is_computed(node) or shown(node).op is Ops.AFTER
        if t._chain:  # the array of a part of something that is not computed is a copy
            realize_storages([t._storage])
        write_outside(realized(t, *(ts if on_memory else ())).numpy(), t, value)

    def seen(t: Any, want: Any) -> Any:
        """What is compared: memory outside is a copy where a device has memory of its own."""
        return t.numpy() if isinstance(t, Tensor) else t if on_host else want

    return {
        "new": lambda data, dtype: Tensor(np.array(data, dtype)),
        "outside": lambda data, dtype: np.array(data, dtype),
        "shared": Tensor.from_numpy,
        "write_outside": write_outside,
        "poke": poke,
        "seen": seen,
        "joined": lambda t: Tensor.cat(t),
        "zeros": lambda shape, dtype: Tensor.zeros(*shape, dtype=dtype),
        "full": lambda shape, value, dtype: Tensor.full(shape, value, dtype=dtype),
        "arange": lambda n, dtype: Tensor.arange(n, dtype=dtype),
        "val": lambda x: x,
        "clip": lambda x: x.clamp(-BOUND, BOUND),
        "transposed": lambda t: t.T,
        "permute": lambda t, order: t.permute(order),
        "flip": lambda t, axis: t.flip(axis),
        "reshape": lambda t, shape: t.reshape(shape),
        "unsqueeze": lambda t, axis: t.unsqueeze(axis),
        "expand": lambda t, shape: t.expand(*shape),
        "pad": lambda t: t.pad([(1, 1)] * t.ndim),
        "take": lambda t, places: t[places],
        "total": lambda t: t.sum(dtype=t.dtype),
        "greatest": lambda t: t.max(0),
        "put_rows": lambda t, places, value: t.__setitem__(places, value),
        "put_mask": lambda t, value: t.__setitem__(t > 0, value),
        "assign": lambda t, value: t.assign(value),
        # By `grad`, whose argument is told apart from values that were computed, and forgot how, before.
        "gradient_of_product": lambda a, c: grad(lambda t: (t * c.detach() + t).sum())(a),
        "gradients_of_line": gradients_of_line,
        "gradient_to_copy": lambda copy, source: (copy * 3 + source * 5).sum().gradient(copy)[0],
        "at": lambda k, size: Variable(f"at_{k}", 0, size - 1).bind(k),  # one value in one computation
        "realize": realize,
        "look": lambda t: t.tolist(),
        "jit": jit,
    }


def start(names: dict[str, Any]) -> dict[str, Any]:
    """The names that a program begins with: a library, jitted functions, and a tensor that they know."""
    space = dict(names)
    exec(JITTED, space)
    for name in (*ONE, *TWO, "count_up", "count_part"):
        space[name] = space["jit"](space[name])
    space["counter"] = space["new"]([0, 1, 2], "float32")
    return space
