"""Groups of parameters with options of their own; judged by the same steps of an optimiser for each."""

from typing import Any

import numpy as np
import pytest

from morok import MorokError, Tensor, jit, nn
from morok.nn import schedules

rng = np.random.default_rng(5)
W, C = rng.standard_normal((3, 4)).astype(np.float32), rng.standard_normal(4).astype(np.float32)
X = rng.standard_normal((6, 3)).astype(np.float32)


def made() -> tuple[Tensor, Tensor, Any]:
    w, c = Tensor(W.copy(), requires_grad=True), Tensor(C.copy(), requires_grad=True)

    def loss(x: Tensor) -> Tensor:
        return ((x @ w + c) ** 2).sum()

    return w, c, loss


def trained(optimizers: Any, count: int = 4, each: Any = None) -> list[Any]:
    """Parameters after some steps of the optimisers that `optimizers(w, c)` makes."""
    w, c, loss = made()
    opts = optimizers(w, c)
    for n in range(count):
        w.zero_grad()
        c.zero_grad()
        loss(Tensor(X)).backward()
        for opt in opts:
            opt.step()
        if each is not None:
            each(n, opts)
    return [w.numpy(), c.numpy()]


def compare(found: list[Any], wanted: list[Any]) -> None:
    for a, b in zip(found, wanted, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize(
    ("kind", "own"),
    [
        (nn.SGD, {"lr": 0.01, "momentum": 0.9, "nesterov": True}),
        (nn.SGD, {"lr": 0.01, "weight_decay": 0.1}),
        (nn.Adam, {"lr": 0.1, "betas": (0.5, 0.9), "eps": 1e-3}),
        (nn.AdamW, {"weight_decay": 0.0}),
        (nn.AdamW, {"amsgrad": True, "lr": 0.3}),
        (nn.LAMB, {"lr": 0.2, "weight_decay": 0.2}),
        (nn.Muon, {"lr": 0.1, "adam_lr": 0.5}),
        (nn.RMSprop, {"momentum": 0.5, "centered": True, "alpha": 0.5}),
        (nn.Adagrad, {"lr_decay": 0.5, "lr": 0.3}),
        (nn.Adadelta, {"rho": 0.5}),
        (nn.Adamax, {"betas": (0.5, 0.5)}),
        (nn.NAdam, {"momentum_decay": 0.1, "lr": 0.1}),
        (nn.RAdam, {"betas": (0.5, 0.9), "lr": 0.1}),
    ],
)
def test_a_group_has_what_an_optimiser_of_its_own_would_have(kind: Any, own: Any) -> None:
    rate = {"lr": 0.02}
    found = trained(lambda w, c: [kind([{"params": [w]}, {"params": [c], **own}], **rate)])
    wanted = trained(lambda w, c: [kind([w], **rate), kind([c], **{**rate, **own})])
    assert not np.allclose(wanted[1], trained(lambda w, c: [kind([w, c], **rate)])[1], rtol=1e-5)
    compare(found, wanted)


def test_options_are_read_and_set_while_it_runs() -> None:
    def halve(n: int, opts: Any) -> None:
        for opt in opts:
            for group in opt.param_groups:
                group["lr"] *= 0.5
                group["weight_decay"] = 0.1 * n

    found = trained(
        lambda w, c: [nn.AdamW([{"params": [w], "lr": 0.1}, {"params": [c]}], lr=0.01)], each=halve
    )
    wanted = trained(lambda w, c: [nn.AdamW([w], lr=0.1), nn.AdamW([c], lr=0.01)], each=halve)
    compare(found, wanted)


def test_what_a_group_shows() -> None:
    w, c, _ = made()
    opt = nn.AdamW([{"params": [w]}, {"params": [c], "lr": 0.5}], lr=0.1, weight_decay=0.2)
    first, second = opt.param_groups
    assert [list(map(id, g["params"])) for g in opt.param_groups] == [[id(w)], [id(c)]]
    assert (first["lr"], second["lr"], first["weight_decay"], second["betas"]) == (
        0.1,
        0.5,
        0.2,
        (0.9, 0.999),
    )
    assert set(first) == {"params", "lr", "weight_decay", "betas", "eps", "amsgrad"} == set(dict(second))
    assert opt.lr == 0.1 and opt.learning_rates() == [0.1, 0.5]
    opt.lr = 0.3
    assert opt.learning_rates() == [0.3, 0.3]
    opt.weight_decay = 0.0
    assert second["weight_decay"] == 0.0
    assert nn.SGD([w], lr=0.1).learning_rates() == 0.1


def test_a_schedule_scales_each_group() -> None:
    w, c, _ = made()
    opt = nn.SGD([{"params": [w]}, {"params": [c], "lr": 0.5}], lr=0.1)
    schedule = nn.Schedule(opt, schedules.exponential(0.5))
    assert schedule.step() == 0.05
    assert opt.learning_rates() == [0.05, 0.25]
    other = nn.Schedule(
        nn.SGD([{"params": [w]}, {"params": [c], "lr": 1.0}], lr=1.0), schedules.exponential(0.5)
    )
    other.load_state_dict(schedule.state_dict())
    assert other.optimizer.learning_rates() == [0.05, 0.25]


def test_a_recorded_step_follows_every_rate_and_is_not_recorded_again() -> None:
    def both(stepped: Any) -> list[Any]:
        w, c, loss = made()
        opt = nn.AdamW([{"params": [w], "weight_decay": 0.3}, {"params": [c], "lr": 0.5}], lr=0.1)
        step = stepped([w, c], opt, loss)
        for n in range(6):
            step(Tensor(X))
            for group in opt.param_groups:
                group["lr"] *= 0.9 if n % 2 else 0.8
        return [w.numpy(), c.numpy(), step]

    def plain(model: Any, opt: Any, loss: Any) -> Any:
        def step(x: Tensor) -> None:
            opt.zero_grad()
            loss(x).backward()
            opt.step()

        return step

    *wanted, _ = both(plain)
    *found, recorded = both(nn.TrainStep)
    compare(found, wanted)
    assert len(recorded.plans) == 1
    *found, jitted = both(lambda *parts: jit(plain(*parts)))
    compare(found, wanted)
    assert jitted.traces <= 2


def test_a_stopped_run_goes_on(tmp_path: Any) -> None:
    def stopped(opts: Any, n: int) -> None:
        path = tmp_path / "run.safetensors"
        nn.save_checkpoint(path, optimizer=opts[0])
        again = nn.Adam([{"params": g["params"]} for g in opts[0].param_groups], lr=7.0)
        nn.load_checkpoint(path, optimizer=again)
        assert again.learning_rates() == opts[0].learning_rates()
        opts[0] = again

    def groups(w: Tensor, c: Tensor) -> list[Any]:
        return [nn.Adam([{"params": [w], "lr": 0.1}, {"params": [c]}], lr=0.01)]

    found = trained(groups, each=lambda n, opts: stopped(opts, n) if n == 1 else None)
    compare(found, trained(groups))


def test_what_is_refused() -> None:
    w, c, loss = made()
    for groups, said in (
        ([{"params": [w]}, {"params": [c, w]}], "two groups"),
        ([{"params": [w], "momentum": 0.9}], "no option"),
        ([{"params": [w]}, c], "each group"),
        ([{"weight_decay": 0.1}], "each group"),
        ([{"params": ["w"]}], "not a str"),
        ([{"params": [w], "lr": -1.0}], "lr must not be negative"),
        ([{"params": [w], "betas": (0.9, 1.0)}], "second of betas"),
        ([{"params": []}], "nothing to optimise"),
        ([w * 2.0], "not what is made of them"),
    ):
        with pytest.raises(MorokError, match=said):
            nn.Adam(groups)
    opt = nn.Adam([{"params": [w]}, {"params": []}, {"params": iter([c])}])
    assert [len(g["params"]) for g in opt.param_groups] == [1, 0, 1]
    with pytest.raises(MorokError, match="1 learning rates for 3"):
        opt.set_learning_rates(0.1)
    with pytest.raises(KeyError):
        opt.param_groups[0]["momentum"]
    loss(Tensor(X)).backward()
    opt.step()
