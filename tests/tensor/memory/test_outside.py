"""Memory that somebody outside can write: arrays that tensors share, and those that they give."""

import numpy as np
import pytest

from morok import Tensor
from tests.devices import needs_host_memory

SHOWN = {
    "every second": lambda x: x[::2],
    "steps that do not divide": lambda x: x[::3],
    "turned round": lambda x: x[::-1],
    "part": lambda x: x[1:3],
    "transposed": lambda x: x.reshape(2, 2).T,
}


@needs_host_memory
@pytest.mark.parametrize("name", SHOWN)
@pytest.mark.parametrize("lent", [False, True])
def test_views_show_what_somebody_outside_writes(name: str, lent: bool) -> None:
    """Also after they have been looked at, and through arrays that tensors give."""
    array = np.arange(4, dtype=np.float32)
    x = Tensor(array.copy()) if lent else Tensor.from_numpy(array)
    seen = x.numpy() if lent else array
    view = SHOWN[name](x)
    for value in (9.0, 8.0):
        np.testing.assert_array_equal(view.numpy(), SHOWN[name](seen))
        seen[:] = value + np.arange(4)
    np.testing.assert_array_equal((view + 1).numpy(), SHOWN[name](seen) + 1)


@needs_host_memory
def test_later_lines_see_what_somebody_outside_wrote() -> None:
    """The same expression as before is another value then."""
    array = np.arange(4, dtype=np.float32)
    x = Tensor.from_numpy(array)
    first = x * 2
    kept = first + 1  # holds the expression
    first.realize()
    array[:] = 7
    assert (x * 2).tolist() == [14.0] * 4
    assert first.tolist() == [0.0, 2.0, 4.0, 6.0]
    assert len(kept.tolist()) == 4


@needs_host_memory
def test_a_forward_pass_sees_weights_that_were_written_as_arrays() -> None:
    weight = Tensor(np.ones(3, np.float32)).requires_grad_()
    before = (weight * 2).sum()
    assert before.item() == 6
    weight.numpy()[:] = 5
    after = (weight * 2).sum()
    assert after.item() == 30
    after.backward()
    assert weight.grad is not None and weight.grad.tolist() == [2.0] * 3
    del before


@needs_host_memory
@pytest.mark.parametrize("lent", [False, True])
def test_values_are_not_where_somebody_outside_writes(lent: bool) -> None:
    """Values that need no kernel: joined alone, put in another order, repeated."""
    array = np.arange(4, dtype=np.float32)
    x = Tensor(array.copy()) if lent else Tensor.from_numpy(array)
    values = [Tensor.cat(x), x.reshape(2, 2).T.reshape(4), x.expand(2, 4)]
    want = [v.realize().tolist() for v in values]
    (x.numpy() if lent else array)[:] = 9
    assert [v.tolist() for v in values] == want
    assert x.tolist() == [9.0] * 4


@needs_host_memory
def test_an_array_of_a_value_is_the_value() -> None:
    """Of one that lies in another tensor's memory too, and what is written there stays there."""
    x = Tensor([1.0, 2.0]).realize()
    joined = Tensor.cat(x).realize()
    joined.numpy()[:] = 5
    assert joined.tolist() == [5.0, 5.0] and x.tolist() == [1.0, 2.0]


@needs_host_memory
def test_a_scalar_shares_memory() -> None:
    array = np.array(2, dtype=np.float32)
    x = Tensor.from_numpy(array)
    x.assign(5)
    assert array == 5
    array[...] = 6
    assert x.item() == 6


def test_gradients_reach_memory_of_the_outside_that_was_read_before() -> None:
    """Its name is another one then: the graph that is differentiated has the old one."""
    x = Tensor.from_numpy(np.array([1.0, 2.0], np.float32)).requires_grad_()
    y = x * x
    np.testing.assert_array_equal(y.numpy(), [1.0, 4.0])
    np.testing.assert_array_equal(x.numpy(), [1.0, 2.0])
    (g,) = y.sum().gradient(x, allow_unused=True)
    assert g.tolist() == [2.0, 4.0]
    y.sum().backward()
    assert x.grad is not None and x.grad.tolist() == [2.0, 4.0]


EQUAL = {
    "reads no memory": lambda x: Tensor.arange(3) + 1,
    "reads memory": lambda x: x * 2,
    "ones of a gradient": lambda x: Tensor.ones(3) * 1 + 2,
    "a sum": lambda x: x.sum(),
    "joined": lambda x: Tensor.cat(x * 2, x),
}


@needs_host_memory
@pytest.mark.parametrize("name", EQUAL)
def test_what_is_written_to_an_array_is_no_equal_value(name: str) -> None:
    """A graph holds the value whose array is written; whoever computes the same later has the value."""
    x = Tensor([1.0, 2.0, 3.0]).realize()
    first = EQUAL[name](x)
    assert not first.is_realized
    want = EQUAL[name](Tensor(x.tolist())).tolist()
    kept = first * 3  # a graph that is not computed yet, from what the line had
    array = first.realize().numpy()
    array[...] = 100
    assert EQUAL[name](x).tolist() == want
    assert kept.tolist() == (np.array(want) * 3).tolist()
    assert (first * 1).tolist() == array.tolist()


@needs_host_memory
def test_memory_that_was_often_shown_is_forgotten() -> None:
    """Each of its names is held by a graph of that time; they are not forgotten one within the other."""
    x = Tensor([1.0, 2.0]).realize()
    held = []
    for number in range(1500):
        x.numpy()[0] = number
        held.append(x + 1)
    x.assign(Tensor([5.0, 6.0])).realize()
    assert x.tolist() == [5.0, 6.0]
    assert held[-1].tolist()[1] == 3.0


@needs_host_memory
@pytest.mark.parametrize("name", ["reads no memory", "reads memory"])
def test_gradients_reach_a_value_whose_array_was_looked_at(name: str) -> None:
    x = Tensor([1.0, 2.0, 3.0]).realize()
    y = EQUAL[name](x).cast("float32") * 1.5
    loss = (y * y).sum()
    y.numpy()[:] = 7
    assert loss.gradient(y)[0].shape == (3,)


PARTS = {
    **SHOWN,
    "one with steps from the end": lambda x: x[3:0:-2],
    "columns": lambda x: x.reshape(2, 2)[:, ::2],
    "one of a row": lambda x: x.reshape(2, 2)[1, :1],
    "of a view": lambda x: x.reshape(2, 2).T[::2, ::-1],
    "nothing": lambda x: x[2:2],
}


@needs_host_memory
@pytest.mark.parametrize("name", PARTS)
@pytest.mark.parametrize("shown", [False, True])
def test_the_array_of_a_view_writes_through(name: str, shown: bool) -> None:
    """NumPy says which elements; the view may have been computed before."""
    want = np.arange(4, dtype=np.float32)
    x = Tensor(want).realize()  # a copy
    view = PARTS[name](x)
    if shown:
        view.tolist()
    array = view.numpy()
    part = PARTS[name](want).copy()
    np.testing.assert_array_equal(array, part)
    for target in (array, PARTS[name](want)):
        target[...] = -1 - part
    assert x.tolist() == want.tolist() and view.tolist() == PARTS[name](want).tolist()


@needs_host_memory
def test_a_value_that_is_a_part_of_another_gives_its_own_array() -> None:
    """An int is no value of its own until it is written: it was found where the part had been computed."""
    x = Tensor.full((5, 1), 0, dtype="int32")
    part = x[1::2, ::-1]
    x.tolist()
    turned = part.T
    y = turned - turned
    part.realize()
    y.assign(turned)
    y.numpy()[:, :1] = 9
    assert y.tolist() == [[9, 0]] and part.tolist() == [[0], [0]] and x.tolist() == [[0]] * 5


@needs_host_memory
def test_a_value_inherits_the_memory_of_a_tensor_that_is_gone() -> None:
    """It lay there as somebody else's; now it is the owner, and does not part from itself."""
    x = Tensor([1.0, 2.0]).realize()
    joined = Tensor.cat(x).realize()
    joined.realize()  # once it is memory it is known to lie in that of x
    del x
    joined.numpy()[0] = 5
    assert joined.tolist() == [5.0, 2.0]


@needs_host_memory
@pytest.mark.parametrize("dtype", ["bfloat16", "float8_e5m2", "float8_e4m3fn", "bool", "int8", "float64"])
def test_arrays_of_views_have_every_type(dtype: str) -> None:
    x = Tensor([[0, 1], [1, 0], [1, 1]], dtype=dtype).realize()
    for view in (x.T, x[::2], x.permute(1, 0)[:, ::-1]):
        array = view.numpy()
        assert array.astype(np.float32).tolist() == view.cast("float32").tolist()
        array[...] = 1
    del array
    assert x.cast("float32").tolist() == [[1, 1]] * 3


@needs_host_memory
@pytest.mark.parametrize("write", ["array", "assignment"])
def test_nobody_inherits_an_array_that_is_shared(write: str) -> None:
    """A value that lay there when its tensor went is another tensor's, and has its own memory to write to."""
    array = np.arange(4, dtype=np.float32)
    shared = Tensor.from_numpy(array)
    same = Tensor.cat(shared)
    del shared
    same.realize(same.pad([(1, 1)]))
    if write == "array":
        same.numpy()[0] = 9
    else:
        same[0] = 9
    assert same.tolist() == [9, 1, 2, 3]
    assert array.tolist() == [0, 1, 2, 3]


@needs_host_memory
@pytest.mark.parametrize("use", ["read", "computed", "a view", "a view, computed along", "nothing"])
def test_an_equal_value_is_not_what_is_written_to_an_array(use: str) -> None:
    """It is found in the other's memory, whoever asks for it first, and leaves before the array is shown."""
    zeros = Tensor.zeros(4, 4)
    view = zeros.flip(0)
    other = Tensor.cat(zeros)
    other.realize(other + 2)
    held = zeros + 1 if use == "read" else (zeros + 1).realize() if use == "computed" else None
    if use.startswith("a view"):
        other.realize(view) if "along" in use else view.realize()
    other.numpy()[:, 0] = 4
    assert zeros.tolist() == [[0.0] * 4] * 4 and view.tolist() == [[0.0] * 4] * 4
    assert other.tolist() == [[4.0, 0.0, 0.0, 0.0]] * 4
    assert held is None or held.tolist() == [[1.0] * 4] * 4
