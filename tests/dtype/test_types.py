"""Types are unique, immutable, and know their limits."""

import copy
import pickle
from concurrent.futures import ThreadPoolExecutor
from math import inf

import ml_dtypes
import numpy as np
import pytest

from morok import dtype as dt
from morok.dtype import AddrSpace, DType, PtrDType, parse
from morok.errors import DTypeError

POINTERS = [
    dt.float32.ptr(),
    dt.float32.ptr(1024),
    dt.bool_.ptr(0, AddrSpace.LOCAL),
    dt.int8.vec(16).ptr(64, AddrSpace.REG),
    dt.float32.ptr(8).vec(4),
    dt.index.ptr(3),
]
VECTORS = [scalar.vec(n) for scalar in dt.ALL_SCALARS for n in (2, 3, 4, 16)]
EVERY = [dt.void, *dt.ALL_SCALARS, *VECTORS, *POINTERS]


@pytest.mark.parametrize("dtype", EVERY, ids=str)
def test_text_pickle_and_copy_give_the_same_object(dtype: DType) -> None:
    assert parse(str(dtype)) is dtype
    assert pickle.loads(pickle.dumps(dtype)) is dtype
    assert copy.copy(dtype) is dtype
    assert copy.deepcopy(dtype) is dtype


def test_names() -> None:
    assert [str(d) for d in (dt.bool_, dt.index, dt.void)] == ["bool", "index", "void"]
    assert str(dt.float8_e4m3) == "float8_e4m3"
    assert str(dt.float32.vec(4)) == "float32x4"
    assert str(dt.float32.vec(4).ptr(16, AddrSpace.LOCAL)) == "ptr<float32x4,16,local>"
    assert str(dt.float32.ptr().vec(2)) == "ptr<float32,?,global>x2"


@pytest.mark.parametrize(
    "text",
    ["", "float", "float33", "x4", "float32x", "float32x1", "float32x0", "float32x04", "float32x4x2",
     "voidx2", "ptr", "ptr<>", "ptr<float32>", "ptr<float32,1,moon>", "ptr<float32,-1,global>",
     "ptr<float32,01,global>", "ptr<void,1,global>", "ptr<float32,1,global", "ptr<ptr<int8,1,reg>,1,reg>",
     "image<float32,1,1,1>", "Float32", " float32",
     "float32x" + "9" * 5000, "float32x٣"],
)  # fmt: skip
def test_text_that_is_no_dtype_gets_one_sentence(text: str) -> None:
    with pytest.raises(DTypeError) as caught:
        parse(text)
    assert "\n" not in str(caught.value)


def test_equal_types_are_one_object_from_any_thread() -> None:
    with ThreadPoolExecutor(8) as pool:
        made = list(pool.map(lambda i: dt.uint16.vec(2 + i % 50).ptr(i % 7), range(700)))
    assert len({id(m) for m in made}) == len({str(m) for m in made})


def test_types_are_immutable() -> None:
    with pytest.raises(AttributeError, match="float32 is immutable"):
        dt.float32.name = "other"
    assert not hasattr(dt.float32, "__dict__")


@pytest.mark.parametrize("dtype", dt.INTS, ids=str)
def test_integer_limits(dtype: DType) -> None:
    info = np.iinfo(dtype.numpy)
    assert (dtype.min, dtype.max, dtype.bits) == (info.min, info.max, info.bits)
    assert type(dtype.min) is int
    assert dtype.itemsize == dtype.numpy.itemsize


@pytest.mark.parametrize("dtype", dt.FLOATS, ids=str)
def test_float_limits(dtype: DType) -> None:
    info = ml_dtypes.finfo(dtype.numpy)
    assert dtype.largest == float(info.max)
    assert dtype.smallest_normal == float(info.smallest_normal)
    assert dtype.eps == float(info.eps)
    assert (dtype.bits, dtype.mantissa_bits, dtype.exponent_bits) == (info.bits, info.nmant, info.nexp)
    assert dtype.itemsize == dtype.numpy.itemsize
    assert dtype.has_inf == (dtype is not dt.float8_e4m3)
    assert (dtype.min, dtype.max) == ((-inf, inf) if dtype.has_inf else (-448.0, 448.0))


def test_flags() -> None:
    table = {
        "is_bool": {dt.bool_},
        "is_int": {*dt.INTS, dt.index},
        "is_bounded_int": set(dt.INTS),
        "is_unsigned": set(dt.UNSIGNED),
        "is_index": {dt.index},
        "is_float": set(dt.FLOATS),
        "is_void": {dt.void},
        "is_ptr": set(),
    }
    for flag, members in table.items():
        for scalar in (dt.void, *dt.ALL_SCALARS):
            assert getattr(scalar, flag) is (scalar in members)
    assert (dt.bool_.min, dt.bool_.max, dt.bool_.itemsize) == (False, True, 1)
    assert dt.index.min is dt.index.max is dt.index.numpy is dt.void.min is None


@pytest.mark.parametrize("scalar", dt.ALL_SCALARS, ids=str)
def test_vectors_answer_as_their_scalars(scalar: DType) -> None:
    vector = scalar.vec(4)
    assert vector is scalar.vec(4) is not scalar
    assert (vector.scalar, vector.base, vector.lanes) == (scalar, scalar, 4)
    assert (vector.bits, vector.itemsize) == (scalar.bits * 4, scalar.itemsize * 4)
    for name in (
        "kind",
        "min",
        "max",
        "eps",
        "is_int",
        "is_float",
        "is_bool",
        "is_index",
        "is_unsigned",
        "numpy",
    ):
        assert getattr(vector, name) == getattr(scalar, name)
    assert scalar.vec(1) is scalar is scalar.scalar


def test_pointers() -> None:
    pointer = dt.float32.vec(4).ptr(16, AddrSpace.LOCAL)
    assert isinstance(pointer, PtrDType)
    assert (pointer.elem, pointer.size, pointer.space) == (dt.float32.vec(4), 16, AddrSpace.LOCAL)
    assert (pointer.base, pointer.itemsize, pointer.lanes, pointer.scalar) == (dt.float32, 8, 1, pointer)
    assert pointer.is_ptr and not (pointer.is_int or pointer.is_unsigned or pointer.is_float)
    assert pointer.numpy is pointer.min is pointer.max is None
    assert dt.float32.ptr() is dt.float32.ptr(-1, AddrSpace.GLOBAL)
    assert dt.float32.ptr(3) is not dt.float32.ptr(4)
    many = pointer.vec(2)
    assert isinstance(many, PtrDType)
    assert (many.lanes, many.scalar, many.elem, many.itemsize) == (2, pointer, dt.float32.vec(4), 16)


@pytest.mark.parametrize(
    "make",
    [
        lambda: dt.float32.vec(0),
        lambda: dt.float32.vec(-2),
        lambda: dt.float32.vec(2.0),
        lambda: dt.float32.vec(2).vec(2),
        lambda: dt.void.vec(2),
        lambda: dt.void.ptr(),
        lambda: dt.float32.ptr(2).ptr(2),
        lambda: dt.float32.ptr(-2),
        lambda: dt.float32.ptr(2, "local"),
    ],
)
def test_types_that_may_not_exist(make) -> None:
    with pytest.raises(DTypeError):
        make()
