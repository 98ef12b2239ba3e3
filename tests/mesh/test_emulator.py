"""Several ranks by the reference engine on emulated GPUs: what runs there but for NCCL itself."""

from collections.abc import Callable, Iterator

import numpy as np
import pytest

import morok
from morok import P, Tensor, jit, knobs, nn
from morok import distributed as dist
from morok.device.registry import get_device
from morok.ir.ops import COLLECTIVES, Ops
from tests.mesh import programs


@pytest.fixture(autouse=True)
def _emulated() -> Iterator[None]:
    with knobs.override(DEVICE="EMULATOR", VIRTUAL_DEVICES=3):
        yield


def _values(*shape: int) -> np.ndarray:
    return np.random.default_rng(7).standard_normal(shape).astype(np.float32)


CALLS: dict[Ops, tuple[Callable[[Tensor], Tensor], Callable[[np.ndarray], np.ndarray]]] = {
    Ops.ALLREDUCE: (lambda x: x.sum(0), lambda a: a.sum(0)),
    Ops.REDUCE_SCATTER: (lambda x: x.sum(0).shard(morok.mesh(3, "data"), P("data")), lambda a: a.sum(0)),
    Ops.ALLGATHER: (lambda x: x.shard(morok.mesh(3, "data")) * 2, lambda a: a * 2),
    Ops.ALL_TO_ALL: (lambda x: x.shard(morok.mesh(3, "data"), P(None, "data")) * 2, lambda a: a * 2),
    Ops.SEND_RECEIVE: (lambda x: x[:-2].pad(((2, 0), (0, 0))), lambda a: np.pad(a[:-2], ((2, 0), (0, 0)))),
    Ops.BROADCAST: (lambda x: x[2:4] + 0.5, lambda a: a[2:4] + 0.5),
}


@pytest.mark.parametrize("op", CALLS, ids=lambda op: op.name)
def test_every_collective(op: Ops) -> None:
    """Twice with jit: its second run is one call for all kernels between two collectives."""
    a = _values(6, 5)
    f, want = CALLS[op]
    x = Tensor(a).shard(morok.mesh(3, "data"), P("data")).realize()
    assert x.device.startswith("MESH:EMULATOR:data=3")
    assert op in {k.ast.op for k in f(x).plan().kernels if k.ast.op in COLLECTIVES}
    compiled = jit(lambda x: f(x).contiguous())
    for _ in range(3):
        np.testing.assert_allclose(compiled(x).numpy(), want(a), rtol=1e-6)


@pytest.mark.slow
def test_a_training_on_emulated_gpus() -> None:
    """Parameters in parts, an uneven batch: the losses of one device, of the interpreter."""
    a, target = _values(7, 6), np.arange(7) % 3

    def losses(mesh: object) -> list[float]:
        Tensor.manual_seed(0)
        model = nn.Sequential(nn.Linear(6, 9), nn.Linear(9, 3))
        x, t = Tensor(a), Tensor(target)
        if mesh is not None:
            dist.fully_sharded(model, mesh, layers=model.layers)  # type: ignore[arg-type]
            x, t = dist.shard_batch(mesh, x, t)  # type: ignore[arg-type]
        step = nn.TrainStep(
            model, nn.Adam(nn.parameters(model), lr=0.05), lambda x, t: model(x).cross_entropy(t)
        )
        return [step(x, t).item() for _ in range(3)]

    found = losses(morok.mesh(3, "data"))
    assert get_device("MESH:EMULATOR:data=3").engine.traffic.calls["reduce_scatter"]  # type: ignore[attr-defined]
    with knobs.override(DEVICE="PYTHON"):
        np.testing.assert_allclose(found, losses(None), rtol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(5000, 5040, 10))
def test_random_programs(first: int) -> None:
    with knobs.override(VIRTUAL_DEVICES=0):  # as many as the program's mesh has
        for seed in range(first, first + 10):
            programs.check(seed)
