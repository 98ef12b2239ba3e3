"""Variables as arguments of compiled functions, and parts of tensors that these write: caches."""

from __future__ import annotations

import gc

import numpy as np
import pytest

from morok import Tensor, Variable, jit, knobs
from morok.device.buffer import find_buffer
from morok.errors import IRError, OutOfRange, ShapeError, VariableError
from morok.ir.memory import base_of

HOST = not knobs.DEVICE.start.upper().startswith(("CUDA", "EMULATOR"))  # tensors lie where NumPy reads them

ROWS, WIDTH = 12, 4


def rows(seed: int, count: int = ROWS) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((count, WIDTH)).astype(np.float32)


def memory(tensor: Tensor) -> int:
    return id(find_buffer(base_of(tensor.uop)))


def softmax(x: np.ndarray) -> np.ndarray:
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def attend(cache: Tensor, x: Tensor, at: Variable) -> Tensor:
    cache[at : at + 1] = x * 2.0
    seen = cache[: at + 1]
    return (x @ seen.T).softmax(-1) @ seen


def expected(x: np.ndarray, n: int) -> np.ndarray:
    seen = x[: n + 1] * 2.0
    return softmax(x[n : n + 1] @ seen.T) @ seen


def test_a_cache_from_outside_and_all_positions_are_one_trace() -> None:
    x, at = rows(0), Variable("at", 0, ROWS - 1)
    cache = Tensor.zeros(ROWS, WIDTH).contiguous().realize()
    step = jit(lambda row, at: attend(cache, row, at))
    for n in range(ROWS):
        got = step(Tensor(x[n : n + 1]), at.bind(n))
        np.testing.assert_allclose(got.numpy(), expected(x, n), rtol=1e-4, atol=1e-6)
    np.testing.assert_array_equal(cache.numpy(), x * 2.0)
    assert step.traces == 1 and len(step.plans) == 1


def test_a_cache_that_is_an_argument_is_written_where_it_is() -> None:
    x, at = rows(1), Variable("at", 0, ROWS - 1)
    step = jit(attend)
    cache = Tensor.zeros(ROWS, WIDTH).contiguous().realize()
    step(cache, Tensor(x[:1]), at.bind(0))
    step(cache, Tensor(x[1:2]), at.bind(1))
    where = memory(cache)
    for n in range(2, ROWS):
        got = step(cache, Tensor(x[n : n + 1]), at.bind(n))
        np.testing.assert_allclose(got.numpy(), expected(x, n), rtol=1e-4, atol=1e-6)
        assert memory(cache) == where
    np.testing.assert_array_equal(cache.numpy(), x * 2.0)
    other = Tensor.zeros(ROWS, WIDTH).contiguous().realize()
    step(other, Tensor(x[:1]), at.bind(0))
    assert step.traces == 1
    np.testing.assert_array_equal(other.numpy()[0], x[0] * 2.0)
    np.testing.assert_array_equal(cache.numpy(), x * 2.0)


def test_a_plan_that_writes_rows_does_not_copy_the_cache() -> None:
    at = Variable("at", 0, 4095)
    step = jit(attend)
    cache = Tensor.zeros(4096, WIDTH).contiguous().realize()
    step(cache, Tensor(rows(2, 1)), at.bind(0))
    assert min(kernel.bytes for kernel in step.plans[0].kernels) < 1000
    assert step.plans[0].memory.output_bytes < 1000


def test_rows_at_places_are_put_into_the_cache_itself() -> None:
    """Of several texts, each at a position of its own; the table is another shape of the cache."""

    def put(cache: Tensor, row: Tensor, places: Tensor) -> None:
        cache.reshape(-1, WIDTH)[places] = row

    step, want = jit(put), np.zeros((3, 400, WIDTH), np.float32)
    cache = Tensor(want).contiguous().realize()
    for n in range(4):
        places, row = np.array([n, 400 + 2 * n, 1199 - n]), rows(n, 3)
        step(cache, Tensor(row), Tensor(places))
        want.reshape(-1, WIDTH)[places] = row
        np.testing.assert_array_equal(cache.numpy(), want)
    assert step.traces == 1 and all(kernel.bytes < 1000 for kernel in step.plans[0].kernels)


def test_who_reads_the_values_before_keeps_them() -> None:
    def put(cache: Tensor, row: Tensor, at: Variable) -> None:
        cache[at : at + 1] = row

    at, step = Variable("at", 0, ROWS - 1), jit(put)
    start = rows(3)
    cache = Tensor(start).realize()
    for n in range(6):
        before = cache.numpy().copy()
        old, array = cache + 1.0, cache.numpy()
        view = cache[n]
        step(cache, Tensor(np.full((1, WIDTH), n, np.float32)), at.bind(n))
        np.testing.assert_array_equal(array, before)
        np.testing.assert_array_equal(old.numpy(), before + 1.0)
        np.testing.assert_array_equal(view.numpy(), np.full(WIDTH, n, np.float32))
        del old, array
        gc.collect()
    want = start.copy()
    want[:6] = np.arange(6, dtype=np.float32)[:, None]
    np.testing.assert_array_equal(cache.numpy(), want)
    assert step.traces == 1


def test_parts_of_larger_tensors_and_shared_memory_are_written_through() -> None:
    def put(cache: Tensor, at: Variable) -> None:
        cache[at] = 7.0

    at, step = Variable("at", 0, 2), jit(put)
    whole = Tensor.zeros(4, 3).contiguous().realize()
    array = np.zeros(3, np.float32)
    outside = Tensor.from_numpy(array)
    for n in range(3):
        step(whole[n + 1], at.bind(n))
        step(outside, at.bind(n))
        assert outside.numpy()[n] == 7.0
        if HOST:  # elsewhere `from_numpy` is a copy
            assert array[n] == 7.0
    np.testing.assert_array_equal(whole.numpy(), np.pad(np.eye(3, dtype=np.float32) * 7.0, ((1, 0), (0, 0))))
    assert step.traces == 1


def test_a_length_that_is_known_later() -> None:
    """Prefill: rows of any number go to the front of a cache."""
    n = Variable("n", 1, ROWS)
    cache = Tensor.zeros(ROWS, WIDTH).contiguous().realize()

    @jit
    def fill(x: Tensor, n: Variable) -> Tensor:
        cache[:n] = x * 2.0
        return (x @ x.T).softmax(-1) @ x

    for count in (3, 7, 1, ROWS):
        x = rows(count)
        got = fill(Tensor(x)[: n.bind(count)], n.bind(count))
        np.testing.assert_allclose(
            got.numpy(), softmax(x[:count] @ x[:count].T) @ x[:count], rtol=1e-4, atol=1e-5
        )
        np.testing.assert_array_equal(cache.numpy()[:count], x[:count] * 2.0)
    assert fill.traces == 1


def test_results_have_the_sizes_of_their_call() -> None:
    n = Variable("n", 1, ROWS)
    x = rows(4)
    double = jit(lambda t, n: (t[:n] * 2.0, n))
    got = [double(Tensor(x), n.bind(count))[0] for count in (2, 5, 9, 5)]
    for count, result in zip((2, 5, 9, 5), got, strict=True):
        np.testing.assert_array_equal(result.numpy(), x[:count] * 2.0)
        assert len(result) == count
    assert double.traces == 1


def test_arithmetic_with_a_bound_variable_is_an_argument_too() -> None:
    n = Variable("n", 1, 4)
    x = rows(5)
    take = jit(lambda t, at: t[at])
    for value in (1, 3, 4):
        np.testing.assert_array_equal(take(Tensor(x), n.bind(value) + 2).numpy(), x[value + 2])
    assert take.traces == 1


def test_one_variable_has_one_value_in_a_call() -> None:
    n = Variable("n", 1, 4)
    f = jit(lambda t, a, b: t[a] + t[b])
    with pytest.raises(VariableError, match="variable n is bound to 2 and to 3 in the arguments of one call"):
        f(Tensor(rows(6)), n.bind(2), n.bind(3))


def test_values_are_checked_for_the_whole_interval() -> None:
    at = Variable("at", 0, ROWS)
    f = jit(lambda t, at: t[at : at + 1] * 2.0)
    with pytest.raises(ShapeError, match="leaves the tensor for at = 12"):
        f(Tensor(rows(7)), at.bind(2))
    k = Variable("k", 1, 8)
    f = jit(lambda t: t.reshape(6, WIDTH))
    with pytest.raises(ShapeError, match=r"shape \(k, 4\) with 4\*k elements does not reshape"):
        f(Tensor(rows(7))[: k.bind(6)])
    f = jit(lambda t, k: t[k // 2 : k])  # never more than k: tried at all values
    x = rows(7)
    for n in (1, 5, 8):
        np.testing.assert_array_equal(f(Tensor(x)[: k.bind(n)], k.bind(n)).numpy(), x[n // 2 : n])


def test_a_position_outside_leaves_no_half_written_cache() -> None:
    @jit
    def step(cache: Tensor, table: Tensor, token: Tensor, at: Variable) -> Tensor:
        cache[at] = table[token]
        return cache[: at + 1].sum(0)

    at = Variable("at", 0, ROWS - 1)
    cache = Tensor.zeros(ROWS, WIDTH).contiguous().realize()
    table = Tensor(rows(8))
    for n in range(3):
        step(cache, table, Tensor([n])[0], at.bind(n)).realize()
    with pytest.raises(OutOfRange):
        step(cache, table, Tensor([99])[0], at.bind(3)).numpy()
    if not knobs.DEVICE.start.upper().startswith(
        "CUDA"
    ):  # a GPU tells after the run, when the cache holds the first row there, and the user knows
        with pytest.raises(IRError, match="overwritten"):
            cache.numpy()
    cache.assign(0.0)
    assert not cache.numpy().any()


def test_why_a_function_is_traced_again(capsys: pytest.CaptureFixture[str]) -> None:
    f = jit(lambda t, k, *, mode="a": t * k)
    with knobs.override(EXPLAIN="jit"):
        f(Tensor([1.0]), 2)
        f(Tensor([1.0]), 3)
        f(Tensor([1.0, 2.0]), 3)
        f(Tensor([1, 2]), 3)
        f(Tensor([1, 2]), 3, mode="b")
        f(Tensor([1, 2]), 3, mode="c")
        f(Tensor([1, 2]), [3], mode="c")
    said = capsys.readouterr().err.splitlines()
    reasons = [line.split(" is traced: ")[1].replace(Tensor([1]).device, "DEVICE") for line in said]
    assert reasons == [
        "it was never called",
        "argument 1 is 3 and was 2; bind a Variable to it if it changes often",
        "tensor 0 has shape (2,) and had (1,); a Variable as a size would serve both",
        "tensor 0 is int64 on DEVICE and was float32 on DEVICE",
        "the list of arguments is a dict of 1 and was a dict of 0",
        "argument mode is 'c' and was 'b'",
        "argument 1 is a list of 1 and was 3",
    ]


def test_arguments_that_show_one_memory_at_variables() -> None:
    """Two views of one tensor, one of them a row at a variable: its value is in neither shape."""

    def add(whole: Tensor, row: Tensor) -> None:
        row[...] = row + 1.0
        whole[...] = whole * 2.0

    at, x = Variable("at", 0, 3), rows(9, 4)
    whole, step = Tensor(x).realize(), jit(add)
    for n in (1, 3, 1):
        step(whole, whole[at.bind(n)])
        x[n] += 1.0
        x *= 2.0
        np.testing.assert_allclose(whole.numpy(), x)
    assert step.traces == 1
    inside = jit(lambda row: row * 2.0 + whole.sum(0))
    for n in (0, 2):
        np.testing.assert_allclose(inside(whole[at.bind(n)]).numpy(), x[n] * 2.0 + x.sum(0), rtol=1e-5)
    assert inside.traces == 1
