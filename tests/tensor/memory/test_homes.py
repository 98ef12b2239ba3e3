"""Where memory lies: a tensor stays on its device, and a kernel reads memory of its own device alone."""

import numpy as np
import pytest

from morok import Tensor
from morok.device.registry import get_device
from morok.knobs import default_device

X = np.array([3.0, 1.25], np.float32)


@pytest.fixture
def elsewhere():
    """A device that is not the default one, which differs from test to test."""
    return "PYTHON" if default_device() != "PYTHON" else "EMULATOR"


def test_a_device_has_one_stream_whatever_it_is_called():
    for name in ("EMULATOR", "PYTHON"):
        assert get_device(f"{name}:0") is get_device(name)
        assert get_device(name.lower()) is get_device(name)


@pytest.mark.parametrize("write", [
    lambda t: t.__setitem__(..., 0),
    lambda t: t.assign(Tensor.zeros(4)),
    lambda t: t.__setitem__(slice(None), Tensor.arange(4) * 0.0),
    lambda t: t.__setitem__(slice(0, 4), 0),
])  # fmt: skip
def test_a_write_of_constants_leaves_a_tensor_where_it_is(write, elsewhere):
    x = Tensor(X, device=elsewhere)
    c = (x + 0).cat(x)
    write(c)
    assert c.device == elsewhere
    assert (c + 1).device == elsewhere
    assert c.cat(x).tolist() == [0.0] * 4 + X.tolist()


@pytest.mark.parametrize("value", [
    lambda: Tensor.arange(4) * 0.5,
    lambda: (Tensor.arange(4) * 0.5).contiguous() + 1,
    lambda: Tensor.zeros(4).scatter(0, Tensor.arange(2), Tensor.ones(2)),
    lambda: (Tensor.arange(16) * 0.5).reshape(4, 4).sum(1),
])  # fmt: skip
def test_values_without_a_device_on_two_of_them(value, elsewhere):
    """One is stored on the default device, as it is wanted there; the other kernel does not read it there."""
    alone = value().numpy()
    z = value()
    w = Tensor(X, device=elsewhere).cat(z * 2 - z)
    plan = Tensor.plan(w, z)
    for item in plan.schedule.items:
        assert len({b.src[1].arg for b in item.buffers}) == 1, item.name
    Tensor.realize(w, z)
    assert (z.device, w.device) == (default_device(), elsewhere)
    np.testing.assert_array_equal(z.numpy(), alone)
    np.testing.assert_array_equal(w.numpy(), np.concatenate([X, alone]))
