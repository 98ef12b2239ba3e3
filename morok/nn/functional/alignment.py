"""The loss of sequences without alignment (connectionist temporal classification).

Both passes, from the first time on and from the last one back, are loops of one compiled step
(`tensor/linalg/loops.py`), whatever the length; inside of `jit` the steps are written out.
"""

from __future__ import annotations

import math
from typing import Any

from morok.errors import ArgumentError, MorokError
from morok.tensor.linalg.loops import all_steps
from morok.tensor.sizes import concrete, concrete_shape
from morok.tensor.tensor import Tensor
from morok.tensor.transforms import custom_gradient

_NEVER = -math.inf
_LINE = 16  # floats in a line of memory


def ctc_loss(
    log_probs: Tensor,
    targets: Tensor,
    input_lengths: Any,
    target_lengths: Any,
    blank: int = 0,
    reduction: str = "mean",
    zero_infinity: bool = False,
) -> Tensor:
    """The loss of sequences (T, N, C) of log-probabilities against labels (N, S) without alignment.

    All ways to write the labels with blanks in between are added up, one step of time after the other.

    >>> round(ctc_loss(Tensor([[[0.5, 0.5]]]).log(), Tensor([[1]]), [1], [1]).item(), 4)
    0.6931
    """
    if reduction not in ("mean", "sum", "none"):
        raise ArgumentError(f'reduction is "mean", "sum" or "none", not {reduction!r}')
    lone = log_probs.ndim == 2
    x = log_probs.unsqueeze(1) if lone else log_probs
    steps, batch, _ = concrete_shape(x.shape)
    lengths, sizes = (_numbers(v, batch) for v in (input_lengths, target_lengths))
    labels = _padded(targets, target_lengths, batch)
    width = concrete(labels.shape[1])
    labels = (Tensor.arange(width) < sizes.unsqueeze(1)).where(labels, blank)
    # blank, label, blank, label, …, blank
    states = 2 * width + 1
    spaced = labels.unsqueeze(-1).pad([None, None, (1, 0)], blank).reshape(batch, 2 * width)
    spaced = spaced.pad([None, (0, 1)], blank)
    before = spaced.pad([None, (2, -2)], blank)
    place = Tensor.arange(states)
    skips = spaced.ne(blank) & spaced.ne(before) & (place >= 2)
    emitted = x.gather(2, spaced.unsqueeze(0).expand(steps, batch, states))  # (T, N, states)
    edge = [None, None, (0, -states % _LINE)]  # states that nobody reaches, up to whole lines of memory
    loss = _aligned(emitted.pad(edge, _NEVER), skips.pad(edge[1:]), lengths, sizes)
    if zero_infinity:
        loss = loss.eq(math.inf).where(0.0, loss)
    if reduction == "mean":
        return (loss / sizes.maximum(1).cast(loss.dtype)).mean()
    return loss.sum() if reduction == "sum" else loss.squeeze(0) if lone else loss


def _shifted(x: Tensor, places: int) -> Tensor:
    """Along the states by so many places, from where nothing comes."""
    return x.pad([None, (places, -places)], _NEVER)


def _forward(alpha: Tensor, k: Any, emitted: Tensor, skips: Tensor, inside: Tensor) -> Tensor:
    """Logarithms of how likely each state is at time k + 1, with all that was emitted up to then."""
    two = skips.where(_shifted(alpha, 2), _NEVER)
    new = _logsumexp(alpha, _shifted(alpha, 1), two) + emitted.narrow(0, k + 1, 1).squeeze(0)
    goes_on: Tensor = inside.narrow(0, k + 1, 1).squeeze(0)
    return goes_on.where(new, alpha)


def _backward(beta: Tensor, k: Any, emitted: Tensor, skips: Tensor, inside: Tensor, final: Tensor) -> Tensor:
    """The same from the end: how likely the rest is, given each state at time T - 2 - k."""
    t = emitted.shape[0] - 2 - k
    coming = beta + emitted.narrow(0, t + 1, 1).squeeze(0)
    two = _shifted(skips.where(coming, _NEVER), -2)
    new = _logsumexp(coming, _shifted(coming, -1), two)
    goes_on: Tensor = inside.narrow(0, t + 1, 1).squeeze(0)
    return goes_on.where(new, final)


def _inside(emitted: Tensor, lengths: Tensor) -> Tensor:
    """Whether a time lies in a sequence: (T, N, 1).

    In memory, as is what is emitted: steps that are written out read another row each, and are one kernel.
    """
    return (Tensor.arange(emitted.shape[0]).reshape(-1, 1, 1) < lengths.reshape(1, -1, 1)).contiguous()


def _alphas(emitted: Tensor, skips: Tensor, inside: Tensor, sizes: Tensor) -> Tensor:
    place = Tensor.arange(emitted.shape[-1])
    begins = (place < 1) | ((place < 2) & (sizes.unsqueeze(1) > 0))
    first = begins.where(emitted[0], _NEVER)
    return all_steps(first, concrete(emitted.shape[0]) - 1, _forward, (emitted, skips, inside))


def _ends(emitted: Tensor, sizes: Tensor) -> Tensor:
    """0 for the states that a sequence may end in, the last label and the blank after it."""
    place = Tensor.arange(emitted.shape[-1])
    last = (sizes * 2).unsqueeze(1)
    return (place.eq(last) | (place.eq(last - 1) & (last > 0))).where(0.0, _NEVER).cast(emitted.dtype)


def _slopes(
    g: Tensor, loss: Tensor, emitted: Tensor, skips: Tensor, lengths: Tensor, sizes: Tensor
) -> tuple[Tensor | None, ...]:
    """How likely each state is at each time, given the whole sequence."""
    own = emitted.detach().contiguous()
    final, inside = _ends(own, sizes), _inside(own, lengths)
    alphas = _alphas(own, skips, inside, sizes)
    betas = all_steps(final, concrete(own.shape[0]) - 1, _backward, (own, skips, inside, final)).flip(0)
    shift = loss.detach().reshape(1, -1, 1)
    likely = (alphas + betas + shift).exp()
    # an impossible sequence has no states at all: NaN, as in PyTorch, unless it is to count nothing
    found = (inside & alphas.ne(_NEVER) & betas.ne(_NEVER)).where(likely, 0.0)
    return _once(-(found * g.reshape(1, -1, 1)), emitted), None, None, None


def _no_second(*_: Any) -> Any:
    raise MorokError("ctc_loss has no second derivative")


@custom_gradient(_no_second)
def _once(slope: Tensor, emitted: Tensor) -> Tensor:
    """A gradient that knows what it depends on, so that asking for its own is an error and not 0."""
    return slope


@custom_gradient(_slopes)
def _aligned(emitted: Tensor, skips: Tensor, lengths: Tensor, sizes: Tensor) -> Tensor:
    """The negative logarithm of all ways together, for each sequence."""
    own = emitted.detach().contiguous()
    alpha = _alphas(own, skips, _inside(own, lengths), sizes)[-1]
    ended = alpha + _ends(own, sizes)
    top = ended.max(-1, keepdim=True)
    shift = top.eq(_NEVER).where(0.0, top)
    return -((ended - shift).exp().sum(-1).log() + shift.squeeze(-1))


def _logsumexp(*parts: Tensor) -> Tensor:
    """log Σ exp, of which nothing but -inf is -inf, with a gradient of 0."""
    top = parts[0]
    for part in parts[1:]:
        top = top.maximum(part)
    top = top.detach()
    shift = top.eq(-math.inf).where(0.0, top)
    total = (parts[0] - shift).exp()
    for part in parts[1:]:
        total = total + (part - shift).exp()
    nothing = total.eq(0.0)
    return nothing.where(-math.inf, nothing.where(1.0, total).log() + shift)


def _numbers(values: Any, batch: int) -> Tensor:
    found = (
        values
        if isinstance(values, Tensor)
        else Tensor(list(values) if isinstance(values, tuple | list) else [values])
    )
    return found.reshape(batch).cast("int64")


def _padded(targets: Tensor, lengths: Any, batch: int) -> Tensor:
    """Labels (N, S); those in one row are cut by their lengths, which must be numbers then."""
    if targets.ndim == 2:
        return targets.cast("int64")
    known = [int(n) for n in (lengths.tolist() if isinstance(lengths, Tensor) else _listed(lengths))]
    if batch == 1:
        return targets.reshape(1, -1).cast("int64")
    most = max([*known, 1])
    at, rows = 0, []
    for n in known:
        rows.append(targets[at : at + n].cast("int64").pad([(0, most - n)]))
        at += n
    return rows[0].stack(*rows[1:])


def _listed(values: Any) -> list[int]:
    return list(values) if isinstance(values, tuple | list) else [values]
