"""Whole numbers in groups, as GPTQ and AWQ lay them out; experts of which only the chosen ones are read."""

from typing import Any

import numpy as np
import pytest

from morok import Tensor, jit
from morok.errors import FormatError, UnsupportedModel
from morok.llm.groups import grouped, matrix_of
from morok.llm.matrix import Packed, Plain, Stack, pack_stack, stacked
from morok.nn.blocks import FORMATS
from tests.llm import files

INPUTS, OUTPUTS, GROUP = 128, 24, 64


def words(codes: np.ndarray, bits: int, order: list[int]) -> np.ndarray:
    """Codes (…, n) in words of 32 bits: the code at a place goes to the bits that the order says."""
    each = 32 // bits
    wide = codes.reshape(*codes.shape[:-1], -1, each).astype(np.uint64)
    found = sum(wide[..., i] << np.uint64(bits * order[i]) for i in range(each))
    return np.ascontiguousarray(np.asarray(found).astype(np.uint32)).view(np.int32)


def layer(method: str, bits: int, less: int, order: np.ndarray | None = None) -> tuple[Any, np.ndarray]:
    """The arrays of a layer, and its matrix (outputs, inputs) by the definition."""
    rnd = np.random.default_rng(bits)
    codes = rnd.integers(0, 1 << bits, (INPUTS, OUTPUTS))
    zeros = rnd.integers(1, 1 << bits, (INPUTS // GROUP, OUTPUTS))
    scales = rnd.uniform(0.01, 0.1, zeros.shape).astype(np.float16)
    places = np.arange(INPUTS) // GROUP if order is None else order
    matrix = scales[places].astype(np.float64) * (codes - zeros[places])
    plain = list(range(32 // bits))
    if method == "awq":
        slots = [0, 4, 1, 5, 2, 6, 3, 7]
        parts = {"qweight": words(codes, 4, slots), "qzeros": words(zeros, 4, slots), "scales": scales}
    else:
        packed = np.ascontiguousarray(words(codes.T, bits, plain).T)
        parts = {"qweight": packed, "qzeros": words(zeros - less, bits, plain), "scales": scales}
        parts["g_idx"] = places.astype(np.int32)
    return {name: Tensor(value) for name, value in parts.items()}, matrix.T


@pytest.mark.parametrize(("method", "bits", "less"), [("gptq", 4, 1), ("gptq", 8, 0), ("awq", 4, 0)])
def test_layers_stay_packed(method: str, bits: int, less: int) -> None:
    said = {"quant_method": method, "bits": bits, "group_size": GROUP}
    how = grouped({"quantization_config": said | ({} if less else {"checkpoint_format": "gptq_v2"})})
    assert how is not None
    parts, wanted = layer(method, bits, less)
    matrix = matrix_of(how, "a", parts)
    assert isinstance(matrix, Packed) and matrix.nbytes <= 32 * INPUTS * (bits + 1) // 8
    rows = matrix.rows(Tensor(np.arange(OUTPUTS))).numpy()
    np.testing.assert_array_equal(rows, wanted.astype(np.float32))  # 20 bits: nothing is rounded
    x = np.random.default_rng(0).standard_normal((1, INPUTS)).astype(np.float32)
    bound = np.abs(x) @ np.abs(wanted).T
    assert np.all(np.abs(matrix.product(Tensor(x)).numpy() - x @ wanted.T) <= 8 * 2.0**-24 * (bound + 30))


def test_inputs_out_of_order_are_decoded() -> None:
    how = grouped({"quantization_config": {"quant_method": "gptq", "bits": 4, "group_size": GROUP}})
    assert how is not None
    parts, wanted = layer("gptq", 4, 1, np.random.default_rng(3).permutation(np.arange(INPUTS) // GROUP))
    matrix = matrix_of(how, "a", parts)
    assert isinstance(matrix, Plain)
    np.testing.assert_array_equal(matrix.numbers.numpy(), wanted.astype(np.float32))
    for wrong in ({"qzeros": None}, {"scales": Tensor.zeros(3, 5)}, {"g_idx": Tensor([7] * INPUTS)}):
        given = {name: value for name, value in (parts | wrong).items() if value is not None}
        with pytest.raises(FormatError, match="the model's layer 'a'"):
            matrix_of(how, "a", given)
    for said in ({"quant_method": "other"}, {"quant_method": "gptq", "bits": 3}):
        with pytest.raises(UnsupportedModel, match=r"config\.json's quantization"):
            grouped({"quantization_config": said})
    assert grouped({}) is None


def stack(packed: bool) -> tuple[Stack, np.ndarray]:
    numbers = np.random.default_rng(1).standard_normal((8, 40, 64)).astype(np.float32)
    if not packed:
        return stacked([Plain(Tensor(n)) for n in numbers]), numbers
    raw = np.frombuffer(files.q8_0(numbers), np.uint8).reshape(8, 40, 2, 34)
    return pack_stack(FORMATS[8], raw), files.decoded_q8_0(numbers)


@pytest.mark.parametrize("packed", [False, True])
def test_only_what_is_chosen_is_read(packed: bool) -> None:
    found, numbers = stack(packed)
    assert found.shape == (40, 64) and found.at(3).shape == (40, 64)
    step = jit(lambda x, places: found.at(places[0]).product(x))
    x = np.random.default_rng(2).standard_normal((1, 64)).astype(np.float32)
    for place in (5, 0, 7):
        y = step(Tensor(x), Tensor(np.array([place], np.int32))).numpy()
        np.testing.assert_allclose(y, x @ numbers[place].T, rtol=1e-5, atol=1e-5)
    assert step.traces == 1
    whole = numbers.size * 34 // 32 if packed else numbers.nbytes
    assert sum(kernel.bytes for kernel in step.plans[0].kernels) < whole // 3
