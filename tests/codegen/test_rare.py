"""Stage 21a: what is hardly ever needed is computed under a branch, and means the same."""

import numpy as np
import pytest

from morok import Tensor
from morok.codegen.linear.rare import rare_stage
from morok.codegen.pipeline import Context
from morok.dtype import float32, int64, void
from morok.ir.build import RARE, define_global, special
from morok.ir.node import UOp, alu, const, make
from morok.ir.ops import AxisKind, Ops
from morok.machine.files import load
from tests.devices import devices


def _list(length: int) -> UOp:
    """y[0] ← x[0] < 1, rarely, ? x+1+1…+1 : x·x, as a list."""
    y, x = (define_global(float32, 4, n) for n in (0, 1))
    at = [make(Ops.INDEX, float32.ptr(4, p.dtype.space), (p, const(int64, 0))) for p in (y, x)]
    value = make(Ops.LOAD, float32, (at[1],))
    condition = alu(Ops.CMPLT, value, const(float32, 1.0))
    far = [value]
    for _ in range(length):
        far.append(alu(Ops.ADD, far[-1], const(float32, 1.0)))
    near = alu(Ops.MUL, value, value)
    choice = make(Ops.WHERE, float32, (condition, far[-1], near), RARE)
    return make(
        Ops.LINEAR, void,
        (
            y, x, at[1], value, condition, *far[1:], near, choice, at[0],
            make(Ops.STORE, void, (at[0], choice)),
        ),
    )  # fmt: skip


def _depths(root: UOp) -> dict[UOp, int]:
    depth, found = 0, {}
    for node in root.src:
        depth -= node.op is Ops.ENDIF
        found[node] = depth
        depth += node.op is Ops.IF
    return found


def test_only_the_far_side_is_under_the_branch():
    root = _list(20)
    depths = _depths(rare_stage(root, None))
    assert sum(n.op is Ops.ADD for n in depths) == 20
    assert all(depths[n] == 1 for n in depths if n.op is Ops.ADD)
    assert all(depths[n] == 0 for n in depths if n.op in (Ops.MUL, Ops.CMPLT, Ops.LOAD))
    seen: set[UOp] = set()
    for node in depths:  # nothing is used before it is there, and nothing is lost
        assert all(s in seen or s.op in (Ops.CONST, Ops.VCONST) for s in node.src), node.op
        seen.add(node)
    assert not any(n.arg == RARE for n in depths)


def test_a_short_way_is_worth_no_branch():
    root = rare_stage(_list(3), None)
    assert not any(n.op is Ops.IF or n.arg == RARE for n in root.src)
    assert sum(n.op is Ops.WHERE for n in root.src) == 1


def test_what_others_need_stays_outside():
    root = _list(20)
    adds = [n for n in root.src if n.op is Ops.ADD]
    *rest, place, store = root.src
    more = alu(Ops.MUL, store.src[1], adds[5])  # so the first six are needed in any case
    listed = make(Ops.LINEAR, void, (*rest, place, more, make(Ops.STORE, void, (place, more))))
    depths = _depths(rare_stage(listed, None))
    assert sorted(depths[n] for n in depths if n.op is Ops.ADD) == [0] * 6 + [1] * 14


NEAR, FAR = [0.0, -0.0, 0.5, -3.0, 100.0], [1e9, -3e38, 2.5e20, np.inf, -np.inf, np.nan]


@pytest.mark.parametrize("device", devices("CPU", "EMULATOR"))
@pytest.mark.parametrize("name", ["sin", "cos", "tan"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_lanes_that_take_both_ways(device, name, dtype):
    rng = np.random.default_rng(3)
    for size in (1, 7, 64, 131):
        x = rng.choice(np.array(NEAR * 4 + FAR, dtype), size)
        x[rng.integers(size)] = 1e9
        with np.errstate(invalid="ignore"):
            wide = np.longdouble if dtype is np.float64 else np.float64
            want = getattr(np, name)(x.astype(wide)).astype(dtype)
        got = getattr(Tensor(x, device=device), name)().numpy()
        np.testing.assert_array_equal(np.isnan(got), np.isnan(want))
        fine = ~np.isnan(want)
        error = np.abs(got - want)[fine] / np.spacing(np.abs(want[fine]))
        assert error.max(initial=0.0) <= (3.0 if dtype is np.float64 else 2.0)
        np.testing.assert_array_equal(np.signbit(got[x == 0]), np.signbit(want[x == 0]))


@pytest.mark.parametrize("first", [False, True])
@pytest.mark.parametrize("is_or", [False, True])
def test_what_a_block_agrees_in_is_asked_first(is_or: bool, first: bool) -> None:
    """Choices in a loop of matrix units, by a comparison of a thread and one of the block: the first of them
    is computed where the second holds, and the choice of the other side needs neither. What is chosen may be
    read between the choices."""
    linear = _masked(12, is_or, first)
    depths = _depths(rare_stage(linear, Context(load("emulator"))))
    assert sum(n.op is Ops.IF for n in depths) == 1
    assert all(depths[n] == 1 for n in depths if n.op in (Ops.WHERE, Ops.AND, Ops.OR))
    seen: set[UOp] = set()
    for node in depths:
        assert all(s in seen or s.op in (Ops.CONST, Ops.VCONST) for s in node.src), node.op
        seen.add(node)
    few = rare_stage(_masked(2, is_or, first), Context(load("emulator")))
    assert not any(n.op is Ops.IF for n in few.src)


def _masked(count: int, is_or: bool, first: bool) -> UOp:
    """for r: … if thread + i < 7 and block < r: 0 else x[i] …, or the other way round, beside a product."""
    y, x = (define_global(float32, 64, n) for n in (0, 1))
    zero = const(float32.vec(4), 0.0)
    thread, block = (special(n, const(int64, 9)) for n in ("lidx0", "gidx0"))
    r = make(Ops.RANGE, int64, (const(int64, 8),), (0, AxisKind.REDUCE))
    edge = alu(Ops.CMPLT, block, r)
    product = make(Ops.WMMA, float32.vec(4), (zero, zero, zero), None)
    code = [y, x, thread, block, r, edge, *([alu(Ops.NOT, edge)] if is_or else []), product]
    read = [make(Ops.INDEX, x.dtype, (x, const(int64, i))) for i in range(count)]
    found = [make(Ops.LOAD, float32, (at,)) for at in read]
    code += [*read, *found] if first else []
    stores = []
    for i, near in enumerate(found):
        place = alu(Ops.ADD, thread, const(thread.dtype, i))
        own = alu(Ops.CMPLT, place, const(thread.dtype, 7))
        hidden = const(float32, 0.0)
        condition = alu(Ops.OR, own, alu(Ops.NOT, edge)) if is_or else alu(Ops.AND, own, edge)
        sides = (near, hidden) if is_or else (hidden, near)
        choice = make(Ops.WHERE, float32, (condition, *sides))
        target = make(Ops.INDEX, y.dtype, (y, const(int64, i)))
        code += [*([] if first else [read[i], near]), place, own, condition, choice]
        stores += [target, make(Ops.STORE, void, (target, choice))]
    end = make(Ops.END, void, (stores[-1], r))
    return make(Ops.LINEAR, void, (*code, *stores, end))
