"""RNN, LSTM and GRU: the inputs of all steps in one product, then step by step.

Few steps are written out in the plan around them. More, or as many as somebody says later, are one compiled
step that is run again and again; both directions take it together, if they compute the same.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from morok import dtype as dt
from morok.errors import UnsupportedModel
from morok.onnx.ops.common import known
from morok.onnx.ops.integers import has_words
from morok.onnx.ops.quantized import dynamic_quantize_linear, integer_matmul, numbers
from morok.onnx.panels import Weights
from morok.onnx.recurrence import After, Before, Recurrence, form, written_out
from morok.onnx.recurrence import Step as Walk
from morok.onnx.sizes import settled
from morok.onnx.table import Call, NeedSteps, T, as_tensor, between_plans, op
from morok.onnx.values import Host, Value
from morok.tensor.tensor import Tensor

Activation = Callable[[Tensor], Tensor]
# which direction, or all of them along a first axis; what goes into the step, and the states
Step = Callable[[int | None, Tensor, list[Tensor]], list[Tensor]]
Product = Callable[[Tensor, int | None], Tensor]  # what a state, in a direction or in all, has times R
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
    known_: dict[Any, Activation] = {}  # equal ones are the same function
    made = []
    for name in given:  # values are consumed in order, by the functions that have such
        takes_a = name.lower() in _SECOND
        takes_b = name.lower() in ("affine", "scaledtanh", "hardsigmoid")
        a = alphas.pop(0) if alphas and takes_a else None
        b = betas.pop(0) if betas and takes_b else None
        key = (name.lower(), a, b)
        if key not in known_:
            known_[key] = _activation(name, a, b)
        made.append(known_[key])
    each = len(defaults)
    return [made[i * each : (i + 1) * each] for i in range(directions)]


def _run(
    call: Call,
    x: Tensor,
    w: Tensor,
    size: int,
    b: Tensor | None,
    lengths: Tensor | None,
    starts: list[Tensor | None],
    direction: str,
    layout: int,
    step: Step,
    alike: bool,
    seen: Callable[[Tensor], Tensor] | None = None,
) -> tuple[Tensor, list[Tensor]]:
    """All steps in all directions. `b`: what is added to the inputs of each. `alike`: they compute the same
    functions. `seen`: what W takes of x."""
    given: list[Any] = [t for t in (x, lengths, *starts) if t is not None]
    long = x.shape[1 if layout else 0]
    is_long = not isinstance(long, int) or long > _WRITTEN_OUT
    if not call.between and is_long and call.is_constant(1, 2, 3, *range(7, 12)):
        raise NeedSteps
    given = [settled(t) for t in given] if call.between else given
    length = known(given[0].shape[1 if layout else 0], "the length of a sequence")
    parts = _parts(length, w, size, b, lengths is not None, starts, direction, layout, step, alike, seen)
    if call.between:  # weights are constants, so plans are kept by shapes
        made = call.program.steps[_key(call, given)] = Recurrence(*parts, given, length)
        y, *finals = made.run(given)
    else:
        y, *finals = written_out(*parts, given, length)
    return y, finals


def _inputs(x: Tensor, w: Tensor, b: Tensor | None) -> list[Tensor]:
    """What goes into all steps of each direction, W x and a bias: one product, stored as it is made best."""
    directions, rows, inner = (known(n, "a weight") for n in w.shape)
    made = x.contiguous().matmul(w.reshape((directions * rows, inner)).T)
    if b is not None:
        made = made + b.reshape(-1)
    made = made.contiguous()
    return [made[..., d * rows : (d + 1) * rows] for d in range(directions)]


def _started(x: Tensor, size: int, starts: list[Tensor | None], d: int) -> list[Tensor]:
    return [Tensor.zeros(x.shape[1], size, dtype=x.dtype) if s is None else s[d] for s in starts]


def _laid_out(y: Tensor, finals: list[Tensor], layout: int) -> tuple[Tensor, list[Tensor]]:
    return (y.permute(2, 0, 1, 3), [f.transpose(0, 1) for f in finals]) if layout else (y, finals)


def _key(call: Call, given: list[Any]) -> Any:
    return "steps", call.node.index, tuple([(*form(t), t.dtype) for t in given])


def _between(call: Call, values: list[Value]) -> list[Value]:
    """A layer between plans: what was compiled for such shapes is run again at once."""
    given = [values[n] for n in (0, 4, 5, 6) if n < len(values) and values[n] is not None]
    if not all(isinstance(t, Tensor) for t in given):
        given = [as_tensor(t) for t in given]
    given = [settled(t) for t in given]
    known_ = call.program.steps.get(_key(call, given))
    if known_ is None:
        call.tracer.refuse()
        return between_plans(call, values)
    made: list[Value] = known_.run(given)
    if call.tracer.recorder is not None:
        call.tracer.recorder.layer(known_, given, made)
    return made


def _parts(
    length: int,
    w: Tensor,
    size: int,
    b: Tensor | None,
    has_lengths: bool,
    starts: list[Tensor | None],
    direction: str,
    layout: int,
    step: Step,
    alike: bool,
    seen: Callable[[Tensor], Tensor] | None,
) -> tuple[Before, Walk, After]:
    """A layer as a recurrence on x, lengths if there are such, and the states that are not zeros."""
    directions = known(w.shape[0], "directions")
    states = len(starts)
    backward = [direction == "reverse" or d == 1 for d in range(directions)]

    def before(x: Tensor, *others: Tensor) -> tuple[list[Tensor], list[Tensor]]:
        rest = iter(others[has_lengths:])
        begun: list[Tensor | None] = [None if s is None else next(rest) for s in starts]
        if layout:
            x, begun = x.transpose(0, 1), [None if s is None else s.transpose(0, 1) for s in begun]
        rows = _inputs(x if seen is None else seen(x), w, b)
        turned = [row.flip(0) if back else row for row, back in zip(rows, backward, strict=True)]
        first = [_started(x, size, begun, d) for d in range(directions)]
        return [_stack([own[i] for own in first], 0) for i in range(states)], [_stack(turned, 1).contiguous()]

    def live(k: Any, counts: Tensor) -> Tensor:
        """(directions, batch, 1): whether a sequence has this step."""
        column = counts.reshape((-1, 1))
        return _stack([column > (length - 1 - k if back else k) for back in backward], 0)

    def one(old: list[Tensor], k: Any, inputs: list[Tensor], *rest: Tensor) -> list[Tensor]:
        if alike:
            new = step(None, inputs[0][k], old)
        else:
            each = [step(d, inputs[0][k, d], [s[d] for s in old]) for d in range(directions)]
            new = [_stack([own[i] for own in each], 0) for i in range(states)]
        if has_lengths:
            goes_on = live(k, rest[1])
            new = [goes_on.where(n, s) for n, s in zip(new, old, strict=True)]
        return new

    def after(histories: list[Tensor], last: list[Tensor], *rest: Tensor) -> list[Tensor]:
        rows = [y[:, d] for y in histories[:1] for d in range(directions)]
        y = _stack([row.flip(0) if back else row for row, back in zip(rows, backward, strict=True)], 1)
        if has_lengths:
            there = Tensor.arange(length).reshape((-1, 1, 1, 1)) < rest[1].reshape((1, 1, -1, 1))
            y = there.where(y, 0.0)
        y, finals = _laid_out(y, last, layout)
        return [y, *finals]

    return before, one, after


def _stack(tensors: list[Tensor], axis: int) -> Tensor:
    return tensors[0].stack(*tensors[1:], dim=axis) if len(tensors) > 1 else tensors[0].unsqueeze(axis)


def _clipped(x: Tensor, clip: Any) -> Tensor:
    return x if clip is None else x.clamp(-clip, clip)


def _of(t: Tensor, d: int | None) -> Tensor:
    """What a direction has of a constant; or all of them, beside the rows of a batch."""
    return t.unsqueeze(1) if d is None else t[d]


def _halves(b: Tensor | None) -> tuple[Tensor | None, Tensor | None]:
    """What is added to W x, and to R h."""
    if b is None:
        return None, None
    rows = known(b.shape[1], "biases") // 2
    return b[:, :rows], b[:, rows:]


def _joint(b: Tensor | None) -> Tensor | None:
    """Both together, where nothing comes between the products."""
    first, second = _halves(b)
    return None if first is None or second is None else first + second


def _weights(r: Value) -> Weights:
    return Weights(as_tensor(r), r if isinstance(r, Host) else None)


def _gates(x: Tensor, size: int, count: int) -> list[Tensor]:
    """The parts of a row that belong to each gate. The row is stored: a gate asks for others' places."""
    x = x.contiguous()
    return [x[..., k * size : (k + 1) * size] for k in range(count)]


@op("RNN", since=1, steps=_between, replays=True)
def rnn(
    call: Call,
    x: T,
    w: T,
    r: Value,
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

    back = _weights(r)

    def step(d: int | None, inputs: Tensor, state: list[Tensor]) -> list[Tensor]:
        total = inputs + back.times(state[0], d)
        return [functions[d or 0][0](_clipped(total, clip))]

    alike = functions[0] == functions[-1]
    size = known(back.tensor.shape[-1], "the size of a state")
    y, finals = _run(call, x, w, size, _joint(b), lengths, [h], direction, layout, step, alike)
    return y, finals[0]


@op("LSTM", since=1, steps=_between, replays=True)
def lstm(
    call: Call,
    x: T,
    w: T,
    r: Value,
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
    back = _weights(r)
    size = known(back.tensor.shape[-1], "the size of a state")
    step = _lstm_step(functions, p, clip, input_forget, size, back.times)
    alike = functions[0] == functions[-1]
    y, finals = _run(call, x, w, size, _joint(b), lengths, [h, c], direction, layout, step, alike)
    return y, finals[0], finals[1]


def _lstm_step(
    functions: list[list[Activation]],
    p: Tensor | None,
    clip: Any,
    input_forget: int,
    size: int,
    product: Product,
) -> Step:
    def step(d: int | None, inputs: Tensor, state: list[Tensor]) -> list[Tensor]:
        f, g, out = functions[d or 0]
        old = state[1]
        i_, o_, f_, c_ = _gates(inputs + product(state[0], d), size, 4)
        peep = None if p is None else [_of(p, d)[..., k * size : (k + 1) * size] for k in range(3)]
        if peep is not None:
            i_, f_ = i_ + peep[0] * old, f_ + peep[2] * old
        gate = f(_clipped(i_, clip))
        forget = -gate + 1 if input_forget else f(_clipped(f_, clip))
        new = forget * old + gate * g(_clipped(c_, clip))
        if peep is not None:
            o_ = o_ + peep[1] * new
        return [f(_clipped(o_, clip)) * out(new), new]

    return step


@op("DynamicQuantizeLSTM", domain="com.microsoft", steps=_between, replays=True)
def dynamic_quantize_lstm(
    call: Call,
    x: T,
    w: Value,
    r: Value,
    b: T | None,
    lengths: T | None,
    h: T | None,
    c: T | None,
    p: T | None,
    w_scale: T,
    w_zero: Value | None,
    r_scale: T,
    r_zero: Value | None,
    *,
    activation_alpha: Any = None,
    activation_beta: Any = None,
    activations: Any = None,
    clip: Any = None,
    direction: str = "forward",
    hidden_size: Any = None,
    input_forget: int = 0,
) -> Any:
    """The numbers that weights of 8 bits stand for, times those that codes of x, and of each state, do."""
    given, back = _stood_for(w, w_scale, w_zero), _stood_for(r, r_scale, r_zero)
    product = _code_product(r, r_scale, r_zero)
    if call.between:
        given.realize(*([back] if product is None else []))  # once, not in each call
    count = known(given.shape[0], "directions")
    functions = _activations(
        activations, ["Sigmoid", "Tanh", "Tanh"], activation_alpha, activation_beta, count
    )
    alone = product is None and count == 1  # each direction has a scale of its own
    size = known(back.shape[-1], "a state")
    own = Weights(back, None)
    step = _lstm_step(
        functions, p, clip, input_forget, size, product or (lambda h, d: own.times(_in_codes(h), d))
    )
    alike = functions[0] == functions[-1] and alone
    y, finals = _run(call, x, given, size, _joint(b), lengths, [h, c], direction, 0, step, alike, _in_codes)
    return y, finals[0], finals[1]


def _stood_for(codes: Value, scale: Tensor, zero: Value | None) -> Tensor:
    """Weights (directions, inner, rows) as (directions, rows, inner), with one scale or one for each row."""
    whole = numbers(codes).cast(dt.float32)
    beside = (known(whole.shape[0], "directions"), 1, -1)
    if zero is not None:
        whole = whole - numbers(zero).cast(dt.float32).reshape(beside)
    return (whole * scale.reshape(beside)).transpose(1, 2).contiguous()


def _code_product(r: Value, scale: Tensor, zero: Value | None) -> Product | None:
    """Codes of a state times those of R, in whole numbers; None where R is not known, or without words."""
    if not has_words() or not isinstance(r, Host) or not r.lasting:
        return None
    if zero is not None and not (isinstance(zero, Host) and zero.lasting):
        return None
    count = len(r.array)
    factors = scale.reshape((count, -1))
    weights = [Host(own, r.elem, lasting=True) for own in r.array]
    offsets: list[Value] = [None] * count
    if isinstance(zero, Host):
        offsets = [Host(own, zero.elem, lasting=True) for own in zero.array.reshape(count, -1)]

    def product(state: Tensor, d: int | None) -> Tensor:
        codes, unit, middle = dynamic_quantize_linear(state)
        sums = integer_matmul(codes, middle, weights[d or 0], offsets[d or 0])
        made: Tensor = sums.cast(dt.float32) * (unit * factors[d or 0])
        return made

    return product


def _in_codes(x: Tensor) -> Tensor:
    """What is left of numbers that are quantised to uint8 on the way."""
    codes, scale, zero = dynamic_quantize_linear(x)
    left: Tensor = (codes.cast(dt.float32) - zero.cast(dt.float32)) * scale
    return left


@op("GRU", since=1, steps=_between, replays=True)
def gru(
    call: Call,
    x: T,
    w: T,
    r: Value,
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
    back = _weights(r)
    size = known(back.tensor.shape[-1], "the size of a state")
    begin, bias = _halves(b)

    def of_state(h: Tensor, d: int | None, start: int, stop: int) -> Tensor:
        made = back.times(h, d, start * size, stop * size)
        return made if bias is None else made + _of(bias, d)[..., start * size : stop * size]

    def step(d: int | None, inputs: Tensor, state: list[Tensor]) -> list[Tensor]:
        f, g = functions[d or 0]
        old = state[0]
        if linear_before_reset:
            z, reset, inner = _gates(of_state(old, d, 0, 3), size, 3)
            hidden = f(_clipped(inputs[..., size : 2 * size] + reset, clip)) * inner
        else:
            z, reset = _gates(of_state(old, d, 0, 2), size, 2)
            row = f(_clipped(inputs[..., size : 2 * size] + reset, clip)) * old
            hidden = of_state(row.contiguous(), d, 2, 3)
        z = f(_clipped(inputs[..., :size] + z, clip))
        new = g(_clipped(inputs[..., 2 * size :] + hidden, clip))
        return [(-z + 1) * new + z * old]

    alike = functions[0] == functions[-1]
    y, finals = _run(call, x, w, size, begin, lengths, [h], direction, layout, step, alike)
    return y, finals[0]
