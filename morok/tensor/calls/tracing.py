"""Whether a function is being traced, and what else belongs to the signature of a trace.

While a function is traced, nothing is computed: `realize` waits, and asking for a value is an error, because
the answer would be baked into the plan.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from morok import knobs
from morok.errors import MorokError
from morok.tensor.gradient_track import is_paused
from morok.tensor.memory.names import FIXED

_active: ContextVar[bool] = ContextVar("morok.tracing", default=False)

# What a traced function may ask besides its arguments and variables, such as whether a model is in training.
# Functions that look it up are entered by the rooms that know; another answer means another trace.
TRACE_ENVIRONMENT: list[Callable[[], object]] = [knobs.compile_environment, is_paused]


class JitError(MorokError):
    """A function that cannot be replayed."""


def is_tracing() -> bool:
    """Whether values are out of reach, because a function is being traced."""
    return _active.get()


FIXED.append(is_tracing)


@contextmanager
def tracing(on: bool = True) -> Iterator[None]:
    """Inside, nothing is computed."""
    token = _active.set(on)
    try:
        yield
    finally:
        _active.reset(token)


def refuse_values() -> None:
    """Called where values are needed at once."""
    if _active.get():
        raise JitError(
            "a function under jit is traced once, so it cannot look at values: compute with tensors, for "
            "example with where(), or return the tensor and look at it outside"
        )
