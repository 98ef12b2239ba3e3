"""Images whose channels lie side by side: so does what is computed of them, and nothing is turned around."""

from typing import Any

import pytest

pytest.importorskip("torch", reason="torch is not installed")

import torch

from morok import knobs
from morok.torch.backend import morok
from morok.torch.watch import watching

CHANNELS = 8


class Block(torch.nn.Module):
    """ConvNeXt's: a convolution of each channel, a norm over channels, a product, a scale, a sum."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = torch.nn.Conv2d(CHANNELS, CHANNELS, 3, padding=1, groups=CHANNELS)
        self.norm = torch.nn.LayerNorm(CHANNELS)
        self.linear = torch.nn.Linear(CHANNELS, CHANNELS)
        self.scale = torch.nn.Parameter(torch.rand(CHANNELS, 1, 1))

    def forward(self, x: Any) -> Any:
        y = self.norm(self.conv(x).permute(0, 2, 3, 1))
        return x + self.scale * self.linear(y).permute(0, 3, 1, 2)


def images(kind: Any = torch.float32) -> Any:
    return torch.randn(2, CHANNELS, 6, 5, dtype=kind).to(memory_format=torch.channels_last)


def kernels(graphs: Any) -> list[str]:
    return [item.name for graph in graphs for plan in graph.plans for item in plan.schedule.items]


@pytest.mark.parametrize("device", ["EMULATOR"])
@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16], ids=str)
def test_training_of_blocks_turns_nothing(kind: Any, device: str) -> None:
    model = torch.nn.Sequential(Block(), Block()).to(kind)
    exact = torch.nn.Sequential(Block(), Block()).double()
    exact.load_state_dict(model.state_dict())
    x = images(kind).requires_grad_()
    right = x.detach().double().requires_grad_()
    with knobs.override(DEVICE=device), watching() as graphs:
        torch._dynamo.reset()
        y = torch.compile(model, backend=morok, fullgraph=True, options={"fallback": False})(x)
        y.square().sum().backward()
    wanted = exact(right)
    wanted.square().sum().backward()
    assert y.stride() == model(x).stride()
    near = 1e-5 if kind is torch.float32 else 3e-2
    for a, b in (
        (y.detach(), wanted.detach()),
        (x.grad, right.grad),
        *zip(grads(model), grads(exact), strict=True),
    ):
        assert float((a.double() - b).norm()) <= near * float(b.norm())
    # sums over windows have channels last, in both passes, and nobody has copied an image to another order
    names = kernels(graphs)
    assert sum("2_6_5_8_3_3" in name for name in names) >= 4, names
    assert not [n for n in names if "8_6_5_3_3" in n or n.startswith(("e_2_8_30", "e_2_30_8"))], names


def grads(model: Any) -> list[Any]:
    return [p.grad for p in model.parameters()]


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("groups", [1, 2, CHANNELS])
def test_convolutions_and_their_gradients(groups: int, stride: int, transposed: bool) -> None:
    layer = torch.nn.ConvTranspose2d if transposed else torch.nn.Conv2d
    model = layer(CHANNELS, CHANNELS, 3, stride, 1, groups=groups)
    x, right = images().requires_grad_(), None
    y = torch.compile(model, backend=morok, options={"fallback": False})(x)
    y.sin().sum().backward()
    found = [x.grad, model.weight.grad, model.bias.grad]
    x.grad = model.weight.grad = model.bias.grad = None
    right = model(x)
    right.sin().sum().backward()
    assert y.stride() == right.stride() and found[0].stride() == x.grad.stride()
    for a, b in zip((y, *found), (right, x.grad, model.weight.grad, model.bias.grad), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)


def test_operands_of_other_ranks_and_orders_meet() -> None:
    """Pointwise operators of such images with rows, numbers, images in the usual order, and conditions."""

    def function(x: Any, y: Any, row: Any, number: Any) -> Any:
        clamped = torch.clamp(x + y * row, min=row - 1, max=row + 1)
        chosen = torch.where(x > 0, clamped, number)
        return chosen.to(torch.float64), (x == y), torch.clamp(x, -0.5, 0.5).half() + number

    given = images(), torch.randn(2, CHANNELS, 6, 5), torch.randn(5), torch.tensor(2.0)
    found = torch.compile(function, backend=morok, fullgraph=True, options={"fallback": False})(*given)
    for a, b in zip(found, function(*given), strict=True):
        assert a.stride() == b.stride() and a.dtype == b.dtype
        torch.testing.assert_close(a, b)


def test_gradients_of_a_convolution_with_itself() -> None:
    """The image is the weight: each has a gradient of its own."""

    def function(x: Any) -> Any:
        return torch.nn.functional.conv2d(x, x, padding=1)

    x = torch.randn(3, 3, 3, 3, requires_grad=True)
    torch.compile(function, backend=morok)(x).square().sum().backward()
    found, x.grad = x.grad, None
    function(x).square().sum().backward()
    torch.testing.assert_close(found, x.grad, rtol=1e-4, atol=1e-4)


def test_gradients_where_the_weight_is_made_of_the_image() -> None:
    def function(x: Any) -> Any:
        return torch.nn.functional.conv2d(x, x.sin().sum((0,), keepdim=True), padding=1)

    x = torch.randn(2, 3, 4, 4, requires_grad=True)
    torch.compile(function, backend=morok)(x).square().sum().backward()
    found, x.grad = x.grad, None
    function(x).square().sum().backward()
    torch.testing.assert_close(found, x.grad, rtol=1e-4, atol=1e-4)
