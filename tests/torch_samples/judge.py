"""Runs torch's samples of an operator through morok, and says how many come out as torch's.

    python -m tests.torch_samples                     all operators of names.txt
    python -m tests.torch_samples erfc linalg.qr      some of them, with what went wrong
    python -m tests.torch_samples --most 10           so many samples of each

    python -m tests.torch_samples --workers 16        in processes, each of which takes what is next

An operator is "full" if every sample has torch's values, types and gradients; else some of its samples are
"wrong" (other values), or "raise". It is "missing" if morok has nothing under that name, "absent" if the
torch that is installed does not test it, and "late" if samples were left when its time was over.
"""

from __future__ import annotations

import os
import sys
import time
import types
import unittest
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from morok import Tensor, dtype
from morok.errors import MorokError
from tests.torch_samples.names import (
    DROPS,
    NORMALISED,
    RANDOM,
    SYMMETRIC,
    TRIANGULAR,
    UNDEFINED,
    function_of,
)

NAMES = Path(__file__).with_name("names.txt")
RTOL, ATOL = 2e-4, 2e-5
GRADIENT_RTOL, GRADIENT_ATOL = 2e-3, 2e-4


def operators() -> list[str]:
    """The names of the list."""
    lines = NAMES.read_text(encoding="utf-8").splitlines()
    return [line for line in lines if line and not line.startswith("#")]


def database() -> dict[str, Any]:
    """torch's descriptions of its operators, by name."""
    os.environ["CUDA_VISIBLE_DEVICES"] = ""  # where torch sees a GPU some samples ask for it
    if "expecttest" not in sys.modules:
        try:
            import expecttest  # noqa: F401
        except ImportError:  # torch's test module wants it for a base class that is not used here
            stand_in = types.ModuleType("expecttest")
            stand_in.TestCase = unittest.TestCase  # type: ignore[attr-defined]
            sys.modules["expecttest"] = stand_in
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from torch.testing._internal.common_methods_invocations import op_db
    found: dict[str, Any] = {}
    for op in op_db:
        found.setdefault(op.name + (f".{op.variant_test_name}" if op.variant_test_name else ""), op)
    return found


@dataclass
class Verdict:
    """What became of an operator's samples."""

    name: str
    passed: int = 0
    wrong: list[str] = field(default_factory=list)
    raised: list[str] = field(default_factory=list)
    missing: bool = False
    absent: bool = False
    left: int = 0  # samples for which there was no time

    @property
    def state(self) -> str:
        if self.absent:
            return "absent"
        if self.missing:
            return "missing"
        if self.wrong:
            return "wrong"
        if self.raised:
            return "in part" if self.passed else "raises"
        return "late" if self.left else "full"

    def joined(self, other: Verdict) -> Verdict:
        """What two shares of an operator's samples come to."""
        return Verdict(
            self.name,
            self.passed + other.passed,
            self.wrong + other.wrong,
            self.raised + other.raised,
            self.missing or other.missing,
            self.absent or other.absent,
            self.left + other.left,
        )


def sample_count(op: Any) -> int:
    """How many samples torch has of an operator."""
    import torch

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return sum(1 for _ in op.sample_inputs("cpu", torch.float32, requires_grad=False))


def judged(
    name: str,
    op: Any,
    most: int = 0,
    gradients: bool = True,
    share: tuple[int, int] = (0, 1),
    seconds: float = float("inf"),
) -> Verdict:
    """The verdict on one operator; of at most so many samples, spread evenly, if a number is given.

    A share (i, n) is every n-th sample from the i-th on. What is left after so many seconds is counted.
    """
    import torch

    verdict = Verdict(name)
    if op is None:
        verdict.absent = True
        return verdict
    function = function_of(name)
    if function is None:
        verdict.missing = True
        return verdict
    started = time.process_time()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.manual_seed(0)
        samples = list(op.sample_inputs("cpu", torch.float32, requires_grad=op.supports_autograd))
        if most and len(samples) > most:
            samples = samples[:: -(-len(samples) // most)]
        for number, sample in list(enumerate(samples))[share[0] :: share[1]]:
            if time.process_time() - started > seconds:
                verdict.left += 1
                continue
            label = f"{number}: {_shown(sample)}"
            try:
                wanted = op(sample.input, *sample.args, **sample.kwargs)
            except Exception:
                continue  # torch itself cannot
            try:
                complaint = _compare(name, op, function, sample, wanted, gradients)
            except (MorokError, TypeError, ValueError, IndexError, AttributeError, KeyError) as error:
                verdict.raised.append(f"{label}: {type(error).__name__}: {str(error)[:300]}")
            except Exception as error:
                verdict.raised.append(f"{label}: !{type(error).__name__}: {str(error)[:300]}")
            else:
                if complaint is None:
                    verdict.passed += 1
                else:
                    verdict.wrong.append(f"{label}: {complaint}")
    return verdict


def _shown(sample: Any) -> str:
    return ", ".join(
        [*(_brief(x) for x in (sample.input, *sample.args)),
         *(f"{key}={_brief(value)}" for key, value in sample.kwargs.items())]
    )  # fmt: skip


def _brief(x: Any) -> str:
    import torch

    if isinstance(x, torch.Tensor):
        return f"{str(x.dtype).removeprefix('torch.')}{tuple(x.shape)}"
    if isinstance(x, list | tuple):
        return "[" + ", ".join(map(_brief, x)) + "]"
    return repr(x)


# --- from torch's values to ours


def ours(x: Any, made: list[tuple[Any, Tensor]]) -> Any:
    """torch's arguments as ours; tensors are entered in `made`, beside those that they came from."""
    import torch

    if isinstance(x, torch.Tensor):
        for known, tensor in made:
            if known is x:
                return tensor
        data = x.detach()
        if data.dtype is torch.bfloat16:
            tensor = Tensor(data.float().numpy()).cast("bfloat16")
        else:
            tensor = Tensor(np.array(data.numpy()))
        if x.requires_grad:
            tensor.requires_grad_()
        made.append((x, tensor))
        return tensor
    if isinstance(x, torch.dtype):
        name = str(x).removeprefix("torch.")
        return dtype.bool_ if name == "bool" else getattr(dtype, name)
    if isinstance(x, torch.Size | tuple):
        parts = [ours(part, made) for part in x]
        return tuple(parts)
    if isinstance(x, list):
        return [ours(part, made) for part in x]
    return x


_DROPPED = ("device", "layout", "pin_memory", "memory_format", "requires_grad", "generator")


def _compare(name: str, op: Any, function: Any, sample: Any, wanted: Any, gradients: bool) -> str | None:
    import torch

    made: list[tuple[Any, Tensor]] = []
    given = ours(sample.input, made)
    args = [ours(x, made) for x in sample.args]
    kwargs = {key: ours(x, made) for key, x in sample.kwargs.items() if key not in _DROPPED}
    got = function(given, *args, **kwargs)
    mine, theirs = list(_leaves(got)), list(_leaves(wanted))
    mine = [x for x in mine if x is not None]
    if len(mine) != len(theirs):
        return f"{len(mine)} results, not {len(theirs)}"
    freely = name in RANDOM or (
        name in DROPS and 0.5 in [v for v in (*args, *kwargs.values()) if isinstance(v, float)]
    )
    if sample.output_process_fn_grad is not None and not freely:
        got, wanted = _processed(sample, got), sample.output_process_fn_grad(wanted)
        mine, theirs = [x for x in _leaves(got) if x is not None], list(_leaves(wanted))
    for number, (a, b) in enumerate(zip(mine, theirs, strict=True)):
        complaint = _differs(a, b, freely)
        if complaint is not None:
            return f"result {number}: {complaint}"
    if not gradients or not op.supports_autograd or freely:
        return None
    pairs = [(x, t) for x, t in made if x.requires_grad]
    return _gradients(name, pairs, mine, theirs) if pairs and torch.is_grad_enabled() else None


def _processed(sample: Any, got: Any) -> Any:
    """What torch looks at of a result that is not unique; its own function, on our tensors."""
    return sample.output_process_fn_grad(got)


def _leaves(x: Any) -> Iterator[Any]:
    if isinstance(x, list | tuple):
        for part in x:
            yield from _leaves(part)
    else:
        yield x


def _array(x: Any) -> Any:
    import torch

    if isinstance(x, Tensor):
        return x.numpy()
    if isinstance(x, torch.Tensor):
        x = x.detach()
        return (x.float() if x.dtype is torch.bfloat16 else x).resolve_conj().resolve_neg().numpy()
    return np.asarray(x)


def _differs(mine: Any, theirs: Any, freely: bool) -> str | None:
    a, b = _array(mine), _array(theirs)
    if a.shape != b.shape:
        return f"shape {a.shape}, not {b.shape}"
    if isinstance(mine, Tensor) and _kind(a) != _kind(b):
        return f"type {a.dtype}, not {b.dtype}"
    if freely or not b.size:
        return None
    return _close(a, b, RTOL, ATOL)


def _kind(x: Any) -> str:
    return "f" if x.dtype.kind in "fV" else "i" if x.dtype.kind in "iu" else str(x.dtype.kind)


def _close(a: Any, b: Any, rtol: float, atol: float) -> str | None:
    if b.dtype.kind in "biu":
        return None if np.array_equal(a, b) else f"{_part(a)}, not {_part(b)}"
    a, b = a.astype(np.float64), b.astype(np.float64)
    finite = np.abs(b[np.isfinite(b)])
    # what cancels is as exact as what it came from
    level = atol * max(1.0, float(finite.max()) if finite.size else 1.0)
    fits = np.isclose(a, b, rtol=rtol, atol=level, equal_nan=True)
    if fits.all():
        return None
    return f"{_part(a[~fits])}, not {_part(b[~fits])} ({(~fits).sum()} of {fits.size})"


def _part(x: Any) -> str:
    return np.array2string(np.ravel(x)[:6], precision=7, separator=", ")


def _gradients(name: str, pairs: list[tuple[Any, Tensor]], mine: list[Any], theirs: list[Any]) -> str | None:
    import torch

    chosen = [
        (a, b)
        for a, b in zip(mine, theirs, strict=True)
        if isinstance(b, torch.Tensor) and b.requires_grad and b.dtype.is_floating_point
    ]
    if not chosen:
        return None
    rng = np.random.default_rng(7)
    total, loss = None, None
    for a, b in chosen:
        weight = rng.uniform(0.2, 1.0, tuple(b.shape)).astype(np.float32)
        theirs_part = (b * torch.from_numpy(weight).to(b.dtype)).sum()
        mine_part = (a * Tensor(weight).cast(a.dtype)).sum()
        total = theirs_part if total is None else total + theirs_part
        loss = mine_part if loss is None else loss + mine_part
    slopes = torch.autograd.grad(total, [x for x, _ in pairs], allow_unused=True)
    found = loss.gradient(*(t for _, t in pairs), allow_unused=True)
    for number, (slope, g) in enumerate(zip(slopes, found, strict=True)):
        a = g.numpy().astype(np.float64)
        b = np.zeros_like(a) if slope is None else _array(slope).astype(np.float64)
        if name in UNDEFINED:  # where a function is not smooth, either side will do
            continue
        if name in NORMALISED:
            likely = np.exp(_array(pairs[number][0]).astype(np.float64))
            a, b = (s - likely * s.sum(-1, keepdims=True) for s in (a, b))
        if name in TRIANGULAR:
            b = np.where(a == 0.0, 0.0, b)
        if name in SYMMETRIC and a.ndim >= 2:
            a, b = a + a.swapaxes(-1, -2), b + b.swapaxes(-1, -2)
        complaint = _close(a, b, GRADIENT_RTOL, GRADIENT_ATOL)
        if complaint is not None:
            return f"gradient {number}: {complaint}"
    return None
