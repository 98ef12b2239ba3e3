"""Operands in an order that units read in whole vectors: channels last. Values against NumPy, on a grid."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from morok import Tensor, knobs
from morok.ir.node import UOp
from morok.schedule.graph import operand_layout
from tests.optimize.plans import an_h200, empty, planned

Array = Any
Axes = tuple[int, ...]


@pytest.fixture
def copied(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Axes]]:
    """The orders of axes of what is copied. Products of any size are worth it, on a machine with units."""
    found: list[Axes] = []
    turned = operand_layout._turned

    def note(x: UOp, axes: Axes) -> UOp:
        new = turned(x, axes)
        if x is operand_layout.base_of(x):
            found.append(axes)
        return new

    monkeypatch.setattr(operand_layout, "LEAST_WORK", 1)
    monkeypatch.setattr(operand_layout, "WORTH", 1e9)
    monkeypatch.setattr(operand_layout, "_by_threads", lambda *_: float("inf"))
    monkeypatch.setattr(operand_layout, "_turned", note)
    with knobs.override(DEVICE="EMULATOR"):
        yield found


def half(*shape: int) -> tuple[Tensor, Array]:
    x = np.random.default_rng(sum(shape)).normal(size=shape).astype(np.float16)
    return Tensor(x), x.astype(np.float64)


def convolved(x: Array, w: Array, stride: int, padding: int) -> Array:
    """By its definition, offset by offset."""
    x = np.pad(x, ((0, 0), (0, 0), (padding, padding), (padding, padding)))
    rows, columns = ((n - k) // stride + 1 for n, k in zip(x.shape[2:], w.shape[2:], strict=True))
    found = np.zeros((x.shape[0], w.shape[0], rows, columns))
    for i, j in np.ndindex(*w.shape[2:]):
        part = x[:, :, i:, j:][:, :, ::stride, ::stride][:, :, :rows, :columns]
        found += np.einsum("bcyx,oc->boyx", part, w[:, :, i, j])
    return found


def close(found: Tensor, want: Array) -> None:
    got = found.cast("float32").numpy().astype(np.float64)
    assert np.linalg.norm(got - want) <= 2e-3 * np.linalg.norm(want)


@pytest.mark.parametrize(
    ("shape", "out", "window", "stride", "padding", "orders"),
    [
        ((2, 16, 9, 7), 24, 3, 1, 1, [(0, 2, 3, 1), (0, 2, 3, 1)]),
        ((1, 24, 11, 13), 16, 5, 2, 2, [(0, 2, 3, 1), (0, 2, 3, 1)]),
        ((3, 32, 8, 8), 16, 1, 1, 0, []),  # no window: rows of an image are in order
    ],
    ids=str,
)
def test_convolutions(
    copied: list[Axes],
    shape: tuple[int, ...],
    out: int,
    window: int,
    stride: int,
    padding: int,
    orders: list[Axes],
) -> None:
    x, x64 = half(*shape)
    w, w64 = half(out, shape[1], window, window)
    y = x.conv2d(w, stride=stride, padding=padding)
    close(y, convolved(x64, w64, stride, padding))
    assert copied == orders


def test_what_is_computed_is_written_so(copied: list[Axes]) -> None:
    """Between two convolutions there is no copy: the first one writes what the second reads."""
    x, x64 = half(1, 16, 9, 11)
    v, v64 = half(16, 16, 3, 3)
    w, w64 = half(8, 16, 3, 3)
    y = x.conv2d(v, padding=1).relu().conv2d(w, padding=1)
    assert len(y.prepare().kernels) == 5 and len(copied) == 4
    middle = np.maximum(convolved(x64, v64, 1, 1), 0).astype(np.float16).astype(np.float64)
    close(y, convolved(middle, w64, 1, 1))


def test_gradients(copied: list[Axes]) -> None:
    """Each output depends on its own inputs linearly: the gradients are those of a sum of products."""
    x, x64 = half(2, 16, 6, 10)
    w, w64 = half(8, 16, 3, 3)
    g, g64 = half(2, 8, 6, 10)
    dx, dw = x.conv2d(w, padding=1).gradient(x, w, gradient=g)
    flipped = w64[:, :, ::-1, ::-1].swapaxes(0, 1)
    close(dx, convolved(g64, flipped, 1, 1))
    close(dw, convolved(x64.swapaxes(0, 1), g64.swapaxes(0, 1), 1, 1).swapaxes(0, 1))
    assert copied


def test_gradients_of_weights_have_channels_last(copied: list[Axes]) -> None:
    """Images and slopes alike, also of strided windows and of many images; the result is turned back."""
    for count, stride, wide in ((2, 1, 10), (3, 2, 10), (16, 1, 6)):
        copied.clear()
        x, x64 = half(count, 16, 8, wide)
        w, _ = half(24, 16, 3, 3)
        g, g64 = half(count, 24, 8 // stride, wide // stride)
        (dw,) = x.conv2d(w, padding=1, stride=stride).gradient(w, gradient=g)
        padded = np.pad(x64, ((0, 0), (0, 0), (1, 1), (1, 1)))
        want = np.zeros((24, 16, 3, 3))
        for i, j in np.ndindex(3, 3):
            part = padded[:, :, i:, j:][
                :, :, : 8 // stride * stride : stride, : wide // stride * stride : stride
            ]
            want[:, :, i, j] = np.einsum("boyx,bcyx->oc", g64, part)
        close(dw, want)
        assert copied == [(0, 2, 3, 1), (0, 2, 3, 1)]


def test_products_stay_as_they_are(copied: list[Axes]) -> None:
    a, a64 = half(40, 72)
    b, b64 = half(72, 24)
    close(a @ b, a64 @ b64)
    close(b.T @ a.T, b64.T @ a64.T)
    heads, heads64 = half(2, 3, 24, 16)
    close(
        heads.transpose(1, 2).reshape(48, 48) @ a[:, :48].T,
        heads64.swapaxes(1, 2).reshape(48, 48) @ a64[:, :48].T,
    )
    assert not copied


def test_rows_of_an_odd_length_are_made_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    """As operands on both sides, along the sum and beside it, of what is computed, and in batches."""
    monkeypatch.setattr(operand_layout, "LEAST_WORK", 1)
    monkeypatch.setattr(operand_layout, "LONGER_WORTH", 1e9)
    with knobs.override(DEVICE="EMULATOR"):
        a, a64 = half(40, 67)
        b, b64 = half(67, 24)
        c, c64 = half(40, 24)
        d, d64 = half(67, 41)
        e, e64 = half(3, 20, 67)
        f, f64 = half(3, 67, 16)
        for found, right, kernels in (
            (a @ b, a64 @ b64, 2),
            (a @ d, a64 @ d64, 3),
            ((a * 2).transpose(0, 1) @ c, 2 * a64.T @ c64, 2),
            (d.transpose(0, 1) @ b, d64.T @ b64, 2),
            (e @ f, e64 @ f64, 2),
        ):
            assert len(found.prepare().kernels) == kernels
            close(found, right)


def test_rows_are_made_longer_only_beside_much_work() -> None:
    with an_h200() as machine:
        for rows, inner, columns, kernels in (
            (8192, 50257, 768, 2),
            (8192, 50257, 16, 1),
            (8192, 50264, 768, 1),
        ):
            x, w = empty(rows, inner), empty(inner, columns)
            assert len(planned([(x @ w).uop], machine)) == kernels


def test_a_copy_is_worth_it_only_beside_much_work() -> None:
    with an_h200() as machine:
        for side, kernels in ((56, 3), (2, 1)):
            x, w = empty(8, 64, side, side), empty(256, 64, 3, 3)
            assert len(planned([x.conv2d(w, padding=1).uop], machine)) == kernels


def test_what_a_stride_leaves_out_is_not_copied(copied: list[Axes], monkeypatch: pytest.MonkeyPatch) -> None:
    """Places of a convolution without a window lie in order again; so do those of its weights' gradient."""
    packed: list[int] = []
    real = operand_layout._packed

    def note(x: UOp) -> UOp:
        packed.append(1)
        return real(x)

    monkeypatch.setattr(operand_layout, "_packed", note)
    x, x64 = half(4, 16, 16, 32)
    w, w64 = half(24, 16, 1, 1)
    close(x.conv2d(w, stride=2), convolved(x64, w64, 2, 0))
    assert len(packed) == 1 and not copied
    g, g64 = half(4, 24, 8, 16)
    (dw,) = x.conv2d(w, stride=2).gradient(w, gradient=g)
    close(dw, np.einsum("boyx,bcyx->oc", g64, x64[:, :, ::2, ::2])[:, :, None, None])
    assert len(packed) >= 2 and not copied


def test_both_operands_lie_along_one_step(copied: list[Axes]) -> None:
    """Images are the longest sum here, but slopes lie along places: channels are the last axis of both."""
    x, x64 = half(40, 16, 28, 20)
    w, _ = half(24, 16, 1, 1)
    g, g64 = half(40, 24, 14, 10)
    (dw,) = x.conv2d(w, stride=2).gradient(w, gradient=g)
    close(dw, np.einsum("boyx,bcyx->oc", g64, x64[:, :, ::2, ::2])[:, :, None, None])
    assert copied == [(0, 2, 3, 1), (0, 2, 3, 1)]


@pytest.mark.parametrize(
    ("shape", "out", "window", "stride", "copies"),
    [
        ((2, 16, 9, 7), 24, 3, 1, 2),
        ((1, 12, 11, 13), 16, 5, 2, 2),
        ((2, 3, 12, 12), 16, 3, 1, 0),  # no vector of steps
        ((2, 16, 8, 8), 16, 1, 1, 0),  # no window
    ],
    ids=str,
)
def test_windows_that_threads_multiply(
    copied: list[Axes], shape: tuple[int, ...], out: int, window: int, stride: int, copies: int
) -> None:
    """In float32 no unit multiplies, and threads copy vectors of channels rather than elements of windows."""
    random = np.random.default_rng(3)
    x64, w64 = (random.normal(size=s) for s in (shape, (out, shape[1], window, window)))
    x, w = (Tensor(a.astype(np.float32)) for a in (x64, w64))
    got = x.conv2d(w, stride=stride, padding=window // 2).numpy().astype(np.float64)
    want = convolved(x64, w64, stride, window // 2)
    assert np.linalg.norm(got - want) <= 1e-6 * np.linalg.norm(want)
    assert len(copied) == copies
    if copies:
        assert copied[0] == (0, 2, 3, 1)


def test_windows_of_float32_have_channels_last_where_it_is_worth_it() -> None:
    """Two copies and the product of some 60 µs and more; no copies for three channels, or for little work."""

    def kernels(x: tuple[int, ...], w: tuple[int, ...]) -> int:
        with an_h200() as machine:
            image, weights = empty(*x, dtype="float32"), empty(*w, dtype="float32")
            return len(planned([image.conv2d(weights, padding=w[-1] // 2).uop], machine))

    assert kernels((32, 128, 56, 56), (128, 128, 3, 3)) == 3
    assert kernels((16, 256, 28, 28), (256, 256, 3, 3)) == 3
    assert kernels((32, 3, 224, 224), (64, 3, 7, 7)) == 1
    assert kernels((1, 16, 12, 12), (16, 16, 3, 3)) == 1


@pytest.mark.parametrize(
    ("shape", "columns", "computed", "turns"),
    [
        ((40, 24), 36, False, 1),
        ((3, 20, 24), 28, False, 1),
        ((40, 24), 35, False, 0),  # the columns are no whole vectors, and turned rows bring nothing
        ((39, 24), 35, False, 0),
        ((40, 24), 36, True, 1),
        ((40, 24), 37, True, 0),
    ],
    ids=str,
)
def test_of_two_operands_along_the_steps_the_columns_are_turned_for_threads(
    copied: list[Axes],
    monkeypatch: pytest.MonkeyPatch,
    shape: tuple[int, ...],
    columns: int,
    computed: bool,
    turns: int,
) -> None:
    monkeypatch.setattr(operand_layout, "_copies", lambda *_: 0.0)
    random = np.random.default_rng(columns)
    x, w = (random.normal(size=s).astype(np.float32) for s in (shape, (columns, shape[-1])))
    y = Tensor(x).exp() if computed else Tensor(x)
    y64 = np.exp(x.astype(np.float64)) if computed else x.astype(np.float64)
    np.testing.assert_allclose(
        y.linear(Tensor(w)).numpy(), y64 @ w.astype(np.float64).T, rtol=1e-4, atol=1e-4
    )
    assert len(copied) == turns and all(axes[-1] != len(axes) - 1 for axes in copied)


def test_a_turn_for_threads_is_worth_it_beside_much_work() -> None:
    """Each of them is a kernel more, and no two of them are made; scores of an attention stay as they are."""
    with an_h200() as machine:
        for m, k, n, kernels in ((4096, 1024, 4096, 2), (512, 512, 512, 1), (4095, 1024, 4095, 1)):
            x, w = empty(m, k, dtype="float32"), empty(n, k, dtype="float32")
            assert len(planned([x.linear(w).uop], machine)) == kernels
            assert len(planned([(x @ w.transpose(0, 1).contiguous()).uop], machine)) == 2
        q, k = (empty(4, 12, 2048, 64, dtype="float32") for _ in range(2))
        assert len(planned([(q @ k.transpose(2, 3)).uop], machine)) == 1
        x, w = empty(4096, 1024), empty(4096, 1024)
        assert len(planned([x.linear(w).uop], machine)) == 1  # a unit reads either order
