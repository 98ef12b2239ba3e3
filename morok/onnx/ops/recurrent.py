"""RNN, LSTM and GRU: the inputs of all steps in one product, then step by step.

Few steps are written out in the plan around them. Many, or as many as somebody says later, are one compiled
step that is run again and again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from morok.errors import UnsupportedModel
from morok.onnx.ops.common import known
from morok.onnx.recurrence import Trail
from morok.onnx.sizes import settled
from morok.onnx.table import Call, NeedSteps, T, between_plans, op
from morok.tensor.jit.jit import Jit
from morok.tensor.tensor import Tensor

Activation = Callable[[Tensor], Tensor]
Step = Callable[[int, Tensor, Tensor, list[Tensor]], list[Tensor]]
_WRITTEN_OUT = 16  # steps, at most
_SECOND: dict[str, tuple[float, float]] = {
    "affine": (1.0, 0.0), "leakyrelu": (0.01, 0.0), "thresholdedrelu": (1.0, 0.0), "scaledtanh": (1.0, 1.0),
    "hardsigmoid": (0.2, 0.5), "elu": (1.0, 0.0),
}  # fmt: skip


def _activation(name: str, alpha: float | None, beta: float | None) -> Activation:
    key = name.lower()
    a0, b0 = _SECOND.get(key, (0.0, 0.0))
    a, b = a0 if alpha is None else alpha, b0 if beta is None else beta
    known_: dict[str, Activation] = {
        "relu": Tensor.relu,
        "tanh": Tensor.tanh,
        "sigmoid": Tensor.sigmoid,
        "softsign": Tensor.softsign,
        "softplus": Tensor.softplus,
        "affine": lambda x: x * a + b,
        "leakyrelu": lambda x: (x >= 0).where(x, x * a),
        "thresholdedrelu": lambda x: (x >= a).where(x, 0.0),
        "scaledtanh": lambda x: (x * b).tanh() * a,
        "hardsigmoid": lambda x: (x * a + b).clamp(0, 1),
        "elu": lambda x: (x >= 0).where(x, (x.exp() - 1) * a),
    }
    if key not in known_:
        raise UnsupportedModel(f"activation {name!r} is not known")
    return known_[key]


def _activations(
    names: Any, defaults: list[str], alpha: Any, beta: Any, directions: int
) -> list[list[Activation]]:
    given = list(names) if names else defaults * directions
    alphas, betas = list(alpha or ()), list(beta or ())
    made = []
    for name in given:  # values are consumed in order, by the functions that have such
        takes_a = name.lower() in _SECOND
        takes_b = name.lower() in ("affine", "scaledtanh", "hardsigmoid")
        made.append(
            _activation(
                name,
                alphas.pop(0) if alphas and takes_a else None,
                betas.pop(0) if betas and takes_b else None,
            )
        )
    each = len(defaults)
    return [made[i * each : (i + 1) * each] for i in range(directions)]


def _run(
    call: Call,
    x: Tensor,
    w: Tensor,
    r: Tensor,
    b: Tensor | None,
    lengths: Tensor | None,
    starts: list[Tensor | None],
    direction: str,
    layout: int,
    step: Step,
) -> tuple[Tensor, list[Tensor]]:
    """All steps in all directions. `step` gets the direction, inputs with W and biases, R, and the states."""
    if layout:
        x = x.transpose(0, 1)
        starts = [None if s is None else s.transpose(0, 1) for s in starts]
    if call.between:
        return _one_by_one(call, x, w, r, b, lengths, starts, direction, layout, step)
    long = not isinstance(x.shape[0], int) or x.shape[0] > _WRITTEN_OUT
    if long and call.is_constant(1, 2, 3, 7):
        raise NeedSteps
    length, directions = known(x.shape[0], "the length of a sequence"), known(w.shape[0], "directions")
    rows: list[list[Tensor]] = []
    last: list[list[Tensor]] = []
    for d in range(directions):
        backward = direction == "reverse" or d == 1
        state = _started(x, r, starts, d)
        inputs = _inputs(x, w, b, d)
        made: list[Tensor] = []
        for t in range(length):
            at = length - 1 - t if backward else t
            new = step(d, inputs[at], r[d], state)
            if lengths is not None:
                live = (lengths > at).reshape((-1, 1))
                new = [live.where(n, s) for n, s in zip(new, state, strict=True)]
                made.append(live.where(new[0], 0.0))
            else:
                made.append(new[0])
            state = new
        rows.append(made[::-1] if backward else made)
        last.append(state)
    stacked = [_stack(row, 0) for row in rows]
    y = _stack(stacked, 1)
    finals = [_stack([state[i] for state in last], 0) for i in range(len(starts))]
    return _laid_out(y, finals, layout)


def _inputs(x: Tensor, w: Tensor, b: Tensor | None, d: int) -> Tensor:
    """What goes into all steps of a direction: W x, and a bias."""
    made = x.matmul(w[d].T)
    return made if b is None else made + b[d, : known(b.shape[1], "biases") // 2]


def _started(x: Tensor, r: Tensor, starts: list[Tensor | None], d: int) -> list[Tensor]:
    size = known(r.shape[-1], "the size of a state")
    return [Tensor.zeros(x.shape[1], size, dtype=x.dtype) if s is None else s[d] for s in starts]


def _laid_out(y: Tensor, finals: list[Tensor], layout: int) -> tuple[Tensor, list[Tensor]]:
    return (y.permute(2, 0, 1, 3), [f.transpose(0, 1) for f in finals]) if layout else (y, finals)


def _one_by_one(
    call: Call,
    x: Tensor,
    w: Tensor,
    r: Tensor,
    b: Tensor | None,
    lengths: Tensor | None,
    starts: list[Tensor | None],
    direction: str,
    layout: int,
    step: Step,
) -> tuple[Tensor, list[Tensor]]:
    """The steps one after the other, between plans: weights are constants, so plans are kept by shapes."""
    given = [settled(t) for t in (x, lengths, *starts) if t is not None]
    shapes = tuple((t.shape, t.dtype) for t in given)  # type: ignore[union-attr]
    key = ("steps", call.node.index, shapes)
    if key not in call.program.steps:
        call.program.steps[key] = _plans(given, w, r, b, lengths, starts, direction, layout, step)
    before, trail, after = call.program.steps[key]
    first, inputs, *rest = before(*given)
    y, *finals = after(trail.run(first, [inputs, *rest]), *rest)
    return y, finals


def _plans(
    given: list[Any],
    w: Tensor,
    r: Tensor,
    b: Tensor | None,
    lengths: Tensor | None,
    starts: list[Tensor | None],
    direction: str,
    layout: int,
    step: Step,
) -> tuple[Jit, Trail, Jit]:
    """What is computed before the steps, the steps, and what is made of their states."""
    directions, size = known(w.shape[0], "directions"), known(r.shape[-1], "the size of a state")
    length, states = int(given[0].shape[0]), len(starts)
    backward = [direction == "reverse" or d == 1 for d in range(directions)]

    def before(x: Tensor, *others: Tensor) -> list[Tensor]:
        rest = iter(others)
        counts = [] if lengths is None else [next(rest)]
        begun: list[Tensor | None] = [None if s is None else next(rest) for s in starts]
        rows = [_inputs(x, w, b, d) for d in range(directions)]
        turned = [row.flip(0) if back else row for row, back in zip(rows, backward, strict=True)]
        first = [_cat(_started(x, r, begun, d)) for d in range(directions)]
        return [_stack(first, 0).contiguous(), _stack(turned, 1).contiguous(), *counts]

    def one(state: Tensor, k: Any, inputs: Tensor, *counts: Tensor) -> Tensor:
        made = []
        for d in range(directions):
            old = [state[d, :, i * size : (i + 1) * size] for i in range(states)]
            new = step(d, inputs[k, d], r[d], old)
            if counts:
                at = length - 1 - k if backward[d] else k
                live = (counts[0] > at).reshape((-1, 1))
                new = [live.where(n, s) for n, s in zip(new, old, strict=True)]
            made.append(_cat(new))
        return _stack(made, 0)

    def after(trail: Tensor, *counts: Tensor) -> list[Tensor]:
        y = trail[..., :size]
        rows = [y[:, d].flip(0) if backward[d] else y[:, d] for d in range(directions)]
        y = _stack(rows, 1)
        if counts:
            live = Tensor.arange(length).reshape((-1, 1, 1, 1)) < counts[0].reshape((1, 1, -1, 1))
            y = live.where(y, 0.0)
        finals = [trail[length - 1, :, :, i * size : (i + 1) * size] for i in range(states)]
        y, finals = _laid_out(y, finals, layout)
        return [t.contiguous() for t in (y, *finals)]

    first_plan = Jit(before, guard_tensors=False)
    first, inputs, *rest = first_plan(*given)
    return first_plan, Trail(one, first, [inputs, *rest], length), Jit(after, guard_tensors=False)


def _cat(parts: list[Tensor]) -> Tensor:
    return parts[0].cat(*parts[1:], dim=-1) if len(parts) > 1 else parts[0]


def _stack(tensors: list[Tensor], axis: int) -> Tensor:
    return tensors[0].stack(*tensors[1:], dim=axis) if len(tensors) > 1 else tensors[0].unsqueeze(axis)


def _clipped(x: Tensor, clip: Any) -> Tensor:
    return x if clip is None else x.clamp(-clip, clip)


def _recurrent_bias(b: Tensor | None, d: int) -> Tensor | None:
    return None if b is None else b[d, known(b.shape[1], "biases") // 2 :]


def _product(h: Tensor, r: Tensor, bias: Tensor | None) -> Tensor:
    y = h.matmul(r.T)
    return y if bias is None else y + bias


@op("RNN", since=1, steps=between_plans)
def rnn(
    call: Call,
    x: T,
    w: T,
    r: T,
    b: T | None,
    lengths: T | None,
    h: T | None,
    *,
    activation_alpha: Any = None,
    activation_beta: Any = None,
    activations: Any = None,
    clip: Any = None,
    direction: str = "forward",
    hidden_size: Any = None,
    layout: int = 0,
    output_sequence: int = 0,
) -> Any:
    functions = _activations(
        activations, ["Tanh"], activation_alpha, activation_beta, known(w.shape[0], "directions")
    )

    def step(d: int, inputs: Tensor, recurrence: Tensor, state: list[Tensor]) -> list[Tensor]:
        total = inputs + _product(state[0], recurrence, _recurrent_bias(b, d))
        return [functions[d][0](_clipped(total, clip))]

    y, finals = _run(call, x, w, r, b, lengths, [h], direction, layout, step)
    return y, finals[0]


@op("LSTM", since=1, steps=between_plans)
def lstm(
    call: Call,
    x: T,
    w: T,
    r: T,
    b: T | None,
    lengths: T | None,
    h: T | None,
    c: T | None,
    p: T | None,
    *,
    activation_alpha: Any = None,
    activation_beta: Any = None,
    activations: Any = None,
    clip: Any = None,
    direction: str = "forward",
    hidden_size: Any = None,
    input_forget: int = 0,
    layout: int = 0,
    output_sequence: int = 0,
) -> Any:
    count = known(w.shape[0], "directions")
    functions = _activations(
        activations, ["Sigmoid", "Tanh", "Tanh"], activation_alpha, activation_beta, count
    )
    size = known(r.shape[-1], "the size of a state")

    def step(d: int, inputs: Tensor, recurrence: Tensor, state: list[Tensor]) -> list[Tensor]:
        f, g, out = functions[d]
        old = state[1]
        total = inputs + _product(state[0], recurrence, _recurrent_bias(b, d))
        i_, o_, f_, c_ = (total[:, k * size : (k + 1) * size] for k in range(4))
        peep = [p[d, k * size : (k + 1) * size] for k in range(3)] if p is not None else None
        if peep is not None:
            i_, f_ = i_ + peep[0] * old, f_ + peep[2] * old
        gate = f(_clipped(i_, clip))
        forget = -gate + 1 if input_forget else f(_clipped(f_, clip))
        new = forget * old + gate * g(_clipped(c_, clip))
        if peep is not None:
            o_ = o_ + peep[1] * new
        return [f(_clipped(o_, clip)) * out(new), new]

    y, finals = _run(call, x, w, r, b, lengths, [h, c], direction, layout, step)
    return y, finals[0], finals[1]


@op("GRU", since=1, steps=between_plans)
def gru(
    call: Call,
    x: T,
    w: T,
    r: T,
    b: T | None,
    lengths: T | None,
    h: T | None,
    *,
    activation_alpha: Any = None,
    activation_beta: Any = None,
    activations: Any = None,
    clip: Any = None,
    direction: str = "forward",
    hidden_size: Any = None,
    layout: int = 0,
    linear_before_reset: int = 0,
    output_sequence: int = 0,
) -> Any:
    count = known(w.shape[0], "directions")
    functions = _activations(activations, ["Sigmoid", "Tanh"], activation_alpha, activation_beta, count)
    size = known(r.shape[-1], "the size of a state")

    def step(d: int, inputs: Tensor, recurrence: Tensor, state: list[Tensor]) -> list[Tensor]:
        f, g = functions[d]
        old = state[0]
        bias = _recurrent_bias(b, d)
        both = inputs[:, : 2 * size] + _product(
            old, recurrence[: 2 * size], None if bias is None else bias[: 2 * size]
        )
        both = f(_clipped(both, clip))
        z, reset = both[:, :size], both[:, size:]
        own = None if bias is None else bias[2 * size :]
        inner = recurrence[2 * size :]
        if linear_before_reset:
            hidden = reset * _product(old, inner, own)
        else:
            hidden = _product(reset * old, inner, own)
        new = g(_clipped(inputs[:, 2 * size :] + hidden, clip))
        return [(-z + 1) * new + z * old]

    y, finals = _run(call, x, w, r, b, lengths, [h], direction, layout, step)
    return y, finals[0]
