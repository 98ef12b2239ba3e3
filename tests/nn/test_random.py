"""Random tensors: known answers, moments, the same numbers everywhere, errors."""

import numpy as np
import pytest

import morok
from morok import Tensor, grad, knobs
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
    for count in (0, 1, 10, 3000):
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
