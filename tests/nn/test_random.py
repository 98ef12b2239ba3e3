"""Random tensors: known answers, moments, the same numbers everywhere, errors."""

import json
import pickle
from collections.abc import Callable

import mpmath
import numpy as np
import pytest

import morok
from morok import Tensor, grad, knobs
from morok import random as rnd
from morok.errors import DTypeError, ShapeError
from morok.ir.node import alu, const
from morok.ir.ops import Ops
from morok.tensor.random import drawing_from, new_cell
from tests.devices import devices


def test_known_answers_of_threefry(device: str) -> None:
    """The published test vectors of Threefry-2x32 with 20 rounds."""
    ones = 0xFFFFFFFFFFFFFFFF
    for counter, key, answer in ((0, 0, 0x99BA4EFE6B200159), (ones, ones, 0xBB002BE71CB996FC)):
        x = Tensor(np.array([counter], dtype=np.uint64))
        assert Tensor._new(alu(Ops.THREEFRY, x.uop, const(x.dtype, key))).tolist() == [answer]


def test_the_same_seed_gives_the_same_numbers_everywhere() -> None:
    results = []
    for device in ("PYTHON", "CPU", "EMULATOR", *devices()):
        with knobs.override(DEVICE=device):
            morok.manual_seed(42)
            first, second = Tensor.rand(5), Tensor.rand(5)
            second.realize()  # the order of realising does not matter
            results.append((first.tolist(), second.tolist(), Tensor.randint(100, shape=(4,)).tolist()))
    assert all(found == results[0] for found in results)
    assert results[0][0] != results[0][1]
    # pinned: these numbers must never change
    np.testing.assert_allclose(results[0][0][:3], PINNED, rtol=0, atol=0)


PINNED = [0.6116746664047241, 0.2009502649307251, 0.9628143906593323]


def test_moments() -> None:
    morok.manual_seed(0)
    u, n = Tensor.rand(20000).numpy(), Tensor.randn(20000).numpy()
    assert 0.0 <= u.min() and u.max() < 1.0
    assert abs(u.mean() - 0.5) < 0.01 and abs(u.var() - 1 / 12) < 0.003
    assert abs(n.mean()) < 0.03 and abs(n.std() - 1.0) < 0.02 and np.isfinite(n).all()
    assert abs((np.abs(n) < 1.96).mean() - 0.95) < 0.01
    m = Tensor.normal(5000, mean=3.0, std=0.5).numpy()
    assert abs(m.mean() - 3.0) < 0.05 and abs(m.std() - 0.5) < 0.05
    v = Tensor.uniform(5000, low=-1.0, high=3.0).numpy()
    assert v.min() >= -1.0 and v.max() < 3.0 and abs(v.mean() - 1.0) < 0.1
    both = np.corrcoef(n[:-1], n[1:])[0, 1]
    assert abs(both) < 0.03


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_types(dtype: str) -> None:
    morok.manual_seed(1)
    for x in (Tensor.rand(500, dtype=dtype), Tensor.randn(500, dtype=dtype)):
        assert x.dtype.name == dtype and bool(x.isfinite().all())
    u = Tensor.rand(3000, dtype=dtype).cast("float64").numpy()
    assert u.max() < 1.0 and abs(u.mean() - 0.5) < 0.03


def test_integers() -> None:
    morok.manual_seed(2)
    counts = np.bincount(Tensor.randint(-3, 4, (7000,)).numpy() + 3, minlength=7)
    assert counts.sum() == 7000 and abs(counts - 1000).max() < 150
    assert Tensor.randint(5, 6, (3,)).tolist() == [5, 5, 5]
    small = Tensor.randint(0, 256, (100,), dtype="uint8")
    assert small.dtype.name == "uint8" and small.numpy().max() > 100
    wide = Tensor.randint(-(2**63), 2**63, (100,)).numpy()
    assert (wide < 0).any() and (wide > 0).any()


def test_choices() -> None:
    morok.manual_seed(3)
    p = Tensor.full((4000,), 0.3).bernoulli().numpy()
    assert set(p) == {0.0, 1.0} and abs(p.mean() - 0.3) < 0.03
    for count in (0, 1, 10, 300):
        assert sorted(Tensor.permutation(count).tolist()) == list(range(count))
    counts = np.bincount([Tensor.permutation(3).tolist().index(0) for _ in range(60)], minlength=3)
    assert counts.min() > 5
    drawn = Tensor([1.0, 0.0, 3.0]).multinomial(2000, replacement=True).numpy()
    assert set(drawn) == {0, 2} and abs((drawn == 2).mean() - 0.75) < 0.05
    rows = Tensor([[1.0, 1.0, 1.0], [1.0, 0.0, 1.0]]).multinomial(2).tolist()
    assert all(len(set(row)) == 2 for row in rows) and set(rows[1]) == {0, 2}


def test_dropout() -> None:
    morok.manual_seed(4)
    x = Tensor.ones(4000)
    y = x.dropout(0.25).numpy()
    assert set(np.unique(y)) == {0.0, np.float32(1 / 0.75)} and abs(y.mean() - 1.0) < 0.05
    assert x.dropout(0.5, training=False) is x
    assert x.dropout(1.0).sum().item() == 0.0
    value = Tensor.ones(1000)
    dropped = value.dropout(0.5)
    (g,) = dropped.sum().gradient(value)
    Tensor.realize(dropped, g)
    np.testing.assert_array_equal(g.numpy(), dropped.numpy())  # the same mask, forward and backward
    assert grad(lambda t: t.dropout(0.0).sum())(Tensor([1.0])).tolist() == [1.0]


def test_a_second_draw_is_the_same_kernel() -> None:
    kernels = [(Tensor.rand(7) + 1).prepare().kernels[0].ast for _ in range(2)]
    assert kernels[0] is kernels[1]


def test_a_recorded_program_counts_on_from_one_cell() -> None:
    morok.manual_seed(5)
    plain = Tensor.rand(3).tolist(), Tensor.randn(2, dtype="float64").tolist()
    morok.manual_seed(5)
    cell = new_cell(7)
    with drawing_from(cell) as draws:
        a, b = Tensor.rand(3), Tensor.randn(2, dtype="float64")
    assert draws.count == 7 and (a.tolist(), b.tolist()) == plain


def test_errors() -> None:
    with pytest.raises(DTypeError, match="random fractions are floats, not int32; use randint"):
        Tensor.rand(3, dtype="int32")
    with pytest.raises(DTypeError, match="randint needs low < high"):
        Tensor.randint(3, 3, (2,))
    with pytest.raises(DTypeError, match="within an integer type"):
        Tensor.randint(0, 300, (2,), dtype="uint8")
    with pytest.raises(ShapeError, match="4 draws without replacement need as many weights, not 3"):
        Tensor([1.0, 1.0, 1.0]).multinomial(4)
    with pytest.raises(ValueError, match="between 0 and 1"):
        Tensor([1.0]).dropout(1.5)


# --- generators


def test_a_generator_has_numbers_of_its_own_and_its_state_can_be_saved(device: str) -> None:
    g = morok.Generator(5)
    before = Tensor.get_rng_state()
    first = Tensor.rand(4, generator=g).tolist()
    state = json.loads(json.dumps(g.get_state()))
    copies = pickle.loads(pickle.dumps(g))
    second = Tensor.randn(4, generator=g).tolist()
    assert Tensor.get_rng_state() == before  # the process's own numbers were not touched
    g.set_state(state)
    assert Tensor.randn(4, generator=g).tolist() == second == Tensor.randn(4, generator=copies).tolist()
    with morok.Generator(5):
        assert Tensor.rand(4).tolist() == first
        with morok.Generator(6):
            assert Tensor.rand(4).tolist() != first
    assert Tensor.rand(4, generator=g.manual_seed(5)).tolist() == first
    with pytest.raises(morok.MorokError, match="a key and a count"):
        g.set_state((1,))


def test_compiled_functions_draw_from_the_generator_around_them() -> None:
    step = morok.jit(lambda x: x + Tensor.rand(3))
    with morok.Generator(9) as g:
        step(Tensor.zeros(3)), step(Tensor.zeros(3))
        g.manual_seed(1)
        first = [step(Tensor.zeros(3)).tolist() for _ in range(2)]
    with morok.Generator(1):
        assert [Tensor.rand(3).tolist() for _ in range(2)] == first

    @morok.jit
    def inside(x: Tensor) -> Tensor:
        return x + Tensor.rand(3, generator=g)

    with pytest.raises(morok.MorokError, match="with generator:"):
        inside(Tensor.zeros(3)), inside(Tensor.zeros(3))


# --- distributions: how many lie below some places, beside the distribution function

COUNT = 4000


def _between(low: float, high: float) -> Callable[[float], float]:
    return lambda x: float((mpmath.ncdf(x) - mpmath.ncdf(low)) / (mpmath.ncdf(high) - mpmath.ncdf(low)))


def _gamma(shape: float, scale: float) -> Callable[[float], float]:
    return lambda x: float(mpmath.gammainc(shape, 0, x / scale, regularized=True))


def _poisson(mean: float) -> Callable[[float], float]:
    return lambda x: float(mpmath.gammainc(np.floor(x) + 1, mean, mpmath.inf, regularized=True))


def _binomial(n: int, p: float) -> Callable[[float], float]:
    return lambda x: float(mpmath.betainc(n - np.floor(x), np.floor(x) + 1, 0, 1 - p, regularized=True))


# name → (draw, distribution function, places to look at)
LAWS: dict[str, tuple[Callable[[], Tensor], Callable[[float], float], tuple[float, ...]]] = {
    "exponential": (lambda: rnd.exponential(2.0, COUNT), lambda x: 1 - np.exp(-x / 2.0), (0.2, 1.0, 5.0)),
    "gumbel": (
        lambda: rnd.gumbel(1.0, 2.0, COUNT), lambda x: np.exp(-np.exp(-(x - 1.0) / 2.0)), (-1.0, 1.0, 5.0),
    ),
    "truncated": (lambda: rnd.truncated_normal(-1.0, 2.0, size=COUNT), _between(-1.0, 2.0), (-0.8, 0.0, 1.0)),
    "truncated, tail": (
        lambda: rnd.truncated_normal(-9.0, -8.0, size=COUNT), _between(-9.0, -8.0), (-8.4, -8.1, -8.02),
    ),
    "gamma 0.05": (lambda: rnd.gamma(0.05, size=COUNT), _gamma(0.05, 1.0), (1e-9, 1e-3, 0.1)),
    "gamma 3.5": (lambda: rnd.gamma(3.5, 2.0, size=COUNT), _gamma(3.5, 2.0), (2.0, 5.0, 7.0, 12.0)),
    "gamma 1000": (lambda: rnd.gamma(1000.0, size=COUNT), _gamma(1000.0, 1.0), (960.0, 1000.0, 1050.0)),
    "beta": (
        lambda: rnd.beta(0.3, 2.0, COUNT),
        lambda x: float(mpmath.betainc(0.3, 2.0, 0, x, regularized=True)), (1e-4, 0.02, 0.1, 0.4),
    ),
    "poisson 0.1": (lambda: rnd.poisson(0.1, COUNT), _poisson(0.1), (0, 1)),
    "poisson 9.5": (lambda: rnd.poisson(9.5, COUNT), _poisson(9.5), (5, 8, 10, 13)),
    "poisson 14.5": (lambda: rnd.poisson(14.5, COUNT), _poisson(14.5), (9, 13, 15, 19)),
    "poisson of tensors": (lambda: Tensor.full((COUNT,), 30.0).poisson(), _poisson(30.0), (22, 29, 33, 38)),
    "binomial, few": (lambda: rnd.binomial(100, 0.02, COUNT), _binomial(100, 0.02), (0, 1, 2, 4)),
    "binomial, many": (lambda: rnd.binomial(100, 0.4, COUNT), _binomial(100, 0.4), (34, 39, 42, 47)),
    "binomial, nearly all": (lambda: rnd.binomial(1000, 0.97, COUNT), _binomial(1000, 0.97), (963, 969, 975)),
}  # fmt: skip


@pytest.mark.parametrize("name", list(LAWS))
def test_distributions(name: str) -> None:
    draw, law, places = LAWS[name]
    with morok.Generator(11):
        found = draw().numpy()
    for place in places:
        wanted = law(place)
        assert abs((found <= place).mean() - wanted) < 4.0 * np.sqrt(wanted * (1 - wanted) / COUNT), place


def test_distributions_are_the_same_on_every_device() -> None:
    results = []
    for device in ("PYTHON", "CPU", "EMULATOR", *devices()):
        with knobs.override(DEVICE=device), morok.Generator(3):
            drawn = [
                rnd.exponential(1.0, 8),
                rnd.gamma(2.5, size=8),
                rnd.poisson(3.0, 8),
                rnd.binomial(9, 0.5, 8),
            ]
            results.append([x.numpy() for x in drawn])
    for found in results[1:]:
        for a, b in zip(found, results[0], strict=True):
            np.testing.assert_allclose(a, b, rtol=2e-6, atol=1e-30)


def test_parameters_broadcast_and_have_gradients() -> None:
    scale = Tensor([[1.0], [2.0]], requires_grad=True)
    x = rnd.exponential(scale, (2, 3))
    slope = x.sum().gradient(scale)[0]
    np.testing.assert_allclose(slope.numpy(), x.numpy().sum(1, keepdims=True) / scale.numpy(), rtol=1e-5)
    assert rnd.gamma(Tensor([1.0, 2.0]), size=(3, 2)).shape == (3, 2)
    assert rnd.poisson(Tensor([1.0, 2.0])).dtype is morok.int64
    with pytest.raises(ShapeError):
        rnd.gamma(Tensor([1.0, 2.0]), size=(3,))


def test_edges_of_distributions() -> None:
    assert Tensor([0.0]).poisson().tolist() == [0.0] and np.isnan(Tensor([-1.0]).poisson().item())
    assert rnd.binomial(7, 0.0, 3).tolist() == [0, 0, 0] and rnd.binomial(7, 1.0, 3).tolist() == [7, 7, 7]
    assert rnd.exponential(size=(0, 2)).shape == (0, 2) and rnd.normal().shape == ()
    assert rnd.exponential(1.0, 4, dtype="float16").dtype is morok.float16
    assert rnd.uniform(2.0, 3.0, 50).min().item() >= 2.0 and rnd.integers(2, 3, (2,)).tolist() == [2, 2]


def test_positions_by_their_logits() -> None:
    with morok.Generator(4):
        found = Tensor(np.log([0.1, 0.2, 0.7])).categorical(4000).numpy()
    np.testing.assert_allclose(np.bincount(found) / 4000, [0.1, 0.2, 0.7], atol=0.03)
    assert Tensor([[0.0, 50.0], [50.0, 0.0]]).categorical(axis=0).tolist() == [1, 0]
    shares = Tensor([1.0, 2.0, 3.0]).dirichlet(2000).numpy()
    np.testing.assert_allclose(shares.sum(-1), 1.0, rtol=1e-5)
    np.testing.assert_allclose(shares.mean(0), [1 / 6, 1 / 3, 1 / 2], atol=0.02)
