"""RNN, LSTM and GRU: the inputs of all steps in one product, then step by step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from morok.errors import UnsupportedModel
from morok.onnx.ops.common import known
from morok.onnx.table import T, op
from morok.tensor.tensor import Tensor

Activation = Callable[[Tensor], Tensor]
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
    x: Tensor,
    w: Tensor,
    r: Tensor,
    b: Tensor | None,
    lengths: Tensor | None,
    starts: list[Tensor | None],
    direction: str,
    layout: int,
    hidden: int | None,
    step: Callable[[int, Tensor, Tensor, list[Tensor]], list[Tensor]],
) -> tuple[Tensor, list[Tensor]]:
    """All steps in all directions. `step` gets the direction, inputs with W and biases, R, and the states."""
    if layout:
        x = x.transpose(0, 1)
        starts = [None if s is None else s.transpose(0, 1) for s in starts]
    length, directions = known(x.shape[0], "the length of a sequence"), known(w.shape[0], "directions")
    size = known(r.shape[-1], "the size of a state")
    rows: list[list[Tensor]] = []
    last: list[list[Tensor]] = []
    for d in range(directions):
        backward = direction == "reverse" or d == 1
        state = [Tensor.zeros(x.shape[1], size, dtype=x.dtype) if s is None else s[d] for s in starts]
        inputs = x.matmul(w[d].T)
        if b is not None:
            half = known(b.shape[1], "biases") // 2
            inputs = inputs + b[d, :half]
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
    if layout:
        y = y.permute(2, 0, 1, 3)
        finals = [f.transpose(0, 1) for f in finals]
    return y, finals


def _stack(tensors: list[Tensor], axis: int) -> Tensor:
    return tensors[0].stack(*tensors[1:], dim=axis) if len(tensors) > 1 else tensors[0].unsqueeze(axis)


def _clipped(x: Tensor, clip: Any) -> Tensor:
    return x if clip is None else x.clamp(-clip, clip)


def _recurrent_bias(b: Tensor | None, d: int) -> Tensor | None:
    return None if b is None else b[d, known(b.shape[1], "biases") // 2 :]


def _product(h: Tensor, r: Tensor, bias: Tensor | None) -> Tensor:
    y = h.matmul(r.T)
    return y if bias is None else y + bias


@op("RNN", since=1)
def rnn(
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

    y, finals = _run(x, w, r, b, lengths, [h], direction, layout, hidden_size, step)
    return y, finals[0]


@op("LSTM", since=1)
def lstm(
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

    y, finals = _run(x, w, r, b, lengths, [h, c], direction, layout, hidden_size, step)
    return y, finals[0], finals[1]


@op("GRU", since=1)
def gru(
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

    y, finals = _run(x, w, r, b, lengths, [h], direction, layout, hidden_size, step)
    return y, finals[0]
