"""Convolutions whose edges are no zeros: NumPy pads, and a convolution without padding goes over it."""

from typing import Any

import numpy as np
import pytest

from morok import MorokError, Tensor, nn

MODES = {"reflect": "reflect", "replicate": "edge", "circular": "wrap"}
KINDS = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}
SIZES, KERNEL = (6, 7, 5), (4, 3, 2)
rng = np.random.default_rng(3)


def layers(dims: int, mode: str, padding: Any, **options: Any) -> tuple[Any, Any]:
    edged = KINDS[dims](2, 4, KERNEL[:dims], padding=padding, padding_mode=mode, **options)
    bare = KINDS[dims](2, 4, KERNEL[:dims], **options)
    bare.weight, bare.bias = edged.weight, edged.bias
    return edged, bare


@pytest.mark.parametrize("dims", [1, 2, 3])
@pytest.mark.parametrize("mode", MODES)
def test_numbers(dims: int, mode: str) -> None:
    amounts = (2, 1, 1)[:dims]
    edged, bare = layers(dims, mode, amounts, stride=2, groups=2)
    x = rng.standard_normal((3, 2, *SIZES[:dims])).astype(np.float32)
    around = np.pad(x, [(0, 0), (0, 0), *((n, n) for n in amounts)], MODES[mode])
    np.testing.assert_allclose(edged(Tensor(x)).numpy(), bare(Tensor(around)).numpy(), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(
        edged(Tensor(x[0])).numpy(), bare(Tensor(around[0])).numpy(), rtol=1e-5, atol=1e-6
    )


@pytest.mark.parametrize("mode", MODES)
def test_same_puts_the_larger_half_behind(mode: str) -> None:
    edged, bare = layers(2, mode, "same", dilation=(1, 2))
    x = rng.standard_normal((1, 2, 6, 7)).astype(np.float32)
    around = np.pad(x, [(0, 0), (0, 0), (1, 2), (2, 2)], MODES[mode])
    found = edged(Tensor(x))
    assert found.shape == (1, 4, 6, 7)
    np.testing.assert_allclose(found.numpy(), bare(Tensor(around)).numpy(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("padding", [0, "valid"])
def test_nothing_to_add(padding: Any) -> None:
    edged, bare = layers(2, "circular", padding)
    x = Tensor(rng.standard_normal((1, 2, 6, 7)).astype(np.float32))
    np.testing.assert_array_equal(edged(x).numpy(), bare(x).numpy())


def test_zeros_and_other_words() -> None:
    edged, _ = layers(1, "zeros", 2)
    plain = nn.Conv1d(2, 4, 4, padding=2)
    plain.weight, plain.bias = edged.weight, edged.bias
    x = Tensor(rng.standard_normal((1, 2, 6)).astype(np.float32))
    np.testing.assert_array_equal(edged(x).numpy(), plain(x).numpy())
    with pytest.raises(MorokError, match="padding_mode is one of 'zeros', 'reflect'"):
        nn.Conv2d(2, 4, 3, padding_mode="mirror")
