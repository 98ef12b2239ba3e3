"""Small networks through torch.compile: values, gradients, types, strides, aliases, beside eager torch."""

import copy
import gc
import warnings
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402, N812

from morok.torch.backend import morok  # noqa: E402
from morok.torch.watch import watching  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


def close(a: Any, b: Any, tolerance: float = 1e-5) -> None:
    """Two results of torch's alike in everything that one can see."""
    if not isinstance(a, torch.Tensor):
        assert a == b
        return
    assert (a.dtype, a.shape, a.stride()) == (b.dtype, b.shape, b.stride())
    torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)


def alike(function: Any, *inputs: Any, tolerance: float = 1e-5, **options: Any) -> Any:
    compiled = torch.compile(function, backend=morok, fullgraph=True, options={"fallback": False}, **options)
    with torch.no_grad():
        expected, found = function(*inputs), compiled(*inputs)
    many = isinstance(expected, tuple | list)
    for a, b in zip(expected if many else [expected], found if many else [found], strict=True):
        close(b, a, tolerance)
    return compiled


def trains(model: Any, *inputs: Any, tolerance: float = 1e-4) -> None:
    """Loss and gradients of two steps, beside the same model in eager torch."""
    other = copy.deepcopy(model)
    compiled = torch.compile(other, backend=morok, fullgraph=True, options={"fallback": False})
    for _ in range(2):
        for run, owner in ((model, model), (compiled, other)):
            owner.zero_grad()
            loss = run(*inputs).square().mean()
            loss.backward()
            torch.optim.SGD(owner.parameters(), lr=0.05).step()
    for (name, a), b in zip(model.named_parameters(), other.parameters(), strict=True):
        scale = max(float(a.grad.abs().max()), 1e-4)
        assert float((a.grad - b.grad).abs().max()) <= tolerance * scale, name
    for (name, a), b in zip(model.named_buffers(), other.buffers(), strict=True):
        torch.testing.assert_close(b, a, rtol=tolerance, atol=tolerance, msg=name)


@pytest.mark.slow
def test_a_perceptron_learns() -> None:
    trains(nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3)), torch.randn(4, 6))


def test_strides_and_types_are_torchs() -> None:
    def function(x: Any) -> Any:
        return x.permute(2, 0, 1) * 2, x.sum(0) > 0, x.argmax(1), (x + 1).transpose(0, 1)

    alike(function, torch.randn(2, 3, 4))


def test_results_that_show_an_input() -> None:
    def function(x: Any) -> Any:
        return x.view(6), x[0], x + 1

    x = torch.randn(2, 3)
    compiled = alike(function, x)
    whole, row, _ = compiled(x)
    x[0, 0] = 7.0
    assert whole[0] == 7.0 and row[0] == 7.0


def test_what_is_written_to_an_input_is_there() -> None:
    def function(x: Any, y: Any) -> Any:
        x.mul_(2)
        y[0] = x.sum()
        return x + y

    a, b = torch.randn(3), torch.randn(3)
    c, d = a.clone(), b.clone()
    expected = function(a, b)
    compiled = torch.compile(function, backend=morok, fullgraph=True, options={"fallback": False})
    close(compiled(c, d), expected)
    close(c, a)
    close(d, b)


def test_inputs_with_gaps_and_repeated_ones() -> None:
    x = torch.randn(4, 6)
    alike(lambda a, b: (a * b).sum(1), x[:, ::2], torch.randn(4, 1).expand(4, 3))


@pytest.mark.parametrize("function", [lambda x: x.rot90(), lambda x: F.dropout(x, 0.5, training=False)])
def test_results_lie_as_in_torchs_own_graphs(function: Any) -> None:
    """Strides and memory are those of the graph, also where some versions of torch trace other ones."""
    seen = []
    for backend in ("aot_eager", morok):
        torch._dynamo.reset()
        x = torch.randn(3, 3, 3, requires_grad=True)
        out = torch.compile(function, backend=backend, fullgraph=True)(x)
        out.sum().backward()
        shared = out.untyped_storage().data_ptr() == x.untyped_storage().data_ptr()
        seen.append((out.stride(), shared, x.grad.stride()))
    assert seen[0] == seen[1]


def test_dropout_follows_the_seed() -> None:
    compiled = torch.compile(lambda x: F.dropout(x, 0.5), backend=morok, fullgraph=True)
    x = torch.ones(1000)
    torch.manual_seed(3)
    a, b = compiled(x), compiled(x)
    torch.manual_seed(3)
    c = compiled(x)
    assert torch.equal(a, c) and not torch.equal(a, b)
    assert set(a.tolist()) == {0.0, 2.0} and 400 < int((a > 0).sum()) < 600


def test_the_gradient_of_dropout_is_that_of_what_was_kept() -> None:
    compiled = torch.compile(lambda x: F.dropout(x * 3, 0.5), backend=morok, fullgraph=True)
    x = torch.randn(200, requires_grad=True)
    out = compiled(x)
    out.sum().backward()
    assert torch.equal(x.grad != 0, out != 0)


def unknown(x: Any) -> Any:
    return torch.linalg.eigvals(x).real + 1


def test_what_morok_cannot_do_is_said_once_and_done_by_torch() -> None:
    x = torch.randn(3, 3)
    expected = unknown(x * 2)
    compiled = torch.compile(lambda x: unknown(x * 2), backend=morok, fullgraph=True)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        close(compiled(x).sort().values, expected.sort().values)
        compiled(x)
    lines = [str(w.message) for w in told if "morok leaves" in str(w.message)]
    assert any("linalg_eig" in line and "test_backend.py:" in line for line in lines)
    assert len(lines) == len(set(lines))


def test_no_fallback_is_an_error_with_the_line() -> None:
    compiled = torch.compile(unknown, backend=morok, fullgraph=True, options={"fallback": False})
    with pytest.raises(Exception, match="linalg_eig"):
        compiled(torch.randn(3, 3))


class Block(nn.Module):
    def __init__(self, channels: int = 4) -> None:
        super().__init__()
        self.a = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.b = nn.BatchNorm2d(channels)
        self.c = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.d = nn.BatchNorm2d(channels)

    def forward(self, x: Any) -> Any:
        return F.relu(x + self.d(self.c(F.relu(self.b(self.a(x))))))


class Attention(nn.Module):
    def __init__(self, width: int = 16, heads: int = 2, causal: bool = True) -> None:
        super().__init__()
        self.table = nn.Embedding(20, width)
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)
        self.heads, self.causal = heads, causal

    def forward(self, index: Any) -> Any:
        x = self.table(index)
        batch, length, width = x.shape
        parts = self.qkv(self.first(x)).chunk(3, -1)
        q, k, v = (p.view(batch, length, self.heads, -1).transpose(1, 2) for p in parts)
        seen = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        x = x + self.out(seen.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(F.gelu(self.up(self.second(x))))


@pytest.mark.slow
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_a_block_of_a_residual_network(layout: Any) -> None:
    x = torch.randn(2, 4, 6, 6).to(memory_format=layout)
    alike(Block().eval(), x)
    trains(Block(), x, tolerance=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize("causal", [True, False])
def test_a_block_of_a_transformer(causal: bool) -> None:
    index = torch.randint(0, 20, (2, 7))
    alike(Attention(causal=causal).eval(), index)
    trains(Attention(causal=causal), index)


@pytest.mark.slow
def test_bfloat16_autocast() -> None:
    model = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.LayerNorm(32), nn.Linear(32, 4))
    x = torch.randn(8, 16)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        alike(model, x, tolerance=2e-2)


@pytest.mark.slow
@pytest.mark.parametrize("shapes", [[(3, n) for n in range(1, 21)], [(n, 5) for n in range(1, 9)]])
def test_sizes_that_change_compile_twice(shapes: list[tuple[int, int]]) -> None:
    """Lengths, and batches: those of 1 are a graph of their own in torch, all others one."""
    count = 0

    def counted(gm: Any, inputs: Any, **kwargs: Any) -> Any:
        nonlocal count
        count += 1
        return morok(gm, inputs, **kwargs)

    compiled = torch.compile(lambda x: (x * 2).softmax(-1), backend=counted, fullgraph=True)
    for shape in shapes:
        x = torch.randn(*shape)
        close(compiled(x), (x * 2).softmax(-1))
    assert count <= 2


def test_parts_of_a_tensor_share_its_memory() -> None:
    def function(x: Any) -> Any:
        return (*x.split(2), *(x * 2).unbind(1))

    x = torch.randn(4, 3, requires_grad=True)
    compiled = torch.compile(function, backend=morok, fullgraph=True, options={"fallback": False})
    found, right = compiled(x), function(x)
    for a, b in zip(found, right, strict=True):
        close(a, b)
    memory = [r.untyped_storage().data_ptr() for r in found]
    assert memory[:2] == [x.untyped_storage().data_ptr()] * 2
    assert len(set(memory[2:])) == 1  # views of one product


def varying(x: Any, w: Any) -> Any:
    wide = F.gelu(x @ w)
    return wide.sum(1), x.transpose(0, 1) + 1, x.softmax(1), torch.cat((x, x * 2), 1), x.shape[1] * 2


def test_a_result_shows_a_later_one() -> None:
    """Also one that is the copy of another: written to, the two that share memory change, and no other."""

    def parts(x: Any) -> Any:
        y = x * 2
        first, second = y.clone(), y.clone()
        return second.view(-1)[1:], first, second

    x = torch.randn(4, 4)
    shown, first, second = torch.compile(parts, backend=morok, fullgraph=True)(x)
    close(shown, (x * 2).view(-1)[1:])
    shown.zero_()
    assert second.view(-1)[1:].eq(0).all() and first.equal(x * 2)


def test_sizes_that_vary_have_one_plan_for_a_range() -> None:
    w = torch.randn(4, 5)
    with watching() as graphs:
        compiled = torch.compile(varying, backend=morok, fullgraph=True, options={"fallback": False})
        for length in (2, 3, 5, 4, 16):
            x = torch.randn(2, length, 4)
            for a, b in zip(compiled(x, w), varying(x, w), strict=True):
                close(a, b)
    assert len(graphs) == 2  # torch compiles the second length as one that varies
    assert [len(graph.plans) for graph in graphs] == [1, 1]


def test_what_was_tried_is_what_runs(monkeypatch: Any) -> None:
    """A graph is lowered once: node by node, while it is tried."""
    from morok.torch import lower

    seen: list[Any] = []
    plain = lower._compute
    monkeypatch.setattr(lower, "_compute", lambda node, *rest: (seen.append(node), plain(node, *rest))[1])
    alike(lambda x: (x * 2 + 1).sum(), torch.randn(3, 4))
    assert len(seen) == len(set(seen)) == 3


def test_what_a_result_holds_is_neither_copied_nor_computed_again() -> None:
    """Gradients of embeddings are summed up in torch's memory; who else reads a result reads it there."""
    table, places = nn.Embedding(300, 8), nn.Embedding(5, 8)
    index = torch.randint(0, 300, (4, 5))
    with watching() as graphs:
        compiled = torch.compile(
            lambda i: (table(i) + places(torch.arange(5))).square().sum(),
            backend=morok,
            options={"fallback": False},
        )
        compiled(index).backward()
    forward, backward = graphs
    (plan,) = backward.plans
    assert plan.memory.arena_bytes < 300 * 8 * 4, "sums elsewhere, and a copy of them"
    assert plan.memory.output_bytes == (300 + 5) * 8 * 4
    (plan,) = forward.plans
    assert len(plan) == 3 and plan.memory.arena_bytes == 0  # rows of both, the sum; places are made again
    right = torch.zeros(300, 8).index_add(
        0, index.flatten(), 2 * (table(index) + places.weight).detach().flatten(0, 1)
    )
    torch.testing.assert_close(table.weight.grad, right, rtol=1e-5, atol=1e-5)


def test_what_a_compilation_leaves_is_old() -> None:
    """No walk of Python's collector over all of torch's objects in the middle of a first call."""
    torch._dynamo.reset()
    made = []

    def kept(gm: Any, inputs: Any) -> Any:
        made.append(morok(gm, inputs))
        made.extend(gc.get_count())
        return made[0]

    torch.compile(lambda x: x * 2 + 1, backend=kept)(torch.ones(3))
    _, young, middle, _ = made
    assert young < 100 and middle == 0
