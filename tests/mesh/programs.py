"""Random programs of tensors on a mesh, and the same ones on one device."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

import numpy as np

import morok
from morok import Tensor
from morok.device.registry import get_device
from morok.ir.ops import COLLECTIVES, Ops

SIZES = (1, 2, 3, 4, 4, 5, 6, 8, 8)
MESHES = ((1,), (2,), (2, 2), (4,), (3,))
MARGIN = 128  # bytes: what a scalar beside it, or an alignment, takes
SUMS = (Ops.ALLREDUCE, Ops.REDUCE_SCATTER)


@dataclass
class Program:
    """Steps as text and functions of the tensors so far; run twice, on a device and on a mesh."""

    seed: int
    lines: list[str] = field(default_factory=list)
    tensors: list[Any] = field(default_factory=list)


def mesh_for(rng: random.Random, shapes: tuple[tuple[int, ...], ...] = MESHES) -> Any:
    sizes = rng.choice(shapes)
    return morok.mesh(sizes, ("data", "model")[: len(sizes)])


def spec_for(rng: random.Random, mesh: Any, shape: tuple[int, ...]) -> Any:
    """Some axes of a tensor cut along some of the mesh."""
    parts: list[Any] = [None] * len(shape)
    for axis in mesh.axes:
        free = [n for n, part in enumerate(parts) if part is None and shape[n] > 1]
        if free and rng.random() < 0.7:
            parts[rng.choice(free)] = axis
    return morok.P(*parts)


def values(rng: random.Random, shape: tuple[int, ...], kind: str = "float") -> Any:
    made = np.random.default_rng(rng.randrange(1 << 30))
    if kind == "int":
        return made.integers(0, 4, shape)
    return made.standard_normal(shape).astype(np.float32)


class Runner:
    """One run of a program: what differs between the two is where inputs are put."""

    def __init__(self, seed: int, mesh: Any | None) -> None:
        self.rng = random.Random(seed)
        self.mesh = mesh
        self.lines: list[str] = []

    def input(self, shape: tuple[int, ...], kind: str = "float") -> Any:
        data = values(self.rng, shape, kind)
        spec = spec_for(self.rng, self.grid, shape)
        x = Tensor(data)
        self.lines.append(f"input {shape} {kind} {spec}")
        return x if self.mesh is None else x.shard(self.mesh, spec).realize()

    def run(self) -> list[Any]:
        rng = self.rng
        self.grid = mesh_for(rng)
        if self.mesh is not None:
            self.mesh = self.grid
        known = [self.input(_shape(rng)) for _ in range(rng.choice((1, 2)))]
        for _ in range(rng.choice((1, 2, 3, 4))):
            name, step = rng.choice(STEPS)
            found = step(self, rng, known)
            if found is not None:
                self.lines.append(f"{name} -> {found.shape}")
                known.append(found)
        if rng.random() < 0.3:
            known.append(self.gradient(known))
        return known[-3:]

    def gradient(self, known: list[Any]) -> Any:
        x = known[0]
        if not x.dtype.is_float:
            return known[-1]
        target = x.detach().contiguous().realize()
        target.requires_grad_()
        other = self.input(tuple(target.shape))
        y = (target * other).tanh().sum(-1) if target.ndim else target * other
        self.lines.append("gradient")
        return (y * y).sum().gradient(target)[0]


def _shape(rng: random.Random) -> tuple[int, ...]:
    return tuple(rng.choice(SIZES) for _ in range(rng.choice((1, 2, 2, 3, 4))))


def _pick(rng: random.Random, known: list[Any]) -> Any:
    return rng.choice(known)


def _unary(run: Runner, rng: random.Random, known: list[Any]) -> Any:
    x = _pick(rng, known)
    return getattr(x, rng.choice(("relu", "exp", "tanh", "neg", "abs", "sigmoid")))()


def _binary(run: Runner, rng: random.Random, known: list[Any]) -> Any:
    x = _pick(rng, known)
    shape = tuple(1 if rng.random() < 0.3 else n for n in x.shape)
    y = run.input(shape[rng.randrange(len(shape) + 1) :])
    how = rng.choice(("add", "sub", "mul", "maximum", "where", "lt"))
    if how == "where":
        return (x > 0).where(x, y)
    if how == "lt":
        return (x < y).float()
    return getattr(x, how)(y)


def _reduce(run: Runner, rng: random.Random, known: list[Any]) -> Any:
    x = _pick(rng, known)
    if not x.ndim:
        return None
    axis = rng.randrange(x.ndim)
    how = rng.choice(("sum", "mean", "max", "min", "prod", "argmax", "var"))
    if how == "var" and x.shape[axis] < 2:
        how = "sum"
    if how == "argmax":
        return x.argmax(axis).float()
    return getattr(x, how)(axis, keepdim=rng.random() < 0.5)


def _product(run: Runner, rng: random.Random, known: list[Any]) -> Any:
    x = _pick(rng, known)
    if not x.ndim:
        return None
    return x @ run.input((x.shape[-1], rng.choice(SIZES)))


def _softmax(run: Runner, rng: random.Random, known: list[Any]) -> Any:
    x = _pick(rng, known)
    return x.softmax(rng.randrange(x.ndim)) if x.ndim else None


def _norm(run: Runner, rng: random.Random, known: list[Any]) -> Any:
    x = _pick(rng, known)
    if not x.ndim:
        return None
    m = x.mean(-1, keepdim=True)
    return (x - m) / (((x - m) ** 2).mean(-1, keepdim=True) + 1e-3).sqrt()


def _move(run: Runner, rng: random.Random, known: list[Any]) -> Any:
    x = _pick(rng, known)
    if not x.ndim:
        return None
    how = rng.choice(
        ("permute", "reshape", "flip", "slice", "pad", "expand", "stride", "cat", "roll", "shift", "row")
    )
    axis = rng.randrange(x.ndim)
    if how == "shift":
        return _shift(x, axis, rng.choice((1, 2, -1, -2)))
    if how == "permute":
        return x.permute(*rng.sample(range(x.ndim), x.ndim))
    if how == "reshape":
        flat = x.reshape(-1) if rng.random() < 0.5 else x.unsqueeze(axis)
        n = x.shape[axis]
        if n % 2 == 0 and rng.random() < 0.5:
            return x.reshape(*x.shape[:axis], 2, n // 2, *x.shape[axis + 1 :])
        return flat
    if how == "flip":
        return x.flip(axis)
    if how == "pad":
        return x.pad(tuple((1, 2) if n == axis else (0, 0) for n in range(x.ndim)))
    if how == "expand":
        return x.unsqueeze(0).expand(3, *x.shape)
    if how == "cat":
        return x.cat(x * 2, dim=axis)
    if how == "roll":
        return x.roll(1, axis)
    key: list[Any] = [slice(None)] * x.ndim
    n = x.shape[axis]
    row = rng.randrange(n)
    key[axis] = {"slice": slice(n // 3, n), "row": slice(row, row + 1)}.get(how, slice(None, None, 2))
    return x[tuple(key)]


def _shift(x: Any, axis: int, by: int) -> Any:
    n = x.shape[axis]
    by = max(-n, min(n, by))
    key: list[Any] = [slice(None)] * x.ndim
    key[axis] = slice(max(-by, 0), n - max(by, 0))
    pads = [(max(by, 0), max(-by, 0)) if i == axis else (0, 0) for i in range(x.ndim)]
    return x[tuple(key)].pad(tuple(pads))


def _scan(run: Runner, rng: random.Random, known: list[Any]) -> Any:
    x = _pick(rng, known)
    return x.cumsum(rng.randrange(x.ndim)) if x.ndim else None


def _rows(run: Runner, rng: random.Random, known: list[Any]) -> Any:
    table = run.input((rng.choice((4, 5, 8)), rng.choice(SIZES)))
    at = run.input((rng.choice(SIZES), rng.choice((1, 2, 3))), "int")
    return table[at]


def _gather(run: Runner, rng: random.Random, known: list[Any]) -> Any:
    table = run.input((rng.choice((4, 5, 8)), 4))
    at = run.input((rng.choice(SIZES), 4), "int")
    return table.gather(0, at)


def _scatter(run: Runner, rng: random.Random, known: list[Any]) -> Any:
    x = run.input((5, 4))
    at = run.input((rng.choice(SIZES), 4), "int")
    return x.scatter_reduce(0, at, run.input(tuple(at.shape)), "sum")


def _convolve(run: Runner, rng: random.Random, known: list[Any]) -> Any:
    x = run.input((rng.choice((2, 3, 4)), 2, 6, 6))
    w = run.input((4, 2, 3, 3))
    return x.conv2d(w, padding=rng.choice((0, 1)))


def _attend(run: Runner, rng: random.Random, known: list[Any]) -> Any:
    sizes = (rng.choice((2, 4)), rng.choice((2, 4)), rng.choice((4, 6)), 4)
    q, k, v = (run.input(sizes) for _ in range(3))
    return ((q @ k.transpose(-1, -2)) * 0.5).softmax(-1) @ v


def _assign(run: Runner, rng: random.Random, known: list[Any]) -> Any:
    x = run.input(_shape(rng))
    old = x * 3 if rng.random() < 0.5 else None
    if rng.random() < 0.4:
        x.assign(x * 2 + 1)
    else:
        axis = rng.randrange(x.ndim)
        n = x.shape[axis]
        key: list[Any] = [slice(None)] * x.ndim
        key[axis] = slice(n // 2, n)
        x[tuple(key)] = x[tuple(key)] * 2 - 1
    return x + 1 if old is None else old - x


def _random(run: Runner, rng: random.Random, known: list[Any]) -> Any:
    x = _pick(rng, known)
    Tensor.manual_seed(rng.randrange(1000))
    return x + Tensor.rand(*x.shape) if x.ndim else None


STEPS = (
    ("unary", _unary), ("unary", _unary), ("binary", _binary), ("binary", _binary), ("reduce", _reduce),
    ("reduce", _reduce), ("product", _product), ("product", _product), ("softmax", _softmax), ("norm", _norm),
    ("move", _move), ("move", _move), ("move", _move), ("scan", _scan), ("rows", _rows), ("gather", _gather),
    ("scatter", _scatter), ("convolve", _convolve), ("attend", _attend), ("assign", _assign),
    ("random", _random),
)  # fmt: skip


def sums_cross(plan: Any) -> bool:
    """Whether devices add or multiply each other's values."""
    found = [k.ast for k in plan.kernels if k.ast.op in COLLECTIVES]
    return any(ast.op in SUMS and ast.arg in (Ops.ADD, Ops.MUL) for ast in found)


def check(seed: int) -> dict[str, int]:
    """Runs a program on one device and on a mesh and compares; what the mesh's plans did."""
    plain, sharded = Runner(seed, None), Runner(seed, object())
    wanted, found = plain.run(), sharded.run()
    seen = {"collectives": 0, "sums": 0, "exact": 0, "other order": 0}
    for n, (x, y) in enumerate(zip(wanted, found, strict=True)):
        if y.is_realized:
            continue
        plan = y.plan()
        crosses = sums_cross(plan)
        kernels = [k for k in plan.kernels if k.ast.op in COLLECTIVES]
        told = "\n".join([f"seed {seed}, result {n}", *sharded.lines, str(plan)])
        seen["collectives"] += len(kernels)
        seen["sums"] += crosses
        layout = y.placement
        reference = x.numpy()
        traffic = None if layout is None else get_device(layout.name).engine.traffic
        if traffic is not None:
            traffic.clear()
        y.realize()
        if traffic is not None:  # what the engine has really carried, message by message
            wanted_bytes = sum(wire_bytes(k.ast) for k in kernels)
            assert traffic.total == wanted_bytes, told
        values_ = y.numpy()
        assigned = any(line.startswith("assign") for line in sharded.lines)
        if layout is not None and not assigned:  # each device keeps its part, and no more
            assert plan.memory.output_bytes <= layout.local_numel * y.dtype.itemsize + MARGIN, told
        # A sum over what other devices have sent runs over their rows one by one: in another order.
        reduces = kernels and any(k.name[0] in "rs" for k in plan.kernels)
        seen["other order"] += bool(reduces)
        if seen["sums"] or seen["other order"]:
            np.testing.assert_allclose(values_, reference, rtol=2e-4, atol=2e-4, err_msg=told)
        else:
            np.testing.assert_array_equal(values_, reference, err_msg=told)
            seen["exact"] += 1
    return seen


def wire_bytes(ast: Any) -> int:
    """What the busiest device sends, by theory: elements are whole, and rows of them may be uneven."""
    devices = int(np.prod([r.src[0].arg for r in ast.src[1:]]))
    elements, each = int(ast.src[0].arg[1]), ast.dtype.itemsize
    if devices == 1:
        return 0
    if ast.op is Ops.ALLREDUCE:  # everybody's row but its own, and the sum of its own row to everybody
        rows = [len(row) for row in np.array_split(np.arange(elements), devices)]
        return max(elements - row + (devices - 1) * row for row in rows) * each
    if ast.op is Ops.BROADCAST:
        return elements * each
    if ast.op is Ops.SEND_RECEIVE:  # who has nobody behind it sends nothing
        return elements * each if abs(ast.arg) < devices else 0
    return (devices - 1) * elements * each // (1 if ast.op is Ops.ALLGATHER else devices)
