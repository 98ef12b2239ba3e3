"""The oracle on hand-written kernels: loops, reductions, gates, local buffers, bounds, pieces."""

import numpy as np
import pytest

from morok.device.base import Device
from morok.device.interpreter import InterpretedKernel, Interpreter, run_kernel
from morok.dtype import DType, bfloat16, float32, int32, int64
from morok.errors import DeviceError, VariableError
from morok.ir import build as b
from morok.ir.node import UOp, alu, const
from morok.ir.ops import AxisKind, Ops


def source(dtype: DType, size: int, number: int) -> UOp:
    return b.define_global(dtype, size, number)


def read(buf: UOp, at: UOp | int, gate: UOp | None = None) -> UOp:
    """A read in kernel form has the element's type, not a pointer."""
    address = b.index(buf, at, gate=gate)
    elem = buf.dtype.elem if buf.dtype.is_ptr else buf.dtype  # type: ignore[attr-defined]
    return UOp(Ops.INDEX, elem, address.src)


def kernel(buf: UOp, at: UOp | int, value: UOp, *loops: UOp, gate: UOp | None = None) -> UOp:
    return b.sink(b.end(b.store(b.index(buf, at, gate=gate), value), *loops))


def loop(end: int | UOp, number: int) -> UOp:
    return b.rng(end, number)


def over(end: int | UOp, number: int) -> UOp:
    return b.rng(end, number, AxisKind.REDUCE)


def test_elementwise() -> None:
    i = loop(5, 0)
    out, x = source(float32, 5, 0), source(float32, 5, 1)
    result, data = np.zeros(5, np.float32), np.arange(5, dtype=np.float32)
    run_kernel(kernel(out, i, read(x, i) * 2.0 + 1.0, i), [result, data])
    assert result.tolist() == [1, 3, 5, 7, 9]


def test_a_kernel_without_loops_writes_one_element() -> None:
    result = np.zeros(1, np.int32)
    run_kernel(kernel(source(int32, 1, 0), 0, const(int32, 7)), [result])
    assert result.tolist() == [7]


def softmax_kernel(rows: int, columns: int) -> UOp:
    r, c1, c2, c = loop(rows, 0), over(columns, 1), over(columns, 2), loop(columns, 3)
    out, x = source(float32, rows * columns, 0), source(float32, rows * columns, 1)
    top = b.reduce(read(x, r * columns + c1), Ops.MAX, [c1])
    total = b.reduce(alu(Ops.EXP, read(x, r * columns + c2) - top), Ops.ADD, [c2])
    value = alu(Ops.EXP, read(x, r * columns + c) - top) / total
    return kernel(out, r * columns + c, value, r, c)


@pytest.mark.parametrize("grid", [1, 3, 16, 1 << 20])
def test_softmax_is_one_kernel_and_pieces_change_nothing(grid: int) -> None:
    x = np.random.default_rng(0).standard_normal((5, 7)).astype(np.float32)
    device = Interpreter(grid=grid)
    out, inp = device.buffer(35, float32), device.adopt(x, float32)
    device.compile(softmax_kernel(5, 7), "softmax")([out, inp], {})
    e = np.exp(x - x.max(-1, keepdims=True))
    np.testing.assert_allclose(out.array().reshape(5, 7), e / e.sum(-1, keepdims=True), rtol=1e-6)


@pytest.mark.parametrize("grid", [2, 1 << 20])
def test_a_reduction_of_several_values(grid: int) -> None:
    r, c = loop(2, 0), over(6, 1)
    x = source(int64, 12, 1)
    both = b.reduce([read(x, r * 6 + c), read(x, r * 6 + c)], [Ops.MAX, Ops.ADD], [c])
    ast = kernel(source(int64, 2, 0), r, b.pick(both, 0) * 100 + b.pick(both, 1), r)
    device = Interpreter(grid=grid)
    out = device.buffer(2, int64)
    device.compile(ast, "both")([out, device.adopt(np.arange(12), int64)], {})
    assert out.array().tolist() == [515, 1151]


def test_a_reduction_of_what_does_not_depend_on_the_loop() -> None:
    i, c = loop(3, 0), over(4, 1)
    out, x = source(int32, 3, 0), source(int32, 3, 1)
    result = np.zeros(3, np.int32)
    run_kernel(kernel(out, i, b.reduce(read(x, i), Ops.ADD, [c]), i), [result, np.arange(3, dtype=np.int32)])
    assert result.tolist() == [0, 4, 8]


def test_an_empty_reduction_gives_the_neutral_element() -> None:
    c = over(0, 1)
    x = source(int32, 0, 1)
    for op, neutral in ((Ops.ADD, 0), (Ops.MUL, 1), (Ops.MAX, -(2**31))):
        result = np.full(1, 5, np.int32)
        run_kernel(
            kernel(source(int32, 1, 0), 0, b.reduce(read(x, c), op, [c])), [result, np.empty(0, np.int32)]
        )
        assert result.tolist() == [neutral]


def test_a_gate_reads_zero_and_does_not_touch_memory() -> None:
    i = loop(6, 0)
    out, x = source(int32, 6, 0), source(int32, 4, 1)
    inside = (i < 5) & (const(i.dtype, 0) < i)
    result = np.full(6, 9, np.int32)
    run_kernel(
        kernel(out, i, read(x, i - 1, inside), i), [result, np.array([10, 11, 12, 13], dtype=np.int32)]
    )
    assert result.tolist() == [0, 10, 11, 12, 13, 0]


def test_a_gated_store_leaves_the_rest_alone() -> None:
    i = loop(4, 0)
    result = np.full(4, 9, np.int32)
    run_kernel(kernel(source(int32, 4, 0), i, const(int32, 1), i, gate=i < 2), [result])
    assert result.tolist() == [1, 1, 9, 9]


def test_an_access_outside_of_its_buffer_is_named() -> None:
    i = loop(5, 0)
    out, x = source(int32, 5, 0), source(int32, 4, 1)
    with pytest.raises(DeviceError, match="kernel kernel reads element 4 of buffer 1, which has 4 elements"):
        run_kernel(kernel(out, i, read(x, i), i), [np.zeros(5, np.int32), np.zeros(4, np.int32)])
    with pytest.raises(DeviceError, match="writes element 4 of buffer 0"):
        run_kernel(kernel(out, i, const(int32, 0), i), [np.zeros(4, np.int32)])


def test_a_race_is_an_error() -> None:
    i = loop(4, 0)
    with pytest.raises(DeviceError, match="more than once"):
        run_kernel(kernel(source(int32, 4, 0), i // 2, const(int32, 0), i), [np.zeros(4, np.int32)])


def test_a_local_buffer_is_filled_per_outer_iteration() -> None:
    r, k, c = loop(3, 0), loop(4, 1), loop(4, 2)
    x = source(int32, 12, 1)
    row = b.bufferize(read(x, r * 4 + k) * 10, k, arg=("local", "row"))
    flipped = UOp(Ops.INDEX, int32, (row, const(c.dtype, 3) - c))
    result = np.zeros(12, np.int32)
    run_kernel(
        kernel(source(int32, 12, 0), r * 4 + c, flipped, r, c), [result, np.arange(12, dtype=np.int32)]
    )
    assert result.reshape(3, 4).tolist() == (np.arange(12).reshape(3, 4)[:, ::-1] * 10).tolist()


def test_a_symbolic_range_takes_its_value_from_outside() -> None:
    n = b.variable("n", 1, 8)
    i = loop(n, 0)
    ast = kernel(source(int32, 8, 0), i, const(int32, 1), i)
    result = np.zeros(8, np.int32)
    run_kernel(ast, [result], {"n": 3})
    assert result.sum() == 3
    with pytest.raises(VariableError, match="needs a value for the variable n"):
        run_kernel(ast, [result])
    with pytest.raises(VariableError, match="lies in 1 … 8"):
        run_kernel(ast, [result], {"n": 9})


def test_narrow_floats_accumulate_in_their_own_type() -> None:
    c = over(300, 0)
    total = b.reduce(read(source(bfloat16, 300, 1), c), Ops.ADD, [c])
    device = Interpreter()
    out, ones = device.buffer(1, bfloat16), device.adopt(np.ones(300, bfloat16.numpy), bfloat16)
    device.compile(kernel(source(bfloat16, 1, 0), 0, total), "sum")([out, ones], {})
    assert float(out.array()[0]) == 300.0


def test_more_loops_than_numpy_has_axes() -> None:
    x = source(int32, 2, 1)
    total: UOp = const(int32, 0)
    for number in range(100):
        c = over(2, number + 1)
        total = total + b.reduce(read(x, c), Ops.ADD, [c])
    result = np.zeros(1, np.int32)
    run_kernel(kernel(source(int32, 1, 0), 0, total), [result, np.ones(2, np.int32)])
    assert result.tolist() == [200]


def test_it_is_a_device() -> None:
    device: Device = Interpreter("PYTHON:1")
    assert device.name == "PYTHON:1"
    assert isinstance(device.compile(b.sink(), "nothing"), InterpretedKernel)
