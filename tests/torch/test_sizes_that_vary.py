"""Parts whose ends are sizes that vary: one plan for all, and the gradients of what they are cut from."""

from collections.abc import Callable

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from morok.torch.backend import morok  # noqa: E402

Part = Callable[["torch.Tensor", "torch.Tensor"], "torch.Tensor"]


def assigned(x: "torch.Tensor", p: "torch.Tensor") -> "torch.Tensor":
    q = p.clone()
    q[:, : x.shape[1]] = x[:1]
    return q


PARTS: dict[str, Part] = {
    "head": lambda x, p: x + p[:, : x.shape[1]],
    "middle": lambda x, p: x[:, 1:] * p[:, 1 : x.shape[1]],
    "end": lambda x, p: x + p[:, 10 - x.shape[1] :],
    "every other": lambda x, p: x[:, ::2] * p[:, : x.shape[1] : 2],
    "replaced": lambda x, p: p.slice_scatter(x[:1], 1, 0, x.shape[1]),
    "assigned": assigned,
    "joined": lambda x, p: torch.cat([x[:1], p[:, x.shape[1] :]], 1),
}


class Shifted(torch.nn.Module):
    def __init__(self, part: Part) -> None:
        super().__init__()
        self.p = torch.nn.Parameter(torch.arange(40.0).reshape(1, 10, 4) / 10)
        self.part = part

    def forward(self, x: "torch.Tensor") -> "torch.Tensor":
        return self.part(x * self.p[:, :1], self.p)


@pytest.mark.parametrize("name", PARTS)
def test_gradients_of_parts(name: str) -> None:
    torch._dynamo.reset()
    own, other = Shifted(PARTS[name]), Shifted(PARTS[name])
    compiled = torch.compile(other, backend=morok, dynamic=True)
    for count in (4, 7, 10):
        x = torch.linspace(-1, 1, 2 * count * 4).reshape(2, count, 4)
        own.zero_grad(), other.zero_grad()
        wanted, found = own(x), compiled(x)
        torch.testing.assert_close(found, wanted)
        wanted.square().sum().backward(), found.square().sum().backward()
        torch.testing.assert_close(other.p.grad, own.p.grad)
