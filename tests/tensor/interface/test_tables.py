"""Every public operation against NumPy, from tables of operations and types."""

from __future__ import annotations

import inspect
import warnings
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from morok import Tensor, knobs
from morok.tensor.calls.record import _OPERATORS
from tests.devices import devices
from tests.tensor.interface.table_elementwise import BINARY, UNARY, USUAL, Entry
from tests.tensor.interface.table_in_place import FACTS, IN_PLACE
from tests.tensor.interface.table_more import LINALG, MORE, SLICES, SPECIAL
from tests.tensor.interface.table_products import CASES
from tests.tensor.interface.table_shapes import (
    LAYOUTS,
    MOVEMENT,
    NEED_ELEMENTS,
    ONE_AXIS,
    ORDER,
    REDUCTIONS,
    RUNNING,
    SHAPES,
    axes_of,
    laid_out,
    shaped,
)
from tests.tensor.interface.table_values import ALL, FLOATS, TINY, difference, edges, pairs

Array = Any
(JUDGE,), (COMPILED,) = devices("PYTHON"), devices("CPU")
DEVICES = [
    JUDGE,
    *(pytest.param(d, marks=pytest.mark.slow) for d in ("CPU", "EMULATOR") if JUDGE == "PYTHON"),
]


NARROW = ("float16", "bfloat16", *TINY)


def compare(entries: dict[str, Entry], dtype: str, arrays: tuple[Array, ...]) -> list[str]:
    """All operations on one type, computed together; what differs."""
    chosen = {name: entry for name, entry in entries.items() if dtype in entry.types}
    if not chosen:
        return []
    tensors = [Tensor(x) for x in arrays]
    found: dict[str, Any] = {}
    failures = []
    for name, entry in chosen.items():
        try:
            found[name] = entry.call(*tensors)
        except Exception as error:
            failures.append(f"{name}: {type(error).__name__}: {error}")
    Tensor.realize(*found.values())
    for name, result in found.items():
        entry = chosen[name]
        got, given = result.numpy(), arrays
        with np.errstate(all="ignore"):
            if entry.domain is not None:
                inside = np.asarray(entry.domain(*arrays))
                got, given = got[inside], tuple(x[inside] for x in arrays)
            wanted = np.asarray(entry.oracle(*given))
        # what is narrower than 32 bits is computed in float32 and rounded once
        ulps = min(entry.ulps, 1.0) if dtype in NARROW else entry.ulps
        wrong = difference(got, wanted, ulps, entry.zero_signs)
        if wrong is not None:
            failures.append(f"{name}: {wrong}")
    return failures


def run(entries: dict[str, Entry], dtype: str, device: str, arrays: tuple[Array, ...]) -> None:
    with knobs.override(DEVICE=device):
        failures = compare(entries, dtype, arrays)
    assert not failures, "\n".join(failures)


def usual(dtype: str) -> tuple[Array]:
    return (np.linspace(0.05, 0.95, 19).astype(edges(dtype).dtype),)


def _tier(dtypes: tuple[str, ...], quick: tuple[str, ...]) -> list[Any]:
    """Types of machine code: some in every run, the rest in the slow tier."""
    return [pytest.param(d, marks=() if d in quick else pytest.mark.slow) for d in dtypes]


@pytest.mark.parametrize("dtype", _tier(ALL, ("bool", "int8", "float16", "float64")))
def test_functions_of_one_number(dtype: str) -> None:
    run(UNARY, dtype, JUDGE, (edges(dtype),))


@pytest.mark.parametrize("dtype", _tier(ALL, ("bool", "int8", "float16", "float32")))
def test_functions_of_two_numbers(dtype: str) -> None:
    run(BINARY, dtype, JUDGE, pairs(dtype))


@pytest.mark.parametrize("dtype", FLOATS)
def test_functions_at_usual_values(dtype: str) -> None:
    run(USUAL, dtype, JUDGE, usual(dtype))


@pytest.mark.parametrize("dtype", _tier(ALL, ("float32",)))
def test_functions_of_one_number_as_machine_code(dtype: str) -> None:
    run(UNARY, dtype, COMPILED, (edges(dtype),))


@pytest.mark.parametrize("dtype", _tier(ALL, ("float32",)))
def test_functions_of_two_numbers_as_machine_code(dtype: str) -> None:
    run(BINARY, dtype, COMPILED, pairs(dtype))


@pytest.mark.slow
@pytest.mark.parametrize("dtype", FLOATS)
def test_functions_at_usual_values_as_machine_code(dtype: str) -> None:
    run(USUAL, dtype, COMPILED, usual(dtype))


@pytest.mark.skipif(JUDGE != "PYTHON", reason="all of the tables go where DEVICE says")
@pytest.mark.parametrize("dtype", ALL)
def test_functions_as_a_gpu_computes_them(dtype: str) -> None:
    for table, arrays in ((UNARY, (edges(dtype),)), (BINARY, pairs(dtype))):
        run(table, dtype, "EMULATOR", arrays)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", TINY)
def test_floats_of_eight_bits(dtype: str, device: str) -> None:
    """All that floats have, computed in float32 and rounded once."""
    for table, arrays in ((UNARY, (edges(dtype),)), (BINARY, pairs(dtype))):
        entries = {n: replace(e, types=TINY) for n, e in table.items() if "float16" in e.types}
        run(entries, dtype, device, arrays)


# --- whole tensors


def check_all(found: list[tuple[str, Any, Any, float]]) -> None:
    """Results that are computed together, against what they should be."""
    Tensor.realize(*(result for _, result, _, _ in found if isinstance(result, Tensor)))
    failures = []
    for label, result, wanted, ulps in found:
        got = result.numpy() if isinstance(result, Tensor) else np.asarray(result)
        wrong = difference(got, wanted, ulps)
        if wrong is not None:
            failures.append(f"{label}: {wrong}")
    assert not failures, "\n".join(failures)


_EVERY_RUN = {"plain": "bfloat16", "turned": "int16", "strided": "bool", "spread": "uint64"}


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    ("layout", "dtype"),
    [pytest.param(a, b, marks=() if _EVERY_RUN[a] == b else pytest.mark.slow) for a in LAYOUTS for b in ALL],
)
def test_movement(layout: str, dtype: str, device: str) -> None:
    with knobs.override(DEVICE=device):
        t, x = laid_out(layout, dtype)
        found = []
        for name, cases in MOVEMENT.items():
            for number, (mine, numpys) in enumerate(cases):
                found.append((f"{name} {number}", mine(t), np.asarray(numpys(x)), 0.0))
        check_all(found)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", _tier(ALL, ("bool", "float16", "float32")))
def test_reductions(dtype: str, device: str) -> None:
    with knobs.override(DEVICE=device):
        found = []
        for shape in SHAPES:
            x = shaped(shape, dtype)
            t = Tensor(x)
            for name, (mine, numpys) in REDUCTIONS.items():
                for axis in axes_of(shape):
                    if (name in ONE_AXIS and isinstance(axis, tuple)) or (
                        name in NEED_ELEMENTS and 0 in shape
                    ):
                        continue
                    with np.errstate(all="ignore"), warnings.catch_warnings():
                        warnings.simplefilter("ignore")
                        for keep in (False, True):
                            wanted = numpys(x, axis, keep)
                            ulps = 16.0 if name == "quantile" else 2.0  # between values that may cancel
                            found.append((f"{name} {shape} {axis} {keep}", mine(t, axis, keep), wanted, ulps))
        check_all(found)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", _tier(ALL, ("bool", "int32", "float32")))
def test_running_reductions_and_order(dtype: str, device: str) -> None:
    with knobs.override(DEVICE=device):
        found = []
        for shape in SHAPES:
            x = shaped(shape, dtype)
            t = Tensor(x)
            with np.errstate(all="ignore"):
                for name, (mine, numpys) in RUNNING.items():
                    for axis in (None, *range(-1, len(shape))) if shape else (None,):
                        label = f"{name} {shape} {axis}"
                        found.append((label, mine(t, axis), numpys(x, axis), 2.0))
                for name, (mine, numpys) in ORDER.items():
                    found += [
                        (f"{name} {shape} {axis}", mine(t, axis), numpys(x, axis), 0.0)
                        for axis in (range(-1, len(shape)) if shape else ())
                    ]
        check_all(found)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", CASES)
def test_cases(name: str, device: str) -> None:
    with knobs.override(DEVICE=device):
        for mine, numpys in CASES[name]:
            result = mine()
            got = result.numpy() if isinstance(result, Tensor) else np.asarray(result)
            with np.errstate(all="ignore"):
                wanted = np.asarray(numpys())
            assert got.shape == wanted.shape
            assert got.dtype == wanted.dtype or not isinstance(result, Tensor), (got.dtype, wanted.dtype)
            np.testing.assert_allclose(got, wanted, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("device", DEVICES)
def test_further_cases(device: str) -> None:
    """All of them together: one by one they would take longer to schedule than to compute."""
    with knobs.override(DEVICE=device):
        failures = []
        cases = [
            *((name, case) for name, found in MORE.items() for case in found),
            *(("unique", c) for c in SLICES),
        ]
        for name, (mine, numpys) in cases:
            result = mine()
            got = result.numpy() if isinstance(result, Tensor) else np.asarray(result)
            with np.errstate(all="ignore"), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                wanted = np.asarray(numpys())
            fits = got.shape == wanted.shape and got.dtype == wanted.dtype
            if not fits or not np.allclose(got, wanted, rtol=1e-9, atol=1e-10, equal_nan=True):
                failures.append(f"{name}: {got} of {got.dtype}, not {wanted} of {wanted.dtype}")
        assert not failures, "\n".join(failures)


# --- nothing is forgotten

RANDOM = {  # tests/nn/test_random.py
    "manual_seed", "get_rng_state", "set_rng_state",
    "rand", "rand_like", "randn", "randn_like", "uniform", "normal", "randint", "randint_like",
    "bernoulli", "permutation", "multinomial", "dropout", "exponential", "gumbel", "truncated_normal",
    "standard_gamma", "dirichlet", "poisson", "binomial", "categorical",
}  # fmt: skip
GRADIENTS = {  # tests/gradient
    "grad", "requires_grad", "requires_grad_", "is_leaf", "zero_grad", "backward", "gradient",
}  # fmt: skip
FILES = {"from_file", "from_url"}  # tests/tensor/creation/test_creation.py
GRAPHS = {
    "prepare",
    "is_realized",
    "uop",
    "dtype",
    "device",
    "empty",
    "empty_like",
}  # tests/tensor/memory/test_realize.py
MESHES = {"shard", "unshard", "placement"}  # tests/mesh


def test_every_public_operation_is_in_a_table() -> None:
    tables = (UNARY, BINARY, USUAL, MOVEMENT, REDUCTIONS, RUNNING, ORDER, CASES)
    known = {name.split()[0] for table in tables for name in table}
    known |= set(MORE) | set(SPECIAL) | set(LINALG) | RANDOM | GRADIENTS | FILES | GRAPHS | MESHES
    known |= {row[0] for row in IN_PLACE} | FACTS
    plain = {n: inspect.unwrap(getattr(Tensor, n)) for n in dir(Tensor) if not n.startswith("_")}
    aliases = {n for n, f in plain.items() if any(f is plain.get(other) for other in known if other != n)}
    operators = {n for n in _OPERATORS if n in dir(Tensor) and n != "__init__"}
    missing = sorted((set(plain) | operators) - known - aliases)
    assert not missing, f"enter in a table of tests/tensor: {', '.join(missing)}"
    unknown = sorted(name for name in known if not hasattr(Tensor, name))
    assert not unknown, f"in a table, but no operation: {', '.join(unknown)}"
