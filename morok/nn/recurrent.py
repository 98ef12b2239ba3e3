"""Recurrent layers and cells, step by step, with PyTorch's names and order of gates."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from morok.errors import ArgumentError, ShapeError
from morok.ir.infer import show_shape
from morok.nn.init import parameter, uniform_fan_in
from morok.nn.module import Module, also, is_training
from morok.tensor.tensor import Tensor

State = tuple[Tensor, ...]


class _Recurrent(Module):
    """Several layers, each in one or both directions. A subclass says what a step is."""

    gates = 0
    states = 0

    @also(input_size="inputs", hidden_size="width", num_layers="layers")
    def __init__(
        self,
        inputs: int,
        width: int,
        layers: int = 1,
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        dtype: Any = None,
    ) -> None:
        self.inputs, self.width, self.layers = inputs, width, layers
        self.batch_first, self.dropout = batch_first, dropout
        self.directions = 2 if bidirectional else 1
        rows = self.gates * width
        for layer in range(layers):
            below = inputs if layer == 0 else width * self.directions
            for direction in range(self.directions):
                end = _suffix(layer, direction)
                setattr(self, "weight_ih" + end, self._weight(rows, below, dtype))
                setattr(self, "weight_hh" + end, self._weight(rows, width, dtype))
                for name in ("bias_ih", "bias_hh") if bias else ():
                    setattr(self, name + end, self._weight(rows, None, dtype))

    def _weight(self, rows: int, columns: int | None, dtype: Any) -> Tensor:
        shape = (rows,) if columns is None else (rows, columns)
        return parameter(uniform_fan_in(*shape, fan=self.width, dtype=dtype))

    def __call__(self, x: Tensor, state: Any = None) -> tuple[Tensor, Any]:
        """(length, batch, inputs) to (length, batch, width) and the last state; batch first if asked for.

        A sequence alone is (length, inputs), and its state has no axis for a batch either.
        """
        if x.ndim == 2:
            axis = 0 if self.batch_first else 1
            if state is not None:
                state = tuple(s.unsqueeze(1) for s in (state if isinstance(state, tuple) else (state,)))
            y, after = self(x.unsqueeze(axis), state)
            alone = after if isinstance(after, tuple) else (after,)
            return y.squeeze(axis), self._packed([part.squeeze(1) for part in alone])
        if x.ndim != 3 or x.shape[2] != self.inputs:
            order = "batch, length" if self.batch_first else "length, batch"
            raise ShapeError(f"this layer takes ({order}, {self.inputs}), not {show_shape(x.shape)}")
        if self.batch_first:
            x = x.transpose(0, 1)
        given = self._given(x, state)
        last: list[State] = []
        for layer in range(self.layers):
            rows = []
            for direction in range(self.directions):
                outputs, final = self._run(x, given[layer * self.directions + direction], layer, direction)
                rows.append(outputs)
                last.append(final)
            x = rows[0] if len(rows) == 1 else rows[0].cat(rows[1], dim=-1)
            if self.dropout and layer + 1 < self.layers:
                x = x.dropout(self.dropout, is_training())
        parts = [_stacked([state[i] for state in last]) for i in range(self.states)]
        return x.transpose(0, 1) if self.batch_first else x, self._packed(parts)

    def _given(self, x: Tensor, state: Any) -> list[State]:
        count = self.layers * self.directions
        if state is None:
            zero = Tensor.zeros(x.shape[1], self.width, dtype=x.dtype)
            return [(zero,) * self.states] * count
        parts = state if isinstance(state, tuple) else (state,)
        return [tuple(part[i] for part in parts) for i in range(count)]

    def _run(self, x: Tensor, state: State, layer: int, direction: int) -> tuple[Tensor, State]:
        end = _suffix(layer, direction)
        w, u = getattr(self, "weight_ih" + end), getattr(self, "weight_hh" + end)
        b, c = getattr(self, "bias_ih" + end, None), getattr(self, "bias_hh" + end, None)
        inputs = x.linear(w, b)  # of all steps at once
        steps = inputs.unbind(0)
        outputs = []
        for step in reversed(steps) if direction else steps:
            state = self._step(step, state, lambda h: h.linear(u, c))
            outputs.append(state[0])
        return _stacked(outputs[::-1] if direction else outputs), state

    def _packed(self, parts: list[Tensor]) -> Any:
        return parts[0] if len(parts) == 1 else tuple(parts)

    def _step(self, x: Tensor, state: State, recur: Callable[[Tensor], Tensor]) -> State:
        raise NotImplementedError


def _suffix(layer: int, direction: int) -> str:
    return f"_l{layer}" + ("_reverse" if direction else "")


def _stacked(tensors: list[Tensor]) -> Tensor:
    return tensors[0].stack(*tensors[1:]) if len(tensors) > 1 else tensors[0].unsqueeze(0)


# --- what happens in a step: (inputs of the gates, state, what the state adds to them) → state


def _rnn_step(x: Tensor, state: State, recur: Callable[[Tensor], Tensor], relu: bool = False) -> State:
    y = x + recur(state[0])
    return (y.relu() if relu else y.tanh(),)


def _lstm_step(x: Tensor, state: State, recur: Callable[[Tensor], Tensor]) -> State:
    h, c = state
    i, f, g, o = (x + recur(h)).chunk(4, -1)
    cell = f.sigmoid() * c + i.sigmoid() * g.tanh()
    return o.sigmoid() * cell.tanh(), cell


def _gru_step(x: Tensor, state: State, recur: Callable[[Tensor], Tensor]) -> State:
    (h,) = state
    xr, xz, xn = x.chunk(3, -1)
    hr, hz, hn = recur(h).chunk(3, -1)
    r, z = (xr + hr).sigmoid(), (xz + hz).sigmoid()
    n = (xn + r * hn).tanh()
    return (n + z * (h - n),)


def _is_relu(nonlinearity: str) -> bool:
    if nonlinearity not in ("tanh", "relu"):
        raise ArgumentError(f'nonlinearity is "tanh" or "relu", not {nonlinearity!r}')
    return nonlinearity == "relu"


class RNN(_Recurrent):
    """h' = tanh(W x + b + U h + c), or relu(…).

    >>> y, h = RNN(3, 4)(Tensor.ones(5, 2, 3))
    >>> y.shape, h.shape
    ((5, 2, 4), (1, 2, 4))
    """

    gates = 1
    states = 1

    def __init__(self, *args: Any, nonlinearity: str = "tanh", **kwargs: Any) -> None:
        self.relu = _is_relu(nonlinearity)
        super().__init__(*args, **kwargs)

    def _step(self, x: Tensor, state: State, recur: Callable[[Tensor], Tensor]) -> State:
        return _rnn_step(x, state, recur, self.relu)


class LSTM(_Recurrent):
    """Long short-term memory: gates i, f, g, o; the state is (h, c).

    >>> y, (h, c) = LSTM(3, 4)(Tensor.ones(5, 2, 3))
    >>> y.shape, h.shape, c.shape
    ((5, 2, 4), (1, 2, 4), (1, 2, 4))
    """

    gates = 4
    states = 2

    def _step(self, x: Tensor, state: State, recur: Callable[[Tensor], Tensor]) -> State:
        return _lstm_step(x, state, recur)


class GRU(_Recurrent):
    """Gated recurrent unit: gates r, z, n.

    >>> y, h = GRU(3, 4)(Tensor.ones(5, 2, 3))
    >>> y.shape, h.shape
    ((5, 2, 4), (1, 2, 4))
    """

    gates = 3
    states = 1

    def _step(self, x: Tensor, state: State, recur: Callable[[Tensor], Tensor]) -> State:
        return _gru_step(x, state, recur)


# --- single steps


class _Cell(Module):
    """One step of a recurrent layer, on (batch, inputs) or (inputs,). A subclass says what it is."""

    gates = 0
    states = 1

    @also(input_size="inputs", hidden_size="width")
    def __init__(self, inputs: int, width: int, bias: bool = True, dtype: Any = None) -> None:
        self.inputs, self.width = inputs, width
        rows = self.gates * width
        self.weight_ih = parameter(uniform_fan_in(rows, inputs, fan=width, dtype=dtype))
        self.weight_hh = parameter(uniform_fan_in(rows, width, fan=width, dtype=dtype))
        self.bias_ih = parameter(uniform_fan_in(rows, fan=width, dtype=dtype)) if bias else None
        self.bias_hh = parameter(uniform_fan_in(rows, fan=width, dtype=dtype)) if bias else None

    def _next(self, x: Tensor, state: Any) -> State:
        if x.ndim not in (1, 2) or x.shape[-1] != self.inputs:
            raise ShapeError(f"this cell takes (batch, {self.inputs}), not {show_shape(x.shape)}")
        if state is None:
            state = (Tensor.zeros(*x.shape[:-1], self.width, dtype=x.dtype),) * self.states
        given = state if isinstance(state, tuple) else (state,)
        # a sequence alone is a batch of one
        lone = x.ndim == 1
        rows = [t.unsqueeze(0) if lone else t for t in (x, *given)]
        inputs = rows[0].linear(self.weight_ih, self.bias_ih)
        found = self._step(inputs, tuple(rows[1:]), lambda h: h.linear(self.weight_hh, self.bias_hh))
        return tuple(t.squeeze(0) for t in found) if lone else found

    def _step(self, x: Tensor, state: State, recur: Callable[[Tensor], Tensor]) -> State:
        raise NotImplementedError


class RNNCell(_Cell):
    """A step of `RNN`: h'.

    >>> RNNCell(3, 4)(Tensor.ones(2, 3)).shape
    (2, 4)
    """

    gates = 1

    @also(input_size="inputs", hidden_size="width")
    def __init__(
        self, inputs: int, width: int, bias: bool = True, nonlinearity: str = "tanh", dtype: Any = None
    ) -> None:
        self.relu = _is_relu(nonlinearity)
        super().__init__(inputs, width, bias, dtype)

    def __call__(self, x: Tensor, state: Tensor | None = None) -> Tensor:
        return self._next(x, state)[0]

    def _step(self, x: Tensor, state: State, recur: Callable[[Tensor], Tensor]) -> State:
        return _rnn_step(x, state, recur, self.relu)


class LSTMCell(_Cell):
    """A step of `LSTM`: (h', c').

    >>> h, c = LSTMCell(3, 4)(Tensor.ones(2, 3))
    >>> h.shape, c.shape
    ((2, 4), (2, 4))
    """

    gates = 4
    states = 2

    def __call__(self, x: Tensor, state: State | None = None) -> State:
        return self._next(x, state)

    def _step(self, x: Tensor, state: State, recur: Callable[[Tensor], Tensor]) -> State:
        return _lstm_step(x, state, recur)


class GRUCell(_Cell):
    """A step of `GRU`: h'.

    >>> GRUCell(3, 4)(Tensor.ones(2, 3)).shape
    (2, 4)
    """

    gates = 3

    def __call__(self, x: Tensor, state: Tensor | None = None) -> Tensor:
        return self._next(x, state)[0]

    def _step(self, x: Tensor, state: State, recur: Callable[[Tensor], Tensor]) -> State:
        return _gru_step(x, state, recur)
