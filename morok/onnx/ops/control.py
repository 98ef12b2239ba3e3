"""Branches and loops.

A branch whose condition is known is traced into the plan; of few numbers both are, and one is chosen; else
the condition is read and the branch is run between plans. A loop whose number of rounds is known, and small,
is unrolled into the plan; else each round replays the compiled body. A round that starts on the same shapes
and types compiles nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import numpy as np
from onnx import TensorProto

from morok.errors import MorokError, ShapeError, UnsupportedModel
from morok.onnx.graph import Program
from morok.onnx.ops.common import axis_of, known
from morok.onnx.ops.sequence import _items
from morok.onnx.ops.shape import shape_of
from morok.onnx.rounds import Walks
from morok.onnx.sizes import bound_in, carried, is_symbolic, settled
from morok.onnx.states import Rows, alike
from morok.onnx.table import Call, NeedSteps, NeedValue, as_tensor, op
from morok.onnx.values import Coded, Grown, Host, Value, passing, to_user
from morok.tensor.sizes import concrete
from morok.tensor.tensor import Tensor

_UNROLLED = 64  # nodes that an unrolled loop may have
_READ = 8192  # numbers that are computed in the time in which a condition is read and another part is begun
_NODE = 1024  # numbers that a node in a branch counts for
# operators that are defined for all numbers: no positions, and no whole quotients
_TOTAL = frozenset({
    "Abs", "Add", "And", "Cast", "Ceil", "Clip", "Concat", "Constant", "Equal", "Exp", "Floor", "Gemm",
    "Greater", "GreaterOrEqual", "Identity", "Less", "LessOrEqual", "Log", "MatMul", "Max", "Min", "Mul",
    "Neg", "Not", "Or", "ReduceMax", "ReduceMean", "ReduceMin", "ReduceSum", "Relu", "Reshape", "Sigmoid",
    "Softmax", "Sqrt", "Squeeze", "Sub", "Tanh", "Transpose", "Unsqueeze", "Where", "Xor",
})  # fmt: skip
_NO_SIZES = (TensorProto.BOOL, TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.FLOAT16)


def _truth(value: Value) -> bool:
    """A condition that is known, or that is read."""
    if isinstance(value, Host):
        return bool(value.array.reshape(-1)[0])
    if isinstance(value, Tensor):
        return bool(value.numpy().reshape(-1)[0])
    raise ShapeError(f"a condition is a truth, not a {type(value).__name__}")


def _branch(call: Call, condition: Value) -> Program:
    program: Program = call.node.attributes["then_branch" if _truth(condition) else "else_branch"]
    return program


def _if_steps(call: Call, values: list[Value]) -> list[Value]:
    if not isinstance(values[0], Host):
        call.tracer.refuse()
    return list(call.tracer.run(_branch(call, values[0]), call.env))


@op("If", since=1, steps=_if_steps, replays=True)
def if_(call: Call, condition: Value, *, then_branch: Any, else_branch: Any) -> Any:
    """One of two graphs; the condition is read if it is not known."""
    if not isinstance(condition, Host):
        chosen = _both(call, condition, then_branch, else_branch)
        if chosen is None:
            raise NeedValue(0)
        return chosen
    return tuple(call.tracer.inline(_branch(call, condition), call.env))


def _both(call: Call, condition: Value, *branches: Program) -> tuple[Value, ...] | None:
    """Both branches, and a choice between what they give; None where to read the condition takes less."""
    if not isinstance(condition, Tensor) or any(_takes(call, program) > _READ for program in branches):
        return None
    try:
        either = [call.tracer.inline(program, call.env) for program in branches]
    except (NeedSteps, MorokError):
        return None
    chosen: list[Value] = []
    for yes, no in zip(*either, strict=True):
        if not _may_choose(yes) or not _may_choose(no):
            return None
        a, b = as_tensor(yes), as_tensor(no)
        if a.shape != b.shape or a.dtype is not b.dtype or prod(map(concrete, a.shape)) > _READ:
            return None
        chosen.append(condition.reshape((1,) * a.ndim).where(a, b))
    return tuple(chosen)


def _takes(call: Call, program: Program) -> int:
    """The numbers that a graph is given, and its nodes; too many where it may fail on what it is not for."""
    count = len(program.nodes) * _NODE
    if any(node.domain or node.op not in _TOTAL for node in program.nodes):
        return _READ + 1
    for name in program.captures:
        value = call.env.get(name)
        if not isinstance(value, Tensor | Host):
            return _READ + 1
        count += prod(map(concrete, value.shape))
    return count + sum(host.array.size for host in program.constants.values())


def _may_choose(value: Value) -> bool:
    """Whether a value may be one that a kernel chooses: a size has to be known."""
    return isinstance(value, Tensor) or (isinstance(value, Host) and value.elem in _NO_SIZES)


# --- Loop


def _between(call: Call) -> Callable[[Program, Any], list[Value]]:
    """Runs a round between plans."""
    names = [name for name in (*call.node.inputs, *call.node.captures) if name in call.env]
    around = bound_in([call.env[name] for name in names])

    def run(body: Program, env: Any) -> list[Value]:
        return [carried(value, around) for value in call.tracer.run(body, env)]

    return run


def _most(value: Value) -> int | None:
    if value is None:
        return None
    number = to_user(value)
    return int(np.asarray(number).reshape(-1)[0])


def _loop_steps(call: Call, values: list[Value]) -> list[Value]:
    body: Program = call.node.attributes["body"]
    # what is n around would be n + 1 after a round, and n + 2: rounds find variables of their own
    taken = {name: call.env[name] for name in body.captures if is_symbolic(call.env.get(name))}
    call.env = {**call.env, **{name: settled(value) for name, value in taken.items()}}
    values = [settled(value) for value in values]
    most = _most(values[0])
    going = values[1] is None or _truth(values[1])
    return _rounds(call, body, most, going, list(values[2:]), _between(call), Walks(body))


def _rounds(
    call: Call,
    body: Program,
    most: int | None,
    going: bool,
    state: list[Value],
    run: Any,
    walks: Walks | None = None,
) -> list[Value]:
    count = len(state)
    kept = [body.outputs[1 + n] == body.inputs[2 + n] for n in range(count)]
    rows: list[list[Any]] = [[] for _ in range(len(body.outputs) - 1 - count)]
    i = 0
    while going and (most is None or i < most):
        env = dict(call.env)
        state = [v if same else passing(v) for v, same in zip(state, kept, strict=True)]
        given = [Host(np.array(i, np.int64)), Host(np.array(True)), *state]
        env.update(zip(body.inputs, given, strict=True))
        walk = None if walks is None else walks.find(env)
        if walk is not None:
            i, state, going = walk.run(env, i, most, state, rows)
            continue
        made = run(body, env)
        if walks is not None:
            walks.learn()
        going = _truth(made[0])
        state = list(made[1 : 1 + count])
        for row, value in zip(rows, made[1 + count :], strict=True):
            row.append(value)
        i += 1
    return [*state, *(_stacked(row, body, body.outputs[1 + count + n], 0) for n, row in enumerate(rows))]


def _stacked(row: list[Any], body: Program, name: str, axis: int) -> Value:
    """What rounds have left, along a new axis; of no rounds, nothing of the declared type."""
    if not row:
        return _nothing(body, name, axis)
    if any(isinstance(v, Rows) for v in row):
        arrays = [v.array() if isinstance(v, Rows) else np.asarray(to_user(v))[None] for v in row]
        alike([a.shape[1:] for a in arrays])
        whole = np.concatenate(arrays)
        return Tensor.from_numpy(np.ascontiguousarray(np.moveaxis(whole, 0, axis)))
    hosts = [v for v in row if isinstance(v, Host)]
    if len(hosts) == len(row):
        return Host(np.stack([v.array for v in hosts], axis), hosts[0].elem)
    if any(isinstance(v, Coded) for v in row):
        raise UnsupportedModel("values of this type cannot be gathered from rounds")
    tensors = [as_tensor(v) for v in row]
    return tensors[0].stack(*tensors[1:], dim=axis) if len(tensors) > 1 else tensors[0].unsqueeze(axis)


def _nothing(body: Program, name: str, axis: int) -> Value:
    from morok.onnx.types import numpy_type

    info = body.infos.get(name)
    kind = info.type.tensor_type if info is not None else None
    elem = kind.elem_type if kind is not None and kind.elem_type else 1
    sizes = [d.dim_value for d in kind.shape.dim] if kind is not None else []
    sizes.insert(axis, 0)
    return Host(np.zeros(sizes, numpy_type(elem)), elem)


@op("Loop", since=1, steps=_loop_steps)
def loop(call: Call, most: Value | None, going: Value | None, *state: Value, body: Any) -> Any:
    """Rounds of a graph: unrolled if their number is known and small, else run one by one."""
    program: Program = body
    if most is None or not isinstance(most, Host) or most.symbolic:
        raise NeedSteps
    rounds = int(most.array.reshape(-1)[0])
    if rounds * max(len(program.nodes), 1) > _UNROLLED:
        raise NeedSteps
    if going is not None and not isinstance(going, Host):
        raise NeedValue(1)

    def run(program: Program, env: Any) -> list[Value]:
        made = call.tracer.inline(program, env)
        if not isinstance(made[0], Host):
            raise NeedSteps
        return list(made)

    return tuple(_rounds(call, program, rounds, going is None or _truth(going), list(state), run))


# --- Scan


def _scan(call: Call, values: list[Value], run: Any, attributes: dict[str, Any]) -> list[Value]:
    body: Program = attributes["body"]
    count = attributes["num_scan_inputs"]
    states, inputs = list(values[: len(values) - count]), list(values[len(values) - count :])
    n = len(body.outputs) - len(states)
    in_axes = attributes.get("scan_input_axes") or [0] * count
    in_back = attributes.get("scan_input_directions") or [0] * count
    out_axes = attributes.get("scan_output_axes") or [0] * n
    out_back = attributes.get("scan_output_directions") or [0] * n
    in_axes = [axis_of(a, len(shape_of(x))) for a, x in zip(in_axes, inputs, strict=True)]
    lengths = {known(shape_of(x)[a], "Scan") for a, x in zip(in_axes, inputs, strict=True)}
    if len(lengths) != 1:
        raise ShapeError(f"the inputs of a Scan have different lengths: {sorted(lengths)}")
    kept = [body.outputs[k] == body.inputs[k] for k in range(len(states))]
    rows: list[list[Value]] = [[] for _ in range(n)]
    length = lengths.pop()
    for i in range(length):
        env = dict(call.env)
        parts = [
            _slice(x, a, length - 1 - i if b else i) for x, a, b in zip(inputs, in_axes, in_back, strict=True)
        ]
        states = [v if same else passing(v) for v, same in zip(states, kept, strict=True)]
        env.update(zip(body.inputs, [*states, *parts], strict=True))
        made = run(body, env)
        states = list(made[: len(states)])
        for row, value in zip(rows, made[len(states) :], strict=True):
            row.append(value)
    done = []
    for k, row in enumerate(rows):
        name = body.outputs[len(states) + k]
        ndim = len(shape_of(row[0])) + 1 if row else 1
        done.append(_stacked(row[::-1] if out_back[k] else row, body, name, axis_of(out_axes[k], ndim)))
    return [*states, *done]


def _slice(x: Value, axis: int, at: int) -> Value:
    if isinstance(x, Host):
        return Host(np.take(x.array, at, axis), x.elem)
    return as_tensor(x).select(axis, at)


def _scan_steps(call: Call, values: list[Value]) -> list[Value]:
    return _each_batch(call, values, _between(call), call.node.attributes, call.version)


def _each_batch(
    call: Call, values: list[Value], run: Any, attributes: dict[str, Any], version: int
) -> list[Value]:
    """Version 8 has a batch in front, and lengths of its own for each element of it."""
    if version >= 9:
        return _scan(call, values, run, attributes)
    lengths, rest = values[0], values[1:]
    if lengths is not None:
        raise UnsupportedModel("a Scan with sequence lengths is not read")
    directions = attributes.get("directions")
    inner = {**attributes, "scan_input_directions": directions}
    batches = known(shape_of(rest[0])[0], "Scan")
    each = [_scan(call, [_slice(v, 0, b) for v in rest], run, inner) for b in range(batches)]
    return [_stacked([row[k] for row in each], attributes["body"], "", 0) for k in range(len(each[0]))]


def _may_unroll(call: Call, values: list[Value], attributes: dict[str, Any]) -> bool:
    count = attributes["num_scan_inputs"]
    x = values[-count]
    axis = (attributes.get("scan_input_axes") or [0])[0] if call.version >= 9 else 1
    length = known(shape_of(x)[axis], "Scan")
    batches = known(shape_of(x)[0], "Scan") if call.version < 9 else 1
    return bool(length * batches * max(len(attributes["body"].nodes), 1) <= _UNROLLED)


@op("Scan", since=9, steps=_scan_steps)
def scan(
    call: Call,
    *xs: Value,
    body: Any,
    num_scan_inputs: int,
    scan_input_axes: Any = None,
    scan_input_directions: Any = None,
    scan_output_axes: Any = None,
    scan_output_directions: Any = None,
) -> Any:
    """A graph along axes of its inputs: unrolled if short, else run one slice after the other."""
    attributes = call.node.attributes
    if not _may_unroll(call, list(xs), attributes):
        raise NeedSteps
    return tuple(_scan(call, list(xs), call.tracer.inline, attributes))


@op("Scan", until=8, steps=_scan_steps)
def scan_old(call: Call, *xs: Value, body: Any, num_scan_inputs: int, directions: Any = None) -> Any:
    attributes = call.node.attributes
    if not _may_unroll(call, list(xs), attributes):
        raise NeedSteps
    return tuple(_each_batch(call, list(xs), call.tracer.inline, attributes, call.version))


# --- SequenceMap


def _map(call: Call, values: list[Value], run: Any) -> list[Value]:
    body: Program = call.node.attributes["body"]
    rows = [_items(v) if isinstance(v, list | Grown) else None for v in values]  # None: the same each time
    counts = {len(row) for row in rows if row is not None}
    if len(counts) > 1:
        raise ShapeError(f"the sequences of a SequenceMap have different lengths: {sorted(counts)}")
    made: list[list[Value]] = [[] for _ in body.outputs]
    for i in range(counts.pop()):
        env = dict(call.env)
        given = [v if row is None else passing(row[i]) for v, row in zip(values, rows, strict=True)]
        env.update(zip(body.inputs, given, strict=True))
        for row, value in zip(made, run(body, env), strict=True):
            row.append(value)
    return list(made)


@op("SequenceMap", since=17, steps=lambda call, values: _map(call, values, _between(call)))
def sequence_map(call: Call, xs: Value, *others: Value, body: Any) -> Any:
    if len(_items(xs)) * len(body.nodes) > _UNROLLED:
        raise NeedSteps
    return tuple(_map(call, [xs, *others], call.tracer.inline))
