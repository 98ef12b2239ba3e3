"""Every arithmetic op on every type against the table of meanings; and its CUDA C is what NVRTC accepts.

All ops of a type are effects of one kernel, so that few kernels are compiled.
"""

from functools import cache
from typing import Any

import numpy as np
import pytest

from morok import Tensor
from morok.codegen.pipeline import lower
from morok.device.cuda.device import program_of
from morok.dtype import DType, bfloat16, bool_, float8_e4m3, float16, float32, float64, int32, uint64
from morok.ir.arithmetic.alu import defined, evaluate_array
from morok.ir.arithmetic.arrays import storage
from morok.ir.build import cast, define_global, rng, sink
from morok.ir.node import UOp, alu
from morok.ir.ops import ALU, Op, Ops
from morok.render.cuda.kernel import render
from tests.codegen.kernels import read, write
from tests.codegen.test_arithmetic import COUNT, FLOATS, INEXACT, INTS, is_nan, samples, sign
from tests.gpu.kernels import DEVICE, TARGET, cubin, run

TYPES = (bool_, *INTS, float16, bfloat16, float8_e4m3, float32, float64)
EVERY = (bool_, *INTS, *FLOATS)
SAMPLE = (int32, uint64, float16, float8_e4m3, float32)  # of the default tier; on a GPU all of them


@pytest.mark.parametrize("dtype", (float16, bfloat16), ids=str)
def test_tanh_of_every_narrow_float_without_a_division(dtype: DType) -> None:
    """A division branches, and a warp that computes alone then waits for every step of it."""
    empty = Tensor.empty(1 << 16, dtype=dtype, device="EMULATOR")
    for made in (empty.tanh(), empty.cast(float32).tanh().cast(dtype)):
        assert "div" not in program_of(made.plan().kernels[0].ast, TARGET).text
    x = np.arange(1 << 16).astype(np.uint16).view(storage(dtype))
    got = Tensor(x, device=DEVICE).tanh().numpy()
    with np.errstate(invalid="ignore"):
        right = np.tanh(x.astype(np.float64)).astype(np.float32).astype(x.dtype)
        assert (np.isnan(got) == np.isnan(x)).all()
    known = ~np.isnan(right)
    found, wanted = (v[known].view(np.int16).astype(int) for v in (got, right))
    assert np.abs(found - wanted).max() <= 1 and (found != wanted).sum() < 100


def _sampled(types: tuple[DType, ...]) -> list[Any]:
    usual = types if DEVICE == "CUDA" else SAMPLE
    return [t if t in usual else pytest.param(t, marks=pytest.mark.slow) for t in types]


def ops_on(dtype: DType) -> list[Op]:
    found = [op for op in sorted(ALU - {Ops.CAST, Ops.BITCAST}) if defined(op, dtype)]
    if dtype.is_float and dtype.bits < 32:
        found.remove(Ops.MULACC)  # codegen makes these for the device's own types only
    return found


def joined(dtype: DType, results: list[tuple[DType, Any]]) -> UOp:
    """One effect per result; what follows the outputs: three inputs of the type, and a condition."""
    count = len(results)
    r = rng(COUNT, 0)
    inputs = [read(define_global(dtype, COUNT, count + i), r) for i in range(3)]
    condition = read(define_global(bool_, COUNT, count + 3), r)
    effects = []
    for number, (result, make_value) in enumerate(results):
        effects.append(write(define_global(result, COUNT, number), r, make_value(condition, *inputs), r))
    return sink(*effects)


@cache
def arithmetic(dtype: DType) -> tuple[UOp, tuple[Op, ...]]:
    """All ops of a type in one kernel."""
    ops = ops_on(dtype)
    results = []
    for op in ops:

        def value(condition: UOp, *x: UOp, op: Op = op) -> UOp:
            return alu(op, condition, *x[:2]) if op is Ops.WHERE else alu(op, *x[: op.arity])

        results.append((bool_ if op.is_compare else dtype, value))
    return joined(dtype, results), tuple(ops)


@cache
def casts(dtype: DType) -> UOp:
    return joined(dtype, [(to, lambda c, x, *_, to=to: cast(x, to)) for to in EVERY if to is not dtype])


def inputs_of(dtype: DType) -> list[Any]:
    return [*(samples(dtype, i) for i in range(3)), samples(bool_, 9)]


def results_of(kernel: UOp, dtype: DType, results: list[DType]) -> list[Any]:
    given = [np.zeros(COUNT, dtype=storage(to)) for to in results] + inputs_of(dtype)
    used = {n.arg for n in lower(kernel, TARGET).src if n.op is Ops.DEFINE_GLOBAL}
    last = max(used)
    return run(kernel, given[: last + 1])[: len(results)]


def exactly(got: Any, want: Any, given: list[Any]) -> None:
    equal = (got == want) | (is_nan(got) & is_nan(want))
    equal &= (sign(got) == sign(want)) | is_nan(got)
    bad = np.flatnonzero(~equal)
    assert bad.size == 0, [(tuple(g[i] for g in given), got[i], want[i]) for i in bad[:5]]


@pytest.mark.parametrize("dtype", _sampled(TYPES), ids=str)
def test_ops(dtype: DType) -> None:
    kernel, ops = arithmetic(dtype)
    given = inputs_of(dtype)
    found = results_of(kernel, dtype, [bool_ if op.is_compare else dtype for op in ops])
    for op, got in zip(ops, found, strict=True):
        x = [given[3], *given[:2]] if op is Ops.WHERE else given[: op.arity]
        want = evaluate_array(op, dtype, *x)
        if op in INEXACT and dtype.is_float and dtype.bits >= 32:
            wide = got.astype(np.float64), want.astype(np.float64)
            np.testing.assert_allclose(*wide, rtol=float(dtype.eps) * 4, atol=0, err_msg=op.name)
        else:
            exactly(got, want, x)


@pytest.mark.parametrize("dtype", _sampled(EVERY), ids=str)
def test_casts(dtype: DType) -> None:
    targets = [to for to in EVERY if to is not dtype]
    found = results_of(casts(dtype), dtype, targets)
    x = inputs_of(dtype)[0]
    for to, got in zip(targets, found, strict=True):
        exactly(got, evaluate_array(Ops.CAST, dtype, x, to=to), [x])


@pytest.mark.parametrize("dtype", _sampled(TYPES), ids=str)
def test_ops_compile(dtype: DType) -> None:
    assert cubin(render(lower(arithmetic(dtype)[0], TARGET), "ops").text)


@pytest.mark.parametrize("dtype", _sampled(EVERY), ids=str)
def test_casts_compile(dtype: DType) -> None:
    assert cubin(render(lower(casts(dtype), TARGET), "casts").text)
