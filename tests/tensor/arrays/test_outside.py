"""Positions that an axis does not have: an error that names the line and the number, as soon as it is known.

NumPy is the judge: of what is an error, of what negative positions mean, and of the values of all others.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from morok import Tensor, Variable, jit, knobs
from morok.device.interpreter import run_kernel
from morok.errors import MorokError, OutOfRange, ShapeError
from morok.machine.machine import Machine
from morok.nn import losses as nn_losses
from morok.optimize.actions.table import apply_all
from morok.optimize.record import Opt
from tests.devices import devices
from tests.tensor.common import same

DEVICES = devices("CPU", "PYTHON", "EMULATOR")
RNG = np.random.default_rng(5)
X = RNG.standard_normal((7, 4)).astype(np.float32)
V = RNG.standard_normal((3, 4)).astype(np.float32)


def _set(x: Any, i: Any, v: Any) -> Any:
    x[i] = v
    return x


def _put_along(x: Any, i: Any, v: Any) -> Any:
    np.put_along_axis(x, i, v, 0)
    return x


def _add_at(x: Any, i: Any, v: Any) -> Any:
    np.add.at(x, i, v)
    return x


def _wide(i: Any) -> Any:
    """One position per row as one per element, which gather and scatter take."""
    return i.reshape(3, 1).expand(3, 4) if isinstance(i, Tensor) else np.broadcast_to(i[:, None], (3, 4))


T = Callable[[Any, Any, Any], Any]
OPS: dict[str, tuple[T, T]] = {  # of x, three positions along its first axis, and rows: morok's and NumPy's
    "x[t]": (lambda x, i, v: x[i], lambda x, i, v: x[i]),
    "x[t, s]": (lambda x, i, v: x[i, i * 0 + 1], lambda x, i, v: x[i, i * 0 + 1]),
    "x[:, t]": (lambda x, i, v: x.T[1:, i], lambda x, i, v: x.T[1:, i]),
    "take": (lambda x, i, v: x.take(i, 0), lambda x, i, v: x.take(i, 0)),
    "index_select": (lambda x, i, v: x.index_select(0, i), lambda x, i, v: x.take(i, 0)),
    "embedding": (lambda x, i, v: x.embedding(i), lambda x, i, v: x[i]),
    "gather": (lambda x, i, v: x.gather(0, _wide(i)), lambda x, i, v: np.take_along_axis(x, _wide(i), 0)),
    "take_along_dim": (
        lambda x, i, v: x.take_along_dim(_wide(i), 0),
        lambda x, i, v: np.take_along_axis(x, _wide(i), 0),
    ),
    "x[t] = v": (_set, _set),
    "scatter": (lambda x, i, v: x.scatter(0, _wide(i), v), lambda x, i, v: _put_along(x, _wide(i), v)),
    "scatter_add": (
        lambda x, i, v: x.scatter_add(0, _wide(i), v),
        lambda x, i, v: _add_at(x, (_wide(i), np.broadcast_to(np.arange(4), (3, 4))), v),
    ),
    "index_add": (lambda x, i, v: x.index_add(0, i, v), _add_at),
    "index_copy": (lambda x, i, v: x.index_copy(0, i, v), _set),
    "index_put": (lambda x, i, v: x.index_put((i,), v, accumulate=True), _add_at),
}
POSITIONS = {
    "inside": [0, 6, 3],
    "from the end": [-1, 2, -7],
    "too large": [0, 7, 3],
    "too negative": [1, -8, 2],
}


def _as(how: str, i: Any) -> Any:
    """The positions as somebody may have them."""
    if how == "constant":
        return i
    t = Tensor(i)
    return t + (t * 0) if how == "lazy" else t.realize()


def _judged(by_numpy: Callable[[], Any], by_morok: Callable[[], Any], wrong: int | None) -> None:
    try:
        wanted = by_numpy()
    except IndexError:
        with pytest.raises(IndexError, match=f"index {wrong} is outside of axis .* of shape") as told:
            by_morok().numpy()
        assert isinstance(told.value, OutOfRange) and isinstance(told.value, MorokError)
        assert "test_outside.py:" in str(told.value)
        return
    same(by_morok(), wanted)


@pytest.mark.parametrize("name", OPS)
@pytest.mark.parametrize("device", DEVICES)
def test_every_op_as_numpy(device: str, name: str) -> None:
    ours, theirs = OPS[name]
    with knobs.override(DEVICE=device):
        for kind, numbers in POSITIONS.items():
            i = np.array(numbers, np.int64)
            wrong = numbers[1] if kind.startswith("too") else None
            for how in ("constant", "lazy", "realised"):
                if how == "constant" and name in ("gather", "take_along_dim", "scatter", "scatter_add"):
                    continue  # these take tensors
                _judged(
                    lambda i=i: theirs(X.copy(), i, V),
                    lambda i=i, how=how: ours(Tensor(X.copy()), _as(how, i), Tensor(V)),
                    wrong,
                )
        assert Tensor([1.0, 2.0])[Tensor([1])].tolist() == [2.0], "what comes later is not concerned"


@pytest.mark.parametrize("name", ["x[t]", "gather", "index_add", "take_along_dim"])
@pytest.mark.parametrize("device", DEVICES)
def test_under_jit(device: str, name: str) -> None:
    ours, theirs = OPS[name]
    with knobs.override(DEVICE=device):
        f = jit(lambda x, i, v: ours(x, i, v) * 2)
        x, v = Tensor(X).realize(), Tensor(V).realize()
        for kind in (
            "inside",
            "from the end",
            "inside",
            "too large",
            "inside",
            "too negative",
            "from the end",
        ):
            numbers = POSITIONS[kind]
            i = np.array(numbers, np.int32)
            _judged(
                lambda i=i: theirs(X.copy(), i, V) * 2,
                lambda i=i: f(x, Tensor(i).realize(), v),
                numbers[1],
            )
        assert f.traces == 1


@pytest.mark.parametrize("dtype", ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"])
@pytest.mark.parametrize("device", DEVICES)
def test_types_of_positions(device: str, dtype: str) -> None:
    """Into an axis that is longer than what the type counts to, and into a shorter one."""
    with knobs.override(DEVICE=device):
        for size in (1000, 100):
            x = np.arange(size)
            numbers = [0, 99] + ([-1, -100] if dtype.startswith("i") else [7])
            i = np.array(numbers, dtype)
            t = Tensor(i).realize()
            same(Tensor(x).gather(0, t), x[i])
            same(Tensor(x)[t], x[i])
            same(Tensor(x).index_select(0, t), x[i])
            same(Tensor(x).take(i), x[i])
            same(Tensor(x)[i], x[i])
            added = x.copy()
            np.add.at(added, i, np.arange(i.size))
            same(Tensor(x).index_add(0, t, Tensor(np.arange(i.size))), added)
            same(Tensor(x).scatter_add(0, t, Tensor(np.arange(i.size))), added)
        for number in (np.iinfo(dtype).max, 101):
            bad = Tensor(np.array([1, number], dtype)).realize()
            for made in (Tensor(x)[bad], Tensor(x).scatter(0, bad, Tensor([1, 1]))):
                with pytest.raises(OutOfRange, match=f"index {number} is outside of axis 0"):
                    made.numpy()


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int64", "uint64"])
@pytest.mark.parametrize("device", DEVICES)
def test_labels(device: str, dtype: str) -> None:
    with knobs.override(DEVICE=device):
        hot = Tensor(np.array([100, 7], dtype)).one_hot(300).numpy()
        assert hot.shape == (2, 300) and hot.sum() == 2 and hot[0, 100] == hot[1, 7] == 1
        logs = RNG.standard_normal((2, 300)).astype(np.float32)
        wanted = -(logs[0, 100] + logs[1, 7]) / 2
        same(Tensor(logs).nll_loss(Tensor(np.array([100, 7], dtype))), np.float32(wanted), rtol=1e-6)


@pytest.mark.parametrize("device", DEVICES)
def test_labels_that_are_no_class(device: str) -> None:
    x = RNG.standard_normal((4, 3)).astype(np.float32)
    logs = x - np.log(np.exp(x.astype(np.float64)).sum(1, keepdims=True)).astype(np.float32)
    with knobs.override(DEVICE=device):
        t = Tensor(x)
        for wrong in (7, 3, -1, -3, -101):
            y = Tensor([0, wrong, 2, 1])
            for call in (
                lambda y=y: t.cross_entropy(y),
                lambda y=y: t.cross_entropy(y, "none", label_smoothing=0.1),
                lambda y=y: t.cross_entropy(y, ignore_index=None),
                lambda y=y: nn_losses.nll_loss(t, y),
                lambda y=y: y.one_hot(3),
            ):
                with pytest.raises(OutOfRange, match=f"label {wrong} is no class; use 0 … 2"):
                    call().numpy()
        for ignored, labels in ((-100, [0, -100, 2, 1]), (2, [0, 1, 2, 2]), (7, [7, 1, 7, 0])):
            y = np.array(labels)
            here = y != ignored
            losses = np.where(here, -logs[np.arange(4), np.where(here, y, 0)], 0)
            same(t.cross_entropy(Tensor(y), "none", ignored), losses, rtol=1e-5, atol=1e-6)
            same(t.cross_entropy(Tensor(y), "sum", ignored), losses.sum(), rtol=1e-5)
            same(
                t.cross_entropy(Tensor(y), "mean", ignored), losses.sum() / np.float32(here.sum()), rtol=1e-5
            )
            found = nn_losses.nll_loss(Tensor(logs), Tensor(y), ignore_index=ignored)
            same(found, losses.sum() / np.float32(here.sum()), rtol=1e-5)
        assert t.cross_entropy(Tensor([-100] * 4), "sum").item() == 0.0
        assert np.isnan(t.cross_entropy(Tensor([-100] * 4)).item())
        with pytest.raises(OutOfRange, match="label -100 is no class"):
            t.cross_entropy(Tensor([-100] * 4), ignore_index=None).numpy()
    with pytest.raises(ShapeError, match="negative"):
        Tensor([1]).one_hot(-1)


def test_the_gradient_of_ignored_labels_is_zero() -> None:
    x = Tensor(X[:, :3]).realize()
    (g,) = x.cross_entropy(Tensor([0, -100, 1, -100, 2, 0, -100]), "sum").gradient(x)
    assert not g.numpy()[[1, 3, 6]].any() and g.numpy()[[0, 2, 4, 5]].all()


# --- what a kernel may do with a check


@pytest.mark.parametrize("device", DEVICES)
def test_positions_that_nobody_needs_are_heard_of(device: str) -> None:
    """The values do not depend on them: the algebra takes them away, and the check stays."""
    with knobs.override(DEVICE=device):
        bad = Tensor([0, 7]).realize()
        calls: dict[str, Callable[[], Tensor]] = {
            "zeros": lambda: Tensor.zeros(5)[bad],
            "ones": lambda: Tensor.ones(5)[bad] + 1,
            "times zero": lambda: Tensor([1, 2, 3])[bad] * 0,
            "of one element": lambda: Tensor([[5]])[bad],
            "a constant": lambda: Tensor([1, 2, 3])[Tensor.full((2,), 7)],
            "a count": lambda: Tensor([1, 2, 3, 4, 5, 6, 7])[Tensor.arange(8)],
        }
        for name, call in calls.items():
            with pytest.raises(OutOfRange, match="index 7 is outside"):
                print(name, call().numpy())


@pytest.mark.parametrize("device", DEVICES)
def test_positions_that_nobody_asks_for_are_not_looked_at(device: str) -> None:
    with knobs.override(DEVICE=device):
        x = Tensor(X).realize()
        mixed = Tensor([9, 1, -1, 30]).realize()
        same(x[mixed][1:3], X[[1, -1]])
        # outside of the padding the position would be 0 + 5, which this table does not have
        few = Tensor(X[:4]).realize()
        same(few[Tensor([-3, -2]).realize() + 5].pad(((1, 2), (0, 0))), np.pad(X[2:4], ((1, 2), (0, 0))))
        same(x[Tensor([1, 2]).realize()].cat(x[Tensor([3]).realize()]), X[[1, 2, 3]])


@pytest.mark.parametrize("count", [1, 2, 3, 5, 31, 64, 1000, 4099])
@pytest.mark.parametrize("device", DEVICES)
def test_in_loops_that_are_cut(device: str, count: int) -> None:
    """Rests, lanes, threads: each position is asked about, and none that is not there."""
    count = min(count, 131) if device != "CPU" else count
    with knobs.override(DEVICE=device):
        x = np.arange(50, 60)
        i = RNG.integers(-15, -5, count)  # as they are used: 10 more
        for where in {0, count // 2, count - 1}:
            for number in (None, 10, -11):
                j = i.copy()
                if number is not None:
                    j[where] = number - 10
                t = Tensor(j).realize() + 10
                for f in (lambda y: y, lambda y: y * 2 + 1, lambda y: y.sum(), lambda y: y.max()):
                    if number is None:
                        same(f(Tensor(x)[t]), f(x[j + 10]))
                    else:
                        with pytest.raises(OutOfRange, match=f"index {number} is outside"):
                            f(Tensor(x)[t]).numpy()


def test_a_loop_that_is_rounded_up_asks_about_nothing_more() -> None:
    """Beyond the end what is read is 0, and there is no class 0 + 10."""
    y = np.array([-1, -10, -3, -4, -5])
    (kernel,) = (Tensor(y).realize() + 10).one_hot(10).plan().kernels
    rounded = apply_all(kernel.ast, [Opt("PADTO", 0, 4)], Machine())
    for numbers, wrong in ((y, 0), (y + np.array([0, 0, 0, 0, 5]), 10)):
        out, notes = np.zeros((5, 10), np.int64), np.zeros(1, np.int64)
        run_kernel(rounded, [out.reshape(-1), numbers, notes])
        assert notes[0] == wrong
        np.testing.assert_array_equal(out[:4], np.eye(10, dtype=np.int64)[numbers[:4]])


@pytest.mark.parametrize("device", DEVICES)
def test_a_fused_consumer_is_still_one_kernel(device: str) -> None:
    with knobs.override(DEVICE=device):
        table, i = Tensor(X).realize(), Tensor([1, -2, 3]).realize()
        for made in (
            table[i] * 2 + 1,
            table[i].softmax(-1),
            table[i].sum(),
            table[i] @ Tensor(X.T).realize(),
        ):
            assert len(made.plan().kernels) == 1
        y = Tensor([1, 2, 0]).realize()
        assert len(table[:3].cross_entropy(y).plan().kernels) == 1
        bad = Tensor([1, -9, 3]).realize()
        for lost in (table[bad].softmax(-1), table[bad].sum(), table[bad] @ Tensor(X.T).realize()):
            with pytest.raises(OutOfRange, match="index -9"):
                lost.numpy()


def test_what_is_certain_is_not_checked() -> None:
    x, i = Tensor(X).realize(), Tensor(RNG.integers(-99, 99, 10)).realize()
    for made in (x[i % 7], x[i.clamp(0, 6)], x[Tensor.arange(3) * 2], x[x.argmax(0) * 0]):
        assert not made.plan().schedule.checks
        made.numpy()
    assert len(x[i].plan().schedule.checks) == 1


@pytest.mark.parametrize("device", DEVICES)
def test_gradients(device: str) -> None:
    """Only the gradient is asked for: the positions are looked at all the same."""
    with knobs.override(DEVICE=device):
        for table in (X, np.tile(X, (9, 1))):
            x = Tensor(table).realize()
            (g,) = x[Tensor([1, -1, 1])].sum().gradient(x)
            wanted = np.zeros_like(table)
            np.add.at(wanted, [1, -1, 1], 1)
            same(g, wanted)
            (g,) = x[Tensor([1, 99, 1])].sum().gradient(x)
            with pytest.raises(OutOfRange, match="index 99"):
                g.numpy()


def test_an_assignment_that_fails_changes_nothing() -> None:
    x = Tensor(X.copy()).realize()
    y = x[1:3] * 1
    y.realize()
    x[Tensor([1, 9])] = 5
    for _ in range(1 if knobs.DEVICE.start.upper().startswith("CUDA") else 2):  # a GPU tells it once
        with pytest.raises(OutOfRange, match="index 9"):
            x.numpy()
    same(y, X[1:3])


@pytest.mark.parametrize("size", [(64, 40), (48, 29)])
def test_workers_that_share_a_kernel_each_fill_their_sums(size: tuple[int, int]) -> None:
    """A note beside the shared axis is no reason to leave a loop to the first worker alone."""
    rng = np.random.default_rng(0)
    rows, classes = size
    x, labels = rng.standard_normal(size).astype(np.float32), rng.integers(0, classes, rows)
    with knobs.override(DEVICE="CPU", THREADS=2):
        logits = Tensor(x)
        (g,) = logits.cross_entropy(Tensor(labels)).gradient(logits)
        got = g.numpy()
    e = np.exp(x.astype(np.float64))
    wanted = (e / e.sum(1, keepdims=True) - np.eye(classes)[labels]) / rows
    np.testing.assert_allclose(got, wanted, atol=1e-6)


def test_the_same_signature_tells_each_its_own_line() -> None:
    x = Tensor(X).realize()
    told = []
    for number in (50, 51):
        with pytest.raises(OutOfRange) as first:
            x[Tensor([number])].numpy()
        with pytest.raises(OutOfRange) as second:
            x[Tensor([number])].numpy()
        told += [(first.value.place, first.value.message.split()[1]), (second.value.place, "")]
    assert told[0][0] == told[2][0] != told[1][0] == told[3][0]
    assert told[0][1] == "50" and told[2][1] == "51"


def test_several_checks_in_one_kernel() -> None:
    x = Tensor(X).realize()
    good = [Tensor([n]).realize() for n in (1, 2)]
    for wrong, axis in ((9, 0), (-6, 1)):
        i = list(good)
        i[axis] = Tensor([wrong]).realize()
        made = x[i[0]].sum() + x[:, i[1]].sum()
        with pytest.raises(OutOfRange, match=f"index {wrong} is outside of axis {axis}"):
            made.numpy()
        with pytest.raises(OutOfRange, match=f"index {wrong} is outside of axis {axis}"):
            x[i[0], i[1]].numpy()


@pytest.mark.parametrize("device", DEVICES)
def test_sizes_that_are_known_later(device: str) -> None:
    with knobs.override(DEVICE=device):
        x = Tensor(X).realize()
        n = Variable("n", 1, 7)
        for size, number in ((4, 4), (4, -5), (7, 7), (7, -8), (4, 3), (4, -4)):
            part = x[: n.bind(size)][Tensor([number])]
            if -size <= number < size:
                same(part, X[:size][[number]])
            else:
                with pytest.raises(OutOfRange, match=f"index {number} is outside of axis 0"):
                    part.numpy()


def test_an_empty_axis_has_no_positions() -> None:
    empty = Tensor(np.zeros((0, 4), np.float32))
    with pytest.raises(OutOfRange, match=r"axis 0 of shape \(0, 4\) is empty"):
        empty[Tensor([0])]
    with pytest.raises(IndexError):
        empty[0]
    assert empty[Tensor(np.zeros(0, np.int64))].shape == (0, 4)


@pytest.mark.parametrize("device", DEVICES)
def test_without_checks(device: str) -> None:
    with knobs.override(DEVICE=device, CHECK_INDICES=False):
        x = Tensor(X).realize()
        found = x[Tensor([1, 9])]
        assert not found.plan().schedule.checks
        same(found, np.stack([X[1], np.zeros(4, np.float32)]))
        same(Tensor(np.arange(1000))[Tensor(np.array([100], np.uint8))], np.array([100]))
    with knobs.override(DEVICE=device), pytest.raises(OutOfRange, match="index 9"):
        x[Tensor([1, 9])].numpy()


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_a_mean_of_what_is_scattered_keeps_its_type(dtype: str) -> None:
    x, s = np.array([1, 2, 3], dtype), np.array([5, 7], dtype)
    same(
        Tensor(x).scatter_reduce(0, Tensor([1, 1]), Tensor(s), "mean"), np.array([1, 14 / 3, 3]).astype(dtype)
    )
    found = Tensor(x).scatter_reduce(0, Tensor([1, 1]), Tensor(s), "mean", include_self=False)
    same(found, np.array([1, 6, 3], dtype))
