"""Products whose rows are counted later: one kernel with a tile, right for every count."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from morok import Tensor, Variable, jit, knobs
from morok.device.cpu.device import program_of
from morok.device.registry import get_device
from morok.dtype import PtrDType
from morok.ir.build import rng, variable
from morok.ir.node import UOp, alu, const, toposort
from morok.ir.ops import AxisKind, Ops
from morok.optimize.heuristics.apply import optimize
from morok.optimize.heuristics.specialize import special_values, with_values
from morok.optimize.loops import loops_of, size
from morok.optimize.record import applied
from morok.symbolic.sets import simplify
from tests.optimize.plans import an_h200, empty, planned

random = np.random.default_rng(16)


def values(*shape: int) -> np.ndarray:
    return random.standard_normal(shape).astype(np.float32)


def test_places_in_rows_of_unknown_length() -> None:
    """Row and column of an element, from its number: (r*n + c) // n and (r*n + c) % n."""
    n = variable("n", 1, 64)
    row, column = rng(5, 0), rng(n, 1)
    number = alu(Ops.ADD, column, alu(Ops.MUL, n, row))
    assert simplify(number // n) is row and simplify(number % n) is column
    other = rng(const(n.dtype, 64), 2)  # may lie beyond n
    assert simplify(other // n) is not const(n.dtype, 0) and simplify(other % n) is not other


def test_the_divisor_may_be_nothing() -> None:
    """x // 0 is 0 here, so n*x // n is not x if n may be 0."""
    n = variable("n", 0, 64)
    x, y = rng(5, 0), rng(7, 1)
    number = alu(Ops.ADD, alu(Ops.MUL, x, n), y)
    assert simplify(number // n).op is Ops.FLOORDIV


COUNTS = (1, 2, 3, 4, 5, 6, 7, 8, 9, 16, 17, 24, 31, 32, 40)


@pytest.mark.parametrize("threads", [1, 2])
def test_rows_of_a_product(threads: int) -> None:
    a, w, b = values(40, 48), values(36, 48), values(36)
    x, weight, bias = Tensor(a).realize(), Tensor(w).realize(), Tensor(b).realize()
    with knobs.override(THREADS=threads):
        layer = jit(lambda x, n: (x[:n] @ weight.T + bias).relu())
        for count in COUNTS:
            found = layer(x, Variable("n", 1, 40).bind(count)).numpy()
            np.testing.assert_allclose(found, np.maximum(a[:count] @ w.T + b, 0), rtol=1e-4, atol=1e-5)
        assert layer.traces == 1


@pytest.mark.parametrize("threads", [1, 2])
def test_rows_and_columns_of_scores(threads: int) -> None:
    a, b = values(2, 150, 16), values(2, 150, 16)
    q, k = Tensor(a).realize(), Tensor(b).realize()
    with knobs.override(THREADS=threads):
        scores = jit(lambda q, k, n: (q[:, :n] @ k[:, :n].transpose(1, 2)).softmax(-1) @ k[:, :n])
        for count in (*COUNTS, 149, 150):
            s = np.einsum("bik,bjk->bij", a[:, :count].astype(np.float64), b[:, :count])
            p = np.exp(s - s.max(-1, keepdims=True))
            expected = (p / p.sum(-1, keepdims=True)) @ b[:, :count]
            found = scores(q, k, Variable("n", 1, 150).bind(count)).numpy()
            np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-4)
        assert scores.traces == 1


def test_unknown_rows_have_a_tile() -> None:
    n = Variable("n", 1, 512).bind(3)
    x, w = Tensor.empty(512, 96).realize(), Tensor.empty(64, 96).realize()
    plan = (x[:n] @ w.T).prepare()
    machine = get_device("CPU").machine
    done = applied(optimize(plan.kernels[-1].ast, machine))
    lanes = [opt.amount for opt in done if opt.name == "UPCAST"]
    assert sum(amount > 1 for amount in lanes) >= 2 and any(opt.name == "PACK" for opt in done)


def plan_of(y: Tensor) -> list[str]:
    """The actions on the last kernel of a program."""
    return [opt.name for opt in applied(optimize(y.prepare().kernels[-1].ast, get_device("CPU").machine))]


FEW = [(1, 1), (2, 3), (4, 5), (6, 7)]
TILES = [(8, 31)]  # where both operands lie along the steps


def product(more: Callable[[Tensor, Tensor], Tensor]) -> UOp:
    n = Variable("n", 1, 512).bind(3)
    x, scale = Tensor.empty(512, 576).realize(), Tensor.empty(512, 1).realize()
    return more(x[:n], scale[:n]).prepare().kernels[-1].ast


MATRIX = 1536, 576
WAYS = {
    "x @ w.T": lambda x, s: x @ Tensor.empty(*MATRIX).realize().T,
    "x @ w": lambda x, s: x @ Tensor.empty(*reversed(MATRIX)).realize(),
    "(x * s) @ w.T": lambda x, s: (x * s) @ Tensor.empty(*MATRIX).realize().T,
    "(x * s) @ w": lambda x, s: (x * s) @ Tensor.empty(*reversed(MATRIX)).realize(),
}


@pytest.mark.parametrize("way", WAYS)
def test_few_rows_do_not_pack_the_matrix(way: str) -> None:
    """What pays for many rows would be most of the work. Rows that are computed first are so once."""
    ast, machine = product(WAYS[way]), get_device("CPU").machine
    n, few = special_values(ast, machine)
    assert n is not None and few == FEW + TILES * way.endswith("w.T")
    assert special_values(with_values(ast, n, (2, 2)), machine) == (None, [])
    assert special_values(optimize(ast, machine), machine) == (None, [])
    for values in few:
        narrow = with_values(ast, n, values)
        packed = {opt.axis for opt in applied(optimize(narrow, machine)) if opt.name == "PACK"}
        matrix = next(
            m.arg
            for m in toposort(narrow)
            if m.op is Ops.DEFINE_GLOBAL and isinstance(m.dtype, PtrDType) and m.dtype.size == 1536 * 576
        )
        assert matrix not in packed and (bool(packed) or "s)" not in way or values == (1, 1))


def test_values_that_make_few_rows() -> None:
    """Rows are counted, not the variable: 2 * n of them are 2, 4 and 6, and n - 1 are none at first."""
    machine = get_device("CPU").machine
    w = Tensor.empty(64, 96).realize()
    for low, rows, want in (
        (1, lambda n: 2 * n, [(1, 1), (2, 2), (3, 3), (4, 15)]),
        (3, lambda n: n, [(3, 3), (4, 5), (6, 7), (8, 31)]),
        (9, lambda n: n, [(9, 31)]),
        (40, lambda n: n, []),
        (2, lambda n: n - 1, [(2, 2), (3, 4), (5, 6), (7, 8), (9, 32)]),
    ):
        n = Variable("n", low, 200)
        x = Tensor.empty(400, 96).realize()[: rows(n.bind(max(20, low)))]
        found = special_values((x @ w.T).prepare().kernels[-1].ast, machine)[1]
        assert found == want


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("transposed", [False, True])
def test_the_number_of_rows_chooses_the_code(threads: int, transposed: bool) -> None:
    """On the processor, whichever device the tests are for: one compilation, and the same for every count."""
    a, w, s = values(40, 300), values(300, 700), values(40, 1)
    x, scale = Tensor(a, device="CPU").realize(), Tensor(s, device="CPU").realize()
    weight = Tensor(np.ascontiguousarray(w.T if transposed else w), device="CPU").realize()
    with knobs.override(THREADS=threads):
        layer = jit(lambda x, n: ((x[:n] * scale[:n]) @ (weight.T if transposed else weight)).relu())
        for count in (9, *COUNTS):
            found = layer(x, Variable("n", 1, 40).bind(count)).numpy()
            want = np.maximum((a[:count] * s[:count]).astype(np.float64) @ w, 0)
            np.testing.assert_allclose(found, want, rtol=1e-3, atol=1e-3)
        assert layer.traces == 1


def test_a_kernel_with_several_codes_is_one_program() -> None:
    ast, machine = product(WAYS["x @ w.T"]), get_device("CPU").machine
    text = program_of(ast, machine, optimize).text
    lines = text.splitlines()
    assert sum("switch i64" in line for line in lines) == 2  # which code, and how much threads share of it
    shared = [line for line in lines if line.startswith(("declare", "attributes"))]
    assert len(shared) == len(set(shared))
    assert "switch" not in program_of(ast, machine, None).text


def normed(x: Tensor) -> Tensor:
    return x * (x * x).mean(-1, keepdim=True).add(1e-5).rsqrt()


@pytest.mark.parametrize("threads", [1, 2])
def test_rows_that_are_computed_first(threads: int) -> None:
    """A norm in front of a product, and rows that lie apart in memory: both are packed up to their bound."""
    a, w = values(40, 48), values(48, 36)
    x, weight = Tensor(a).realize(), Tensor(w).realize()
    turned = Tensor(np.ascontiguousarray(a.T)).realize()
    wide = a.astype(np.float64)
    wide = (wide / np.sqrt((wide**2).mean(-1, keepdims=True) + 1e-5)) @ w
    with knobs.override(THREADS=threads):
        layer = jit(lambda x, n: normed(x[:n]) @ weight)
        apart = jit(lambda x, n: x[:, :n].T @ weight)
        for count in COUNTS:
            n = Variable("n", 1, 40).bind(count)
            np.testing.assert_allclose(layer(x, n).numpy(), wide[:count], rtol=1e-4, atol=1e-5)
            np.testing.assert_allclose(apart(turned, n).numpy(), a[:count] @ w, rtol=1e-4, atol=1e-5)
        assert layer.traces == apart.traces == 1


def test_unknown_rows_that_are_computed_first_are_packed() -> None:
    """Otherwise every tile of columns computes its rows again."""
    w = Tensor.empty(96, 64).realize()
    packed = []
    for bound in (512, 1 << 16):  # of which the second is too many to be packed at once
        n, x = Variable("n", 1, bound).bind(3), Tensor.empty(bound, 96).realize()
        packed.append(plan_of(normed(x[:n]) @ w).count("PACK"))
    assert packed[0] == packed[1] + 1


@pytest.mark.parametrize("threads", [1, 2])
def test_steps_of_a_product(threads: int) -> None:
    """K is known later: the panel is packed up to its bound, and as much of it is read as there is."""
    a, w = values(24, 70), values(70, 36)
    x, weight = Tensor(a).realize(), Tensor(w).realize()
    with knobs.override(THREADS=threads):
        layer = jit(lambda x, w, n: x[:, :n] @ w[:n])
        for count in (1, 2, 7, 16, 33, 69, 70):
            found = layer(x, weight, Variable("n", 1, 70).bind(count)).numpy()
            np.testing.assert_allclose(found, a[:, :count] @ w[:count], rtol=1e-4, atol=1e-5)
        assert layer.traces == 1


def test_unknown_steps_have_a_panel() -> None:
    n = Variable("n", 1, 512).bind(3)
    x, w = Tensor.empty(96, 512).realize(), Tensor.empty(512, 64).realize()
    assert "PACK" in plan_of(x[:, :n] @ w[:n])


@pytest.mark.parametrize("dtype", ["float32", "int8"])
def test_a_scale_per_column_is_packed_along(dtype: str) -> None:
    """The matrix and its scale move along the columns together: one panel holds their product."""
    a, s = values(40, 48), values(36)
    w = random.integers(-100, 100, (48, 36)).astype(dtype)
    y = Tensor(a).realize() @ (Tensor(w).realize().cast("float32") * Tensor(s).realize())
    assert "PACK" in plan_of(y)
    np.testing.assert_allclose(y.numpy(), a @ (w.astype(np.float32) * s), rtol=1e-4, atol=1e-3)


def test_queries_that_share_keys_share_what_is_read_of_them() -> None:
    with an_h200() as machine:
        n = Variable("n", 1, 4096).bind(300)
        queries, keys = empty(16, 8, 4, 128, dtype="float32"), empty(16, 4096, 8, 128, dtype="float16")
        scores = queries @ keys[:, :n].permute(0, 2, 3, 1).cast("float32")
        (found,) = planned([scores.uop], machine)
        assert "UPCAST" in found.names and found.shares
        kept = [size(r) for r in loops_of(found.ast).closers if r.arg[1] is AxisKind.LOOP]
        assert 4 not in kept


def test_many_rows_are_packed_tile_by_tile() -> None:
    """Rows that do not stay in the cache while panels pass: as where they are counted, both are packed."""
    n = Variable("n", 1, 1024)
    with knobs.override(DEVICE="CPU", MACHINE="neoverse-n1", THREADS=2):
        for rows in (512, n.bind(512)):
            x = Tensor.empty(1024, 512, device="CPU")[:rows]
            product = x @ Tensor.empty(512, 512, device="CPU")
            (found,) = planned([product.uop], get_device("CPU").machine)
            packed = [opt.axis for opt in applied(found.ast) if opt.name == "PACK"]
            assert sorted(packed) == [1, 2]


@pytest.mark.parametrize("columns", [512, 500])
def test_packed_rows_of_every_count(columns: int) -> None:
    a, w = values(1024, 300), values(300, columns)
    x, weight = (Tensor(v, device="CPU").realize() for v in (a, w))
    with knobs.override(DEVICE="CPU", THREADS=2):
        f = jit(lambda x, n: x[:n] @ weight)
        for count in (1, 7, 8, 9, 16, 100, 501, 1023, 1024):
            found = f(x, Variable("n", 1, 1024).bind(count)).numpy()
            np.testing.assert_allclose(found, a[:count] @ w, rtol=1e-3, atol=1e-3)
