"""Where tensors come from, and whose memory they use."""

import array
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import morok
from morok import Tensor, jit, knobs
from morok.device.buffer import find_buffer
from morok.errors import AssignError, DeviceError, DTypeError, ShapeError
from morok.ir.memory import base_of
from tests.devices import needs_host_memory
from tests.tensor.common import ALL, same, sample


@pytest.mark.parametrize(
    ("data", "dtype"),
    [
        (True, "bool"), (3, "int64"), (2.5, "float32"), ([1, 2], "int64"), ([1.0, 2], "float32"),
        ([True, False], "bool"), ([[1, 2], [3, 4]], "int64"), ([], "float32"), ([[], []], "float32"),
        ((1, 2.5), "float32"), (np.float64(3), "float64"), ([np.int8(3)], "int8"),
    ],
)  # fmt: skip
def test_types_of_python_numbers(data: Any, dtype: str) -> None:
    same(Tensor(data), np.asarray(data, dtype=dtype))


@pytest.mark.parametrize("dtype", ALL)
def test_arrays_keep_their_type(dtype: str) -> None:
    for shape in ((), (3,), (0, 2), (2, 3)):
        same(Tensor(sample(shape, dtype)), sample(shape, dtype))


@pytest.mark.parametrize("name", ["bfloat16", "float8_e4m3fn", "float8_e5m2"])
def test_narrow_floats(name: str) -> None:
    data = np.array([0.5, -2.0, 1.0], dtype=getattr(ml_dtypes, name))
    t = Tensor(data)
    assert t.tolist() == [0.5, -2.0, 1.0]
    assert (t.float() * 2).tolist() == [1.0, -4.0, 2.0]


def test_a_type_can_be_asked_for() -> None:
    same(Tensor([1.7, -1.7], dtype="int32"), np.array([1, -1], np.int32))
    same(Tensor(np.array([1, 2]), dtype=morok.float16), np.array([1, 2], np.float16))
    same(Tensor(3, dtype=np.uint8), np.uint8(3))
    same(Tensor(Tensor([1, 2]), dtype=float), np.array([1, 2], np.float32))
    assert Tensor([0, 2], dtype=bool).tolist() == [False, True]


@pytest.mark.parametrize(
    "data", ["text", ["a"], [1, None], {1: 2}, [1 + 2j], np.array([1j]), np.array(["a"]), object()]
)
def test_what_is_no_number_is_refused(data: Any) -> None:
    with pytest.raises(DTypeError):
        Tensor(data)


def test_ragged_lists_are_refused() -> None:
    with pytest.raises(ShapeError, match="equal lengths"):
        Tensor([[1, 2], [3]])


def test_lists_of_tensors() -> None:
    assert Tensor([Tensor(1), Tensor(2)]).tolist() == [1, 2]


@needs_host_memory
@pytest.mark.parametrize(
    "share", [Tensor.from_numpy, Tensor.from_dlpack, lambda a: Tensor.from_buffer(a, "float32", (3, 4))]
)
def test_memory_is_shared_both_ways(share: Any) -> None:
    data = np.arange(12, dtype=np.float32).reshape(3, 4)
    t = share(data)
    assert np.shares_memory(t.numpy(), data)
    data[0, 0] = 99
    assert t[0, 0].item() == 99
    before = t * 1
    t[1] = 5
    t.T[2, 2] = 7
    assert data.tolist() == [[99, 1, 2, 3], [5, 5, 5, 5], [8, 9, 7, 11]]
    assert before.tolist()[1] == [4, 5, 6, 7]
    t += 1
    assert data[2, 3] == 12
    copy = t.clone().realize()
    data[...] = 0
    assert copy.tolist()[0] == [100, 2, 3, 4] and t.tolist()[0] == [0, 0, 0, 0]
    values = Tensor(t)  # a value: writing to it leaves the memory alone
    values[0] = 3
    assert values.tolist()[0] == [3] * 4 and data.tolist()[0] == [0] * 4
    step = jit(lambda x: x.assign(x + 1).sum())
    for n in range(3):
        assert step(t).item() == 12 * (n + 1) and data.tolist()[1] == [n + 1] * 4


@needs_host_memory
def test_arrays_in_another_order_are_shared_and_gaps_are_refused() -> None:
    data = np.arange(24).reshape(2, 3, 4)
    for view in (data.T, data[:, ::-1], data.transpose(1, 0, 2)[..., ::-1]):
        t = Tensor.from_numpy(view)
        same(t, view)
        t[0] = -1
        same(t, view)
        assert (view[0] == -1).all()
    with pytest.raises(ShapeError, match="have no gaps"):
        Tensor.from_numpy(data[:, ::2])


@pytest.mark.parametrize("share", [lambda a: Tensor.from_numpy(a), lambda a: Tensor.from_buffer(a.tobytes())])
def test_memory_that_may_only_be_read(share: Any) -> None:
    data = np.arange(4, dtype=np.uint8)
    data.flags.writeable = False
    t = share(data)
    for write in (
        lambda: t.assign(0),
        lambda: t.__setitem__(0, 1),
        lambda: t[1:].__iadd__(1),
        lambda: t.T.assign(0),
    ):
        with pytest.raises(AssignError, match="may only be read") as info:
            write()
        assert "test_creation.py:" in str(info.value)
    same(t, data)
    copy = t.clone()
    copy[0] = 9
    assert copy.tolist() == [9, 1, 2, 3] and t.tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize(
    "wrap", [lambda a: a, lambda a: Foreign(a), memoryview], ids=["array", "dlpack", "buffer"]
)
def test_data_is_copied(wrap: Any) -> None:
    """A loader that fills one buffer again and again."""
    data = np.zeros(4, np.float32)
    batches = []
    for n in range(3):
        data[...] = n
        batches.append(Tensor(wrap(data)))
    assert [b.tolist()[0] for b in batches] == [0, 1, 2]
    batches[0][0] = 7
    assert data.tolist() == [2] * 4


@pytest.mark.parametrize(
    "data",
    [
        np.arange(12).reshape(3, 4)[:, ::2],
        np.arange(12).reshape(3, 4).T,
        np.arange(5)[::-1],
        np.arange(3).astype(">i4"),
        np.frombuffer(b"\0" + np.arange(4, dtype=np.int32).tobytes(), dtype=np.uint8)[1:].view(np.int32),
        np.broadcast_to(np.arange(3), (2, 3)),
    ],
)
def test_other_layouts_are_copied(data: Any) -> None:
    t = Tensor(data)
    same(t, data.astype(data.dtype.newbyteorder("=")))
    assert not np.shares_memory(t.numpy(), data)


def test_the_array_lives_as_long_as_the_tensor() -> None:
    t = Tensor(np.arange(1000))
    assert t.sum().item() == 499500


def test_morok_never_writes_into_the_array() -> None:
    data = np.arange(4.0)
    t = Tensor(data)
    t.assign(t * 10)
    t[0] = -1
    assert t.tolist() == [-1, 10, 20, 30]
    assert data.tolist() == [0, 1, 2, 3]


@needs_host_memory
def test_dlpack_in_and_out() -> None:
    data = np.arange(6, dtype=np.float32).reshape(2, 3)
    t = Tensor.from_dlpack(data)
    assert np.shares_memory(t.numpy(), data)
    back = np.from_dlpack(t + 0)
    np.testing.assert_array_equal(back, data)
    kept = t.contiguous().realize()
    assert np.shares_memory(np.from_dlpack(kept), kept.numpy())


class Foreign:
    """Something that speaks DLPack and nothing else, as a tensor of another library."""

    def __init__(self, data: Any) -> None:
        self.data = data

    def __dlpack__(self, **options: Any) -> Any:
        return self.data.__dlpack__(**options)

    def __dlpack_device__(self) -> Any:
        return self.data.__dlpack_device__()


def test_anything_with_dlpack() -> None:
    assert Tensor(Foreign(np.arange(3))).tolist() == [0, 1, 2]


def test_buffer_protocol() -> None:
    same(Tensor(bytearray(b"\1\2\3")), np.array([1, 2, 3], np.uint8))
    same(Tensor(array.array("d", [1.5, 2.5])), np.array([1.5, 2.5]))
    same(Tensor(memoryview(np.arange(4, dtype=np.int16))), np.arange(4, dtype=np.int16))


def test_numpy_protocols() -> None:
    t = Tensor([1.0, 2.0])
    assert np.asarray(t).tolist() == [1, 2]
    assert np.asarray(t, dtype=np.int32).dtype == np.int32
    left = np.array([10.0, 20.0], np.float32) * t
    assert isinstance(left, Tensor)
    assert left.tolist() == [10, 40]


@needs_host_memory
def test_files_are_mapped(tmp_path: Path) -> None:
    path = tmp_path / "data.bin"
    np.arange(10, dtype=np.float32).tofile(path)
    t = Tensor.from_file(path, "float32")
    same(t, np.arange(10, dtype=np.float32))
    buffer = find_buffer(base_of(t.uop))
    assert buffer is not None
    assert buffer.borrowed
    same(Tensor.from_file(path, "float32", (2, 3), offset=8), np.arange(2, 8, dtype=np.float32).reshape(2, 3))
    same(Tensor.from_file(path)[:2], np.zeros(2, np.uint8))
    odd = Tensor.from_file(path, "int16", (3,), offset=1)
    same(odd, np.frombuffer(path.read_bytes()[1:7], dtype=np.int16))
    changed = t + 0
    changed[0] = 5
    assert changed.tolist()[0] == 5
    t[1] = -1
    assert t.tolist()[1] == -1
    assert np.fromfile(path, np.float32)[1] == 1


def test_bad_files(tmp_path: Path) -> None:
    path = tmp_path / "data.bin"
    path.write_bytes(b"12345")
    with pytest.raises(DeviceError, match="holds 1 elements of float32"):
        Tensor.from_file(path, "float32", (2,))
    with pytest.raises(DeviceError, match="no whole number"):
        Tensor.from_file(path, "float32")
    with pytest.raises(DeviceError, match="nothing at byte 9"):
        Tensor.from_file(path, offset=9)
    with pytest.raises(DeviceError, match="cannot read"):
        Tensor.from_file(tmp_path / "missing")


@pytest.mark.parametrize(
    "arguments",
    [(5,), (2, 7), (2, 7, 2), (7, 2, -2), (0,), (3, 3), (5, 2), (0.0, 1.0, 0.25), (1.5,), (2, -5, -3)],
)  # fmt: skip
def test_arange(arguments: tuple[float, ...]) -> None:
    wanted = np.arange(*arguments)
    same(Tensor.arange(*arguments), wanted.astype(np.float32) if wanted.dtype.kind == "f" else wanted)


def test_constants() -> None:
    same(Tensor.zeros(2, 3), np.zeros((2, 3), np.float32))
    same(Tensor.ones((2,), dtype="int8"), np.ones(2, np.int8))
    same(Tensor.full((2, 2), 7), np.full((2, 2), 7))
    same(Tensor.full((), 2.5), np.float32(2.5))
    same(Tensor.full(3, True), np.full(3, True))
    same(Tensor.eye(3), np.eye(3, dtype=np.float32))
    same(Tensor.eye(2, 4, dtype="int32"), np.eye(2, 4, dtype=np.int32))
    same(Tensor.tri(3, 4, 1), np.tri(3, 4, 1, dtype=np.float32))
    same(Tensor.linspace(0, 1, 7), np.linspace(0, 1, 7, dtype=np.float32))
    same(Tensor.linspace(3, 5, 1), np.linspace(3, 5, 1, dtype=np.float32))
    same(Tensor.linspace(3, 5, 0), np.linspace(3, 5, 0, dtype=np.float32))
    same(Tensor.zeros(0, 3), np.zeros((0, 3), np.float32))
    x = Tensor(np.ones((2, 3), np.int16))
    same(x.zeros_like(), np.zeros((2, 3), np.int16))
    same(x.ones_like("float32"), np.ones((2, 3), np.float32))
    same(x.full_like(4), np.full((2, 3), 4, np.int16))
    assert Tensor.empty(2, 3, dtype="int8").numpy().shape == (2, 3)


def test_constants_cost_no_memory() -> None:
    plan = (Tensor.arange(1_000_000).reshape(1000, 1000) + Tensor.eye(1000).cast("int64")).sum().prepare()
    assert plan.memory.peak < 100_000


def test_bad_sizes() -> None:
    for shape in ((-1,), (2, -3)):
        with pytest.raises(ShapeError, match="negative size"):
            Tensor.zeros(*shape)
    for bad in (2.5, "3", None, True):
        with pytest.raises(ShapeError, match="whole number"):
            Tensor.zeros(bad)
    with pytest.raises(ShapeError, match="step that is not 0"):
        Tensor.arange(3, 5, 0)
    with pytest.raises(DTypeError, match="is not a type of elements"):
        Tensor.zeros(2, dtype="float31")


def test_devices() -> None:
    with knobs.override(DEVICE="PYTHON"):
        _test_devices()


def _test_devices() -> None:
    assert Tensor([1]).device == "PYTHON"
    other = Tensor([1, 2], device="PYTHON:1")
    assert other.device == "PYTHON:1"
    assert (np.array([1, 2]) + other * [3, 4]).tolist() == [4, 10]  # arrays follow the tensor
    assert other[[1, 0]].tolist() == [2, 1]
    moved = (other * 2).to("python")
    assert moved.device == "PYTHON"
    assert (moved + Tensor([1, 1])).tolist() == [3, 5]
    assert Tensor.zeros(2, device="PYTHON:1").device == "PYTHON:1"
    assert (Tensor.zeros(2, device="PYTHON:1") + 1).tolist() == [1, 1]
    with pytest.raises(DeviceError, match="there is no device 'TOASTER'"):
        Tensor([1], device="toaster")
    with pytest.raises(morok.MorokError, match="PYTHON"):
        (other + Tensor([1, 2])).realize()
