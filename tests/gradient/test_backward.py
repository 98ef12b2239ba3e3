"""`backward`, leaves, histories, `no_grad`, functional gradients, custom ones, errors."""

import gc
import weakref
from typing import Any

import numpy as np
import pytest

from morok import MorokError, Tensor, Variable, checkpoint, custom_gradient, grad, nn, no_grad, value_and_grad
from morok.errors import DTypeError, ShapeError
from morok.tensor.transforms import tensors_in, with_tensors
from tests.gradient.check import check, sample


def test_gradients_add_up() -> None:
    x = Tensor([1.0, 2.0], requires_grad=True)
    (x * x).sum().backward()
    (x * 3).sum().backward()
    assert x.grad is not None and x.grad.tolist() == [5.0, 7.0]
    x.zero_grad()
    assert x.grad is None


def test_equal_constants_are_different_parameters() -> None:
    a, b = Tensor.zeros(2).requires_grad_(), Tensor.zeros(2).requires_grad_()
    (a * 2 + b * 3).sum().backward()
    assert a.grad.tolist() == [2.0, 2.0] and b.grad.tolist() == [3.0, 3.0]
    assert a.tolist() == [0.0, 0.0]


@pytest.mark.parametrize("when", ["never", "leaf", "middle", "loss", "all"])
def test_realising_on_the_way_changes_nothing(when: str, device: str) -> None:
    x = Tensor([1.0, 2.0]).requires_grad_()
    if when in ("leaf", "all"):
        x.realize()
    y = (x * x).exp()
    if when in ("middle", "all"):
        y.realize()
        assert y.is_realized and y.requires_grad
    loss = (y * 2).sum()
    if when in ("loss", "all"):
        loss.item()
    loss.backward()
    np.testing.assert_allclose(x.grad.numpy(), 4 * np.array([1.0, 2.0]) * np.exp([1.0, 4.0]), rtol=1e-6)


def test_lazy_leaf_realised_after_use() -> None:
    x = Tensor.full((2,), 3.0).requires_grad_()
    y = (x * x).sum()
    x.realize()
    y.backward()
    assert x.grad.tolist() == [6.0, 6.0]


def test_descent_in_place() -> None:
    x = Tensor([4.0], requires_grad=True)
    for _ in range(3):
        x.zero_grad()
        (x * x).sum().backward()
        with no_grad():
            x -= x.grad * 0.25
        x.realize()
    assert x.item() == 0.5 and x.is_leaf and x.requires_grad


def test_history_is_let_go() -> None:
    x = Tensor([4.0], requires_grad=True)
    y = x * 2
    node = weakref.ref(y.realize()._uop)
    del y
    gc.collect()
    assert node() is None
    plain = Tensor([1.0]) * 2
    before = plain._uop
    plain.realize()
    assert plain._uop is not before  # what no gradient depends on becomes memory


def test_views_of_a_leaf() -> None:
    x = Tensor(np.arange(6, dtype=np.float32).reshape(2, 3), requires_grad=True)
    (x[0] * x[1]).sum().backward()
    assert x.grad.tolist() == [[3.0, 4.0, 5.0], [0.0, 1.0, 2.0]]


def test_detach_and_no_grad() -> None:
    x = Tensor([2.0], requires_grad=True)
    (x * x.detach()).sum().backward()
    assert x.grad.tolist() == [2.0]
    with no_grad():
        y = x * 3
        assert not y.requires_grad
    assert (x * 3).requires_grad
    with pytest.raises(MorokError, match="no tensor that requires gradients leads to this one"):
        y.sum().backward()
    assert (y * x).requires_grad


def test_stop_requiring() -> None:
    x = Tensor([2.0], requires_grad=True)
    y = x * 1
    with pytest.raises(MorokError, match="detach"):
        y.requires_grad_(False)
    x.requires_grad = False
    assert not x.requires_grad and not (x * 2).requires_grad


def test_backward_with_a_gradient_of_a_vector() -> None:
    x = Tensor([1.0, 2.0], requires_grad=True)
    (x * x).backward(Tensor([1.0, 10.0]))
    assert x.grad.tolist() == [2.0, 40.0]


def test_higher_order(device: str) -> None:
    def cube(x: Tensor) -> Tensor:
        return (x * x * x).sum()

    first = grad(cube)
    second = grad(lambda x: first(x).sum())
    third = grad(lambda x: second(x).sum())
    at = Tensor([2.0])
    assert [f(at).tolist() for f in (first, second, third)] == [[12.0], [12.0], [6.0]]
    x = Tensor([2.0], requires_grad=True)
    (x**4.0).sum().backward(create_graph=True)
    (g,) = x.grad.sum().gradient(x)
    assert g.tolist() == [48.0]


@pytest.mark.parametrize("name", ["sigmoid", "softplus", "silu", "tanh", "log1p", "sinh"])
def test_second_order_of_named_functions(name: str) -> None:
    x = np.array([-90.0, -0.5, 0.0, 0.7])[(0 if name not in ("log1p", "sinh") else 1) :]
    step = 1e-4

    def first(at: np.ndarray) -> np.ndarray:
        return grad(lambda t: getattr(t, name)().sum())(Tensor(at)).numpy().copy()

    second = grad(lambda t: grad(lambda u: getattr(u, name)().sum())(t).sum())(Tensor(x)).numpy()
    np.testing.assert_allclose(second, (first(x + step) - first(x - step)) / (2 * step), rtol=1e-5, atol=1e-6)


PLACES = np.array([2, 0, 2, 40, 7])
CURVED = {
    "rows": lambda x: (x[Tensor(PLACES)] ** 3).sum(),
    "few rows": lambda x: (x[:4][Tensor(PLACES[:3])] ** 3).sum(),
    "gather": lambda x: (x.gather(0, Tensor(PLACES[:, None])) ** 3).sum(),
    "scatter": lambda x: (x.scatter_add(0, Tensor(PLACES[:, None]), x[:5] * x[:5]) ** 3).sum(),
    "replaced": lambda x: (x.index_copy(0, Tensor(PLACES), x[:5] * x[5:10]) ** 3).sum(),
    "factors": lambda x: x.scatter_reduce(0, Tensor(PLACES[:, None]), x[:5], "prod").exp().sum(),
    "order": lambda x: (x.sort(0).values[:3] ** 3).sum(),
    "running": lambda x: (x.reshape(-1).cumsum(0) ** 3).sum(),
    "median": lambda x: x.median() ** 3,
    "products": lambda x: x.einsum("ij,ij,kj->k", x, x).exp().sum(),
    "solved": lambda x: (x[:2].solve(x[2:4]) ** 2).sum(),
}


@pytest.mark.parametrize("name", CURVED)
def test_second_order_of_places_order_and_equations(name: str) -> None:
    slope = grad(CURVED[name])
    check(lambda x: slope(x) * 1.0, sample(41, 2, seed=3) + np.eye(41, 2) * 2.0)


def test_structures_of_arguments() -> None:
    params = {"w": Tensor([2.0]), "layers": [Tensor([3.0]), (Tensor([1.0]), None)]}

    def loss(p: dict, x: Tensor) -> tuple[Tensor, Tensor]:
        y = p["w"] * p["layers"][0] * x
        return y.sum(), y + 1

    (value, extra), slopes = value_and_grad(loss, has_aux=True)(params, Tensor([5.0]))
    assert value.item() == 30.0 and extra.tolist() == [31.0]
    assert slopes["w"].tolist() == [15.0] and slopes["layers"][0].tolist() == [10.0]
    assert slopes["layers"][1][0].tolist() == [0.0] and slopes["layers"][1][1] is None
    a, b = grad(lambda x, y: (x * y).sum(), argnums=(0, 1))(Tensor([2.0]), Tensor([3.0]))
    assert a.tolist() == [3.0] and b.tolist() == [2.0]
    same = Tensor([2.0])
    a, b = grad(lambda x, y: (x * x * y).sum(), argnums=(0, 1))(same, same)
    assert a.tolist() == [8.0] and b.tolist() == [4.0]
    assert with_tensors(params, tensors_in(params)) == params


def test_no_mark_is_left_behind() -> None:
    value, slope = value_and_grad(lambda x: (x * x).sum())(Tensor([3.0]))
    from morok.ir.node import toposort
    from morok.ir.ops import Ops

    assert not [n for n in toposort(value.uop, slope.uop) if n.op is Ops.IDENTITY]


@pytest.mark.parametrize("make", [lambda x: x, lambda x: x * 1, lambda x: Tensor.ones(2)])
def test_a_function_may_look_at_its_values(make: Any) -> None:
    """What was computed on the way is in memory, and still has its past."""

    def f(t: Tensor) -> Tensor:
        t.realize()
        assert t.numpy().tolist() == given.tolist()
        tripled = (t * 3).realize()
        assert tripled.requires_grad
        return (t * t).sum() * tripled.sum()

    given = make(Tensor([3.0, 4.0]))
    x = given.numpy().copy()
    value, slope = value_and_grad(f)(given)
    assert value.item() == (x * x).sum() * (3 * x).sum()
    np.testing.assert_array_equal(slope.numpy(), 2 * x * (3 * x).sum() + 3 * (x * x).sum())
    assert not given.requires_grad and not value.requires_grad and not slope.requires_grad


def test_no_grad_inside_a_differentiated_function() -> None:
    def f(t: Tensor) -> Tensor:
        with no_grad():
            factor = t * 2
        return (t * factor).sum()

    assert grad(f)(Tensor([3.0])).tolist() == [6.0]
    with no_grad():  # around it, it does not count
        assert grad(f)(Tensor([3.0])).tolist() == [6.0]
        leaf = Tensor([3.0], requires_grad=True)
        assert not grad(lambda t: (t * t * leaf).sum())(leaf).requires_grad


def test_custom_gradient() -> None:
    @custom_gradient(lambda g, result, x, y: (g * y * 100, None))
    def scaled(x: Tensor, y: Tensor) -> Tensor:
        return x * y

    x = Tensor([2.0], requires_grad=True)
    y = Tensor([3.0], requires_grad=True)
    z = scaled(x, y)
    assert z.tolist() == [6.0]
    (z + y).sum().backward()
    assert x.grad.tolist() == [300.0] and y.grad.tolist() == [1.0]

    @custom_gradient(lambda g, result, x: Tensor([1.0, 2.0]))
    def wrong(x: Tensor) -> Tensor:
        return x * 1

    with pytest.raises(ShapeError, match=r"shape \(1,\) is a \(2,\)"):
        wrong(x).sum().backward()
    with pytest.raises(DTypeError, match="takes tensors, not a int"):
        wrong(3)  # type: ignore[arg-type]


def _deep(kept: bool) -> tuple[Tensor, list[Tensor]]:
    """A deep model whose inner values are kept for the gradient, or computed again."""
    rng = np.random.default_rng(0)
    weights = [Tensor(rng.standard_normal((32, 32)) * 0.2, requires_grad=True) for _ in range(12)]
    h = Tensor(rng.standard_normal((64, 32)))
    for i in range(0, 12, 4):

        def block(x: Tensor, first: int = i) -> Tensor:
            for w in weights[first : first + 4]:
                x = (x @ w).tanh()
            return x

        h = block(h) if kept else checkpoint(block, h)
    loss = (h * h).sum()
    loss.backward()
    return loss, [w.grad for w in weights]


def test_checkpoints_need_less_memory_and_change_nothing() -> None:
    results, arenas = [], []
    for kept in (True, False):
        loss, gradients = _deep(kept)
        plan = loss.prepare(*gradients)
        arenas.append(plan.memory.arena_bytes)
        plan.run()
        results.append([t.numpy().copy() for t in (loss, *gradients)])
    assert arenas[1] < 0.7 * arenas[0]
    for a, b in zip(*results, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-12)


def test_checkpoints_can_be_differentiated_twice() -> None:
    def slope(x: Tensor) -> Tensor:
        return grad(lambda t: checkpoint(lambda u: (u * u).exp(), t).sum())(x)

    at = 0.7
    second = grad(lambda x: slope(x).sum())(Tensor(np.array([at])))
    np.testing.assert_allclose(second.numpy(), [(2 + 4 * at * at) * np.exp(at * at)], rtol=1e-6)
    layer = nn.Linear(2, 2)
    checkpoint(layer, Tensor.ones(1, 2)).sum().backward()
    assert layer.bias.grad.tolist() == [1.0, 1.0]


def test_assignment_in_between() -> None:
    x = Tensor([1.0, 2.0, 3.0], requires_grad=True)
    y = Tensor.zeros(3)
    y[1:] = x[:2] * 2
    y[2] = 7.0
    (y * x).sum().backward()
    assert x.grad.tolist() == [4.0, 2.0, 7.0]


def test_symbolic_sizes() -> None:
    n = Variable("n", 1, 8).bind(3)
    x = Tensor(np.arange(8, dtype=np.float32), requires_grad=True)
    (x[:n] * x[:n]).sum().backward()
    assert x.grad.tolist() == [0.0, 2.0, 4.0, 0.0, 0.0, 0.0, 0.0, 0.0]


def test_long_chains_need_no_recursion() -> None:
    x = Tensor([1.0], requires_grad=True)
    y = x
    for _ in range(5000):
        y = y + x
    loss = y.sum()
    loss.backward()
    assert x.grad is not None and x.grad.shape == (1,)


def test_backward_kernels_name_the_forward_line() -> None:
    x = Tensor(np.ones((4, 4), dtype=np.float32), requires_grad=True)
    y = (x.exp() @ x).sum()
    y.backward()
    places = [str(kernel) for kernel in x.grad.prepare().kernels]
    assert places and all("test_backward.py" in place for place in places)


def test_errors_are_sentences() -> None:
    x = Tensor([1.0, 2.0], requires_grad=True)
    with pytest.raises(
        ShapeError, match=r"shape \(2,\) is not one number's; reduce it with sum\(\) or mean\(\)"
    ):
        (x * x).backward()
    with pytest.raises(ShapeError, match=r"needs a gradient of that shape, not \(3,\)"):
        (x * x).backward(Tensor([1.0, 2.0, 3.0]))
    with pytest.raises(DTypeError, match="only floats have gradients, not int64; cast the tensor first"):
        Tensor([1, 2], requires_grad=True)
    with pytest.raises(DTypeError, match="only floats have gradients, and this is a tensor of int64"):
        Tensor([1, 2]).sum().backward()
    with pytest.raises(MorokError, match=r"does not depend on target 0 of shape \(2,\)"):
        (x * x).sum().gradient(Tensor([5.0, 6.0]))
    with pytest.raises(DTypeError, match="a tensor of int64 has no gradient"):
        (x * x).sum().gradient(Tensor([5, 6]))
    with pytest.raises(ShapeError, match="has that shape, not"):
        x.grad = Tensor([1.0])
    with pytest.raises(MorokError, match="returns a tensor, not a float"):
        grad(lambda t: 3.0)(x)
    with pytest.raises(MorokError, match="there is no tensor among the arguments"):
        grad(lambda t: x.sum())(3.0)
