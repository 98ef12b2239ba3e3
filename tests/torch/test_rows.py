"""Rows of the table where torch has a view of its own: NaN, ties, empty tensors, what optimisers become."""

import copy
import math
import warnings
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402, N812

from morok.torch.backend import morok  # noqa: E402
from tests.torch.test_backend import alike, trains  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")
ODD = torch.tensor([1.0, math.nan, math.inf, -math.inf, -0.0, 0.0, 3.0, 3.0, -2.0])


def compared(function: Any, *inputs: Any) -> None:
    """As `alike`, where NaN equals NaN."""
    compiled = torch.compile(function, backend=morok, fullgraph=True, options={"fallback": False})
    for found, right in zip(compiled(*inputs), function(*inputs), strict=True):
        assert (found.dtype, found.shape, found.stride()) == (right.dtype, right.shape, right.stride())
        torch.testing.assert_close(found, right, rtol=1e-5, atol=1e-6, equal_nan=True)


def test_a_nan_has_no_sign() -> None:
    compared(lambda x, y: (x.sign(), x.sgn(), torch.heaviside(x, y)), ODD, ODD.flip(0))


@pytest.mark.slow
def test_order_with_nans_and_ties() -> None:
    def function(x: Any) -> Any:
        rows = x.reshape(3, 3)
        return (*x.cummax(0), *x.cummin(0), *rows.median(1), *rows.nanmedian(0), x.median(), x.nanmedian(),
                x.nan_to_num(1.0).mode(0).values)  # fmt: skip

    compared(function, ODD)


@pytest.mark.slow
def test_special_functions_are_rows() -> None:
    def function(x: Any) -> Any:
        s = torch.special
        return (s.bessel_j0(x), s.bessel_y1(x), s.modified_bessel_k0(x), s.airy_ai(x), s.erfcx(x),
                s.zeta(x + 1, x), s.hermite_polynomial_h(x, 3), s.legendre_polynomial_p(x, torch.tensor(2.0)),
                *x.frexp())  # fmt: skip

    compared(function, torch.tensor([0.3, 1.0, 2.5, 7.0]))


@pytest.mark.slow
def test_pools_pads_and_samples_have_gradients() -> None:
    def function(x: Any, grid: Any) -> Any:
        pools = F.adaptive_max_pool2d(x, (3, 2)), F.adaptive_avg_pool3d(x.unsqueeze(0), (1, 3, 2))
        return *pools, F.pad(x, (1, 2, 3, -1), mode="replicate"), F.grid_sample(x, grid, align_corners=False)

    given = [torch.randn(2, 2, 5, 7), torch.rand(2, 3, 4, 2) * 2 - 1]
    found, right = ([v.clone().requires_grad_() for v in given] for _ in range(2))
    compiled = torch.compile(function, backend=morok, fullgraph=True, options={"fallback": False})
    for run, leaves in ((compiled, found), (function, right)):
        sum((n + 1) * r.square().sum() for n, r in enumerate(run(*leaves))).backward()
    for a, b in zip(found, right, strict=True):
        torch.testing.assert_close(a.grad, b.grad, rtol=1e-4, atol=1e-4)


@pytest.mark.slow
def test_distances_of_repeated_batches_have_gradients() -> None:
    a, b = torch.randn(3, 1, 4, 2, requires_grad=True), torch.randn(2, 5, 2)
    compiled = torch.compile(torch.cdist, backend=morok, fullgraph=True, options={"fallback": False})
    (found,) = torch.autograd.grad(compiled(a, b).sum(), a)
    (right,) = torch.autograd.grad(torch.cdist(a, b).sum(), a)
    torch.testing.assert_close(found, right, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["AdamW", "RMSprop", "Adagrad", "SGD"])
def test_the_step_of_an_optimizer_is_compiled(kind: str) -> None:
    model = nn.Linear(4, 3)
    other = copy.deepcopy(model)
    plain, own = (getattr(torch.optim, kind)(m.parameters(), lr=0.01) for m in (model, other))
    with warnings.catch_warnings():
        warnings.simplefilter("error", category=UserWarning)
        step = torch.compile(own.step, backend=morok)
        for _ in range(3):
            x = torch.randn(5, 4)
            for owner, run in ((model, plain.step), (other, step)):
                owner.zero_grad()
                owner(x).square().sum().backward()
                run()
    for a, b in zip(other.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)


def test_what_comes_after_a_size_that_data_decide_is_named() -> None:
    compiled = torch.compile(lambda x: x[x > 0].sum() + 1, backend=morok)
    with (
        torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True),
        warnings.catch_warnings(record=True) as told,
    ):
        warnings.simplefilter("always")
        assert float(compiled(torch.tensor([1.0, -2.0, 3.0]))) == 5.0
    lines = [str(w.message) for w in told if "aten.sum" in str(w.message)]
    assert lines and "known only when it runs" in lines[0]


def test_shifts_by_numbers() -> None:
    alike(lambda x: (x << 1, x >> 1), torch.tensor([127, -128, 5], dtype=torch.int8))


@pytest.mark.slow
def test_lists_of_tensors() -> None:
    def function(a: Any, b: Any, c: Any, d: Any) -> Any:
        x, y = [a + 1, c + 1], [b, d]
        torch._foreach_add_(x, y, alpha=2)
        torch._foreach_mul_(x, [1.0, 2.0])
        torch._foreach_addcdiv_(x, y, torch._foreach_exp(y), 0.5)
        torch._foreach_addcmul_(x, y, y, [0.5, 0.25])
        return (*torch._foreach_lerp(x, y, 0.3), *torch._foreach_pow(2.0, y), *torch._foreach_norm(x, 1),
                *torch._foreach_maximum(x, 0.0), *torch._foreach_sqrt(torch._foreach_abs(x)),
                *torch._foreach_div(x, torch.tensor(3.0)))  # fmt: skip

    compared(function, *(torch.randn(n) for n in (3, 3, 4, 4)))


@pytest.mark.slow
def test_numbers_as_if_they_were_quantised() -> None:
    scales, zeros = torch.tensor([0.1, 0.3, 0.05]), torch.tensor([0, 2, -1], dtype=torch.int32)

    def function(x: Any) -> Any:
        return (torch.fake_quantize_per_tensor_affine(x, 0.1, 3, -8, 7),
                torch.fake_quantize_per_channel_affine(x, scales, zeros, 1, -8, 7),
                torch.fake_quantize_per_tensor_affine(x, scales[0], zeros[1], -8, 7))  # fmt: skip

    x = torch.randn(5, 3, requires_grad=True)
    compiled = torch.compile(function, backend=morok, fullgraph=True, options={"fallback": False})
    for a, b in zip(compiled(x), function(x), strict=True):
        torch.testing.assert_close(a, b)
        (found,), (right,) = (torch.autograd.grad(v.square().sum(), x, retain_graph=True) for v in (a, b))
        torch.testing.assert_close(found, right)


@pytest.mark.slow
def test_weights_with_a_norm_learn() -> None:
    trains(nn.utils.parametrizations.weight_norm(nn.Linear(4, 6)), torch.randn(3, 4))


def test_complex_numbers_are_torchs_and_that_is_said() -> None:
    def function(x: Any, angle: Any) -> Any:
        turned = torch.view_as_complex(x.reshape(3, 2, 2)) * torch.polar(torch.ones(2), angle)
        return torch.view_as_real(turned).flatten(1) + 1

    x, angle = torch.randn(3, 4, requires_grad=True), torch.randn(2)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        found, right = torch.compile(function, backend=morok)(x, angle), function(x, angle)
        (a,), (b,) = (torch.autograd.grad(v.square().sum(), x) for v in (found, right))
    torch.testing.assert_close(found, right)
    torch.testing.assert_close(a, b)
    lines = [str(w.message) for w in told if "aten.polar" in str(w.message)]
    assert lines and "no type for torch.complex64" in lines[0] and "test_rows.py" in lines[0]
