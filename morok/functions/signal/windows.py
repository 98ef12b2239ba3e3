"""`morok.signal.windows`: windows by SciPy's names; `sym=False` is one period of a periodic one."""

from __future__ import annotations

from functools import partial, update_wrapper
from typing import TYPE_CHECKING, Any

from morok.tensor.signal import windows as _windows
from morok.tensor.tensor import Tensor

if TYPE_CHECKING:
    from collections.abc import Callable


def _window(function: Callable[..., Any]) -> Callable[..., Tensor]:
    """A window as a function of its size and shape alone: it makes a tensor."""
    made = partial(function, Tensor)
    return update_wrapper(made, function)


general_cosine = _window(_windows.general_cosine)
general_hamming = _window(_windows.general_hamming)
hamming = _window(_windows.hamming)
hann = _window(_windows.hann)
blackman = _window(_windows.blackman)
nuttall = _window(_windows.nuttall)
bartlett = _window(_windows.bartlett)
cosine = _window(_windows.cosine)
exponential = _window(_windows.exponential)
gaussian = _window(_windows.gaussian)
kaiser = _window(_windows.kaiser)
