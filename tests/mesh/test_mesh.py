"""Meshes, layouts, placements: the API, and what devices compute and send."""

import math

import numpy as np
import pytest

import morok
from morok import P, Tensor, jit, knobs, nn
from morok.dtype import ALL_SCALARS
from morok.errors import MeshError
from morok.ir.layout import Layout, layout_of, mesh_of
from morok.ir.ops import COLLECTIVES, Ops

import morok.nn.losses  # isort: skip


@pytest.fixture(autouse=True)
def _interpreted():
    with knobs.override(DEVICE="PYTHON"):
        yield


def _values(*shape: int) -> np.ndarray:
    return np.random.default_rng(math.prod(shape)).standard_normal(shape).astype(np.float32)


def _names(plan: object) -> list[str]:
    return [k.name for k in plan.kernels if k.ast.op in COLLECTIVES]  # type: ignore[attr-defined]


# --- meshes and layouts


def test_names_are_read_back() -> None:
    mesh = morok.mesh((4, 2), ("data", "model"))
    layout = Layout(mesh, (64, 7, 3), (("data",), (), ("model",)))
    assert mesh_of(layout.name) == mesh
    assert layout_of(layout.name) == layout
    assert layout_of(mesh.name) is None
    assert layout_of(Layout(mesh, (), ()).name) == Layout(mesh, (), ())


def test_ranks_count_along_the_last_axis() -> None:
    mesh = morok.mesh((2, 3), ("a", "b"))
    assert [mesh.coordinates(r) for r in (0, 2, 3)] == [{"a": 0, "b": 0}, {"a": 0, "b": 2}, {"a": 1, "b": 0}]
    assert mesh.groups(("a",)) == ((0, 3), (1, 4), (2, 5))
    assert mesh.groups(("b",)) == ((0, 1, 2), (3, 4, 5))
    assert mesh.groups(("a", "b")) == ((0, 1, 2, 3, 4, 5),)
    assert mesh.groups(("b", "a")) == ((0, 3, 1, 4, 2, 5),)


def test_uneven_cuts_cover_everything_once() -> None:
    for size in range(1, 12):
        layout = Layout(morok.mesh(4, "data"), (size,), (("data",),))
        found = [n for rank in range(4) for n in range(size)[layout.box(rank)[0]]]
        assert found == list(range(size))
        assert layout.local_shape == (-(-size // 4),)


def test_what_cannot_be() -> None:
    mesh = morok.mesh(2, "data")
    x = Tensor(_values(4, 4))
    with pytest.raises(MeshError, match="no axis 'model'; it has data"):
        x.shard(mesh, P("model"))
    with pytest.raises(MeshError, match="cuts two axes along 'data'"):
        x.shard(mesh, P("data", "data"))
    with pytest.raises(MeshError, match="names 3 axes, but the tensor has 2"):
        x.shard(mesh, P(None, None, "data"))
    with pytest.raises(MeshError, match=r"cut along one of the mesh, several or none \(None\), not 3"):
        x.shard(mesh, P(3))  # type: ignore[arg-type]
    with pytest.raises(MeshError, match=r'a placement is a P, as morok.P\("data"\), not 3'):
        x.shard(mesh, 3)  # type: ignore[arg-type]
    for sizes in (2.5, "2", 0):
        with pytest.raises(MeshError, match="an axis of a mesh is a name and how many devices it has"):
            morok.mesh(sizes, "data")  # type: ignore[arg-type]
    with pytest.raises(MeshError, match="no layer of the model has a name that the plan knows"):
        morok.distributed.tensor_parallel(nn.Linear(4, 4), mesh, axis="data")
    with pytest.raises(MeshError, match="no axis 'model'; it has data"):
        morok.distributed.tensor_parallel(nn.Linear(4, 4), mesh)
    with pytest.raises(MeshError, match="a name of its own for each axis"):
        morok.mesh((2, 2), ("a", "a"))
    with pytest.raises(MeshError, match="on two meshes"):
        (x.shard(mesh, P("data")) + x.shard(morok.mesh(3, "data"), P("data"))).realize()


def test_virtual_devices_are_counted() -> None:
    with knobs.override(VIRTUAL_DEVICES=4), pytest.raises(MeshError, match="MOROK_VIRTUAL_DEVICES says 4"):
        Tensor(_values(4)).shard(morok.mesh(5, "only_here"), P("only_here")).realize()


# --- placements and what they cost


def test_placement_and_back() -> None:
    mesh = morok.mesh((2, 2), ("data", "model"))
    a = _values(5, 6)
    x = Tensor(a).shard(mesh, P("data", "model"))
    assert str(x.placement) == "P('data', 'model') on data 2 × model 2"
    assert Tensor(a).placement is None
    assert x.shape == (5, 6)
    np.testing.assert_array_equal(x.numpy(), a)
    assert x.unshard().device == "PYTHON"
    assert x.unshard().placement is None
    assert (x.sum(1)).placement == Layout(mesh, (5,), (("data",),))


def test_products_column_and_row() -> None:
    """Tensor parallelism: no collective between the two products, one sum at the end."""
    mesh = morok.mesh(4, "model")
    x = Tensor(_values(8, 16)).shard(mesh)
    first = Tensor(_values(16, 32)).shard(mesh, P(None, "model")).realize()
    last = Tensor(_values(32, 16)).shard(mesh, P("model", None)).realize()
    h = (x @ first).relu()
    assert h.placement == Layout(mesh, (8, 32), ((), ("model",)))
    plan = (h @ last).plan()
    assert _names(plan) == ["allreduce_add_model_128"]
    assert plan.wire_bytes == 2 * 3 * (8 * 16 * 4) // 4
    want = np.maximum(_values(8, 16) @ _values(16, 32), 0) @ _values(32, 16)
    np.testing.assert_allclose((h @ last).numpy(), want, rtol=1e-4, atol=1e-4)


def test_each_device_does_its_part() -> None:
    """Nothing is computed whole and sliced: operations and bytes are a quarter of those of one device."""
    mesh = morok.mesh(4, "data")
    a, b = _values(64, 32), _values(64, 32)
    plain = (Tensor(a) * Tensor(b)).exp().sum(1).plan()
    x, y = (Tensor(v).shard(mesh, P("data")).realize() for v in (a, b))
    sharded = (x * y).exp().sum(1).plan()
    assert not _names(sharded)
    assert sum(k.ops for k in sharded.kernels) * 4 == sum(k.ops for k in plain.kernels)
    assert sharded.memory.output_bytes * 4 == plain.memory.output_bytes


def test_resharding_is_one_collective() -> None:
    mesh = morok.mesh(4, "data")
    x = Tensor(_values(8, 12)).shard(mesh, P("data")).realize()
    local = 8 * 12 * 4 // 4
    moved = x.shard(mesh, P(None, "data"))
    assert _names(moved.plan()) == ["alltoall_data_24"]
    assert moved.plan().wire_bytes == 3 * local // 4
    gathered = x.shard(mesh)
    assert _names(gathered.plan()) == ["allgather_data_96"]
    assert gathered.plan().wire_bytes == 3 * local
    cut = gathered.realize().shard(mesh, P("data"))
    assert _names(cut.plan()) == []
    for y in (moved, gathered, cut):
        np.testing.assert_array_equal(y.numpy(), _values(8, 12))


def test_a_sum_that_is_cut_is_a_reduce_scatter() -> None:
    mesh = morok.mesh(2, "data")
    x = Tensor(_values(4, 6)).shard(mesh, P("data")).realize()
    y = x.sum(0).shard(mesh, P("data"))
    assert _names(y.plan()) == ["reducescatter_add_data_3"]
    np.testing.assert_allclose(y.numpy(), _values(4, 6).sum(0), rtol=1e-6)


def test_what_does_not_fit_is_said() -> None:
    mesh = morok.mesh(2, "data")
    x = Tensor(_values(6, 5)).shard(mesh, P("data")).realize()
    plan = (x[1:4] + 1).plan()
    assert any("axis 0 of (6, 5) is cut along data, shrink does not fit it: gathered first" in n
               for n in plan.schedule.notes)  # fmt: skip
    np.testing.assert_array_equal(x[1:4].numpy(), _values(6, 5)[1:4])


@pytest.mark.parametrize("how", ["max", "min"])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_extremes_with_nan_and_infinities(how: str, dtype: str) -> None:
    mesh = morok.mesh(3, "data")
    a = np.array([[1, -2, 3, -0.5], [np.inf, 2, -np.inf, -4], [5, np.nan, 1, -0.25], [-1, 0, np.inf, -8]])
    x = Tensor(a).cast(dtype)
    y = getattr(x.shard(mesh, P("data")).realize(), how)(0)
    assert y.plan().wire_bytes > 0
    with np.errstate(invalid="ignore"):
        np.testing.assert_array_equal(y.cast("float64").numpy(), getattr(a, how)(0))


@pytest.mark.parametrize("dtype", ["bool", "int8", "uint8", "int16", "int32", "int64", "uint32"])
@pytest.mark.parametrize("how", ["sum", "max", "min", "prod"])
def test_integers_of_all_widths(how: str, dtype: str) -> None:
    mesh = morok.mesh(2, "data")
    a = np.random.default_rng(1).integers(0, 2 if dtype == "bool" else 100, (5, 3))
    x = Tensor(a).cast(dtype)
    y = getattr(x.shard(mesh, P("data")).realize(), how)(0)
    np.testing.assert_array_equal(y.numpy(), getattr(x, how)(0).numpy())


@pytest.mark.parametrize("how", ["sum", "max", "min", "prod", "any", "all"])
def test_engines_add_up_what_they_have_types_for(how: str) -> None:
    """Whatever a tensor is of, what goes to NCCL or MPI as a sum or an extreme has 32 or 64 bits."""
    from morok.device.mesh.nccl import _OPS, _TYPES

    mesh = morok.mesh(2, "data")
    for dtype in (dtype for dtype in ALL_SCALARS if not dtype.is_index):
        x = Tensor(np.ones((4, 3))).cast(dtype).shard(mesh, P("data"))
        for y in (getattr(x, how)(0), getattr(x, how)(0).cast("float32").shard(mesh, P("data"))):
            for kernel in y.plan().kernels:
                if kernel.ast.op in (Ops.ALLREDUCE, Ops.REDUCE_SCATTER):
                    assert kernel.ast.dtype in _TYPES and kernel.ast.arg in _OPS, (dtype, kernel.name)


# --- what follows


def test_gradients_and_a_jitted_step_follow() -> None:
    """Data and tensor parallel at once; losses are those of one device."""
    mesh = morok.mesh((2, 2), ("data", "model"))
    target = np.random.default_rng(3).integers(0, 5, 8)

    def losses(place: object) -> list[float]:
        put = place  # type: ignore[assignment]
        x = put(Tensor(_values(8, 6)), P("data"))  # type: ignore[operator]
        t = put(Tensor(target), P("data"))  # type: ignore[operator]
        w = put(Tensor(_values(6, 8)), P(None, "model")).requires_grad_()  # type: ignore[operator]
        v = put(Tensor(_values(8, 5)), P("model")).requires_grad_()  # type: ignore[operator]
        optimizer = nn.Adam([w, v], lr=0.05)

        @jit
        def step(x: Tensor, t: Tensor) -> Tensor:
            optimizer.zero_grad()
            loss = nn.losses.cross_entropy((x @ w).relu() @ v, t)
            loss.backward()
            optimizer.step()
            return loss

        found = [step(x, t).item() for _ in range(4)]
        if w.placement is not None:
            assert w.placement.spec == ((), ("model",))
        return found

    plain = losses(lambda x, spec: x.realize())
    sharded = losses(lambda x, spec: x.shard(mesh, spec).realize())
    np.testing.assert_allclose(sharded, plain, rtol=1e-5)


def test_states_of_an_optimiser_lie_like_their_parameters() -> None:
    mesh = morok.mesh(2, "data")
    w = Tensor(_values(6, 4)).shard(mesh, P("data")).realize().requires_grad_()
    optimizer = nn.Adam([w], lr=0.1)
    layouts = {t.placement.spec for t in optimizer.state_dict().values() if getattr(t, "shape", 0) == (6, 4)}  # type: ignore[union-attr]
    assert layouts == {(("data",), ())}


def test_random_numbers_are_those_of_one_device() -> None:
    mesh = morok.mesh(4, "data")
    zeros = Tensor(np.zeros((6, 10), np.float32))
    Tensor.manual_seed(7)
    plain = (zeros + Tensor.rand(6, 10)).numpy()
    for spec in (P("data"), P(None, "data")):
        Tensor.manual_seed(7)
        found = (zeros.shard(mesh, spec).realize() + Tensor.rand(6, 10)).numpy()
        np.testing.assert_array_equal(found, plain)


def test_values_of_a_table_in_parts_by_plain_positions() -> None:
    """Rows of memory on a mesh that gradients are wanted for, where plain memory is read first."""
    mesh = morok.mesh(4, "model")
    table = _values(13, 6)
    weight = Tensor(table).shard(mesh, P("model")).realize().requires_grad_()
    at = np.array([[1, 12], [3, 3]])
    rows = weight[Tensor(at)]
    assert rows.unshard().placement is None
    np.testing.assert_array_equal(rows.numpy(), table[at])
    (rows**2).sum().backward()
    want = np.zeros_like(table)
    np.add.at(want, at, 2 * table[at])
    assert weight.grad is not None
    np.testing.assert_allclose(weight.grad.numpy(), want, rtol=1e-6)


def test_a_train_step_draws_on_a_mesh() -> None:
    """Random numbers of a compiled step are those of one device, wherever its first parameter lies."""
    x = _values(6, 4)

    def losses(mesh: object) -> list[float]:
        Tensor.manual_seed(3)
        model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 2))
        batch = Tensor(x)
        if mesh is not None:
            morok.distributed.fully_sharded(model, mesh, layers=model.layers)  # type: ignore[arg-type]
            batch = morok.distributed.shard_batch(mesh, batch)  # type: ignore[arg-type]
        step = nn.TrainStep(model, nn.SGD(nn.parameters(model), lr=0.1), lambda x: (model(x) ** 2).mean())
        return [step(batch).item() for _ in range(3)]

    np.testing.assert_allclose(losses(morok.mesh(2, "data")), losses(None), rtol=1e-5)


def test_writes_to_parts() -> None:
    mesh = morok.mesh(2, "data")
    for key in (np.s_[1:3], np.s_[:, 1:3], np.s_[::2, 0], np.s_[4]):
        want = _values(6, 4).copy()
        x = Tensor(want).shard(mesh, P("data")).realize()
        before = x * 2
        want2 = want * 2
        want[key] = 7
        x[key] = 7
        np.testing.assert_array_equal(x.numpy(), want)
        np.testing.assert_array_equal(before.numpy(), want2)
        assert x.placement is not None and x.placement.spec == (("data",), ())


def test_positions_are_checked_on_every_rank() -> None:
    mesh = morok.mesh(2, "data")
    table = Tensor(_values(5, 3)).shard(mesh)
    good = (
        Tensor(np.array([0, 4, 2])).shard(mesh, P("data")).realize()
    )  # uneven: nobody's element is no fault
    np.testing.assert_array_equal(table[good - 0].numpy(), _values(5, 3)[[0, 4, 2]])
    np.testing.assert_array_equal(table[good - 5].numpy(), _values(5, 3)[[-5, -1, -3]])
    with pytest.raises(IndexError):
        table[good + 3].numpy()


def test_collectives_name_their_devices() -> None:
    mesh = morok.mesh((2, 3), ("a", "b"))
    x = Tensor(_values(4, 6)).shard(mesh, P("a", "b")).realize()
    (kernel,) = [k for k in x.sum().plan().kernels if k.ast.op is Ops.ALLREDUCE]
    assert [r.src[0].arg for r in kernel.ast.src[1:]] == [2, 3]
    np.testing.assert_allclose(x.sum().item(), _values(4, 6).sum(), rtol=1e-5)
