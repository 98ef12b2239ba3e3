"""Stopping and going on: all that a training consists of in one file.

    save_checkpoint("run.safetensors", model, optimizer, schedule, extra={"epoch": 3})
    extra = load_checkpoint("run.safetensors", model, optimizer, schedule)

A run that is resumed computes the same bits as one that was never stopped: weights, running statistics,
averages, the number of steps, the learning rate and the place in the random numbers are all there. The file
is a safetensors file, whose texts hold what is no tensor, as JSON; nothing in it is executed.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any

from morok.errors import FormatError, MorokError
from morok.nn.module import fitting, load_state_dict, named_tensors
from morok.nn.optim import Optimizer
from morok.nn.safetensors import load_safetensors, read_metadata, save_safetensors
from morok.nn.schedules import Schedule
from morok.tensor.tensor import Tensor

Path = str | os.PathLike[str]
_KEY = "morok.checkpoint"
_MODEL, _OPTIMIZER = "model.", "optimizer."  # what names of tensors begin with


def save_checkpoint(
    path: Path,
    model: Any = None,
    optimizer: Optimizer | None = None,
    schedule: Schedule | None = None,
    rng: bool = True,
    extra: Mapping[str, Any] | None = None,
) -> None:
    """Write model, optimiser, schedule and the state of random numbers to one safetensors file.

    `extra` is anything that JSON can say: an epoch, a loss, a configuration. The file is replaced as a whole,
    or not at all.

    >>> import tempfile
    >>> path = tempfile.mkdtemp() + "/run.safetensors"
    >>> save_checkpoint(path, {"w": Tensor([1.0])}, extra={"epoch": 3})
    """
    tensors, text = training_state(model, optimizer, schedule, rng, extra)
    save_safetensors(tensors, path, {_KEY: text})


def training_state(
    model: Any,
    optimizer: Optimizer | None,
    schedule: Schedule | None,
    rng: bool,
    extra: Mapping[str, Any] | None,
) -> tuple[dict[str, Tensor], str]:
    """All that a training consists of: its tensors by name, and the rest as JSON."""
    tensors = training_tensors(model, optimizer)
    facts: dict[str, Any] = {"version": 1, "extra": dict(extra or {})}
    if model is not None:
        facts["model"] = True
    if optimizer is not None:
        state = optimizer.state_dict()
        facts["optimizer"] = {name: v for name, v in state.items() if not isinstance(v, Tensor)}
    if schedule is not None:
        facts["schedule"] = schedule.state_dict()
    if rng:
        facts["rng"] = Tensor.get_rng_state()
    try:
        return tensors, json.dumps(facts)
    except (TypeError, ValueError) as error:
        raise MorokError(f"extra has to be something that JSON can say ({error})") from None


def training_tensors(model: Any, optimizer: Optimizer | None) -> dict[str, Tensor]:
    """The tensors of a training, by their names in a checkpoint."""
    own = {} if model is None else named_tensors(model)
    averages = {} if optimizer is None else optimizer.state_dict()
    return {
        **{f"{_MODEL}{name}": t for name, t in own.items()},
        **{f"{_OPTIMIZER}{name}": t for name, t in averages.items() if isinstance(t, Tensor)},
    }


def load_checkpoint(
    path: Path,
    model: Any = None,
    optimizer: Optimizer | None = None,
    schedule: Schedule | None = None,
    rng: bool = True,
) -> dict[str, Any]:
    """Go on from what `save_checkpoint` has written; returns its `extra`.

    What is not asked for is passed over; what is asked for and not there is an error. Shapes and names are
    compared before anything is changed.

    >>> import tempfile
    >>> path = tempfile.mkdtemp() + "/run.safetensors"
    >>> save_checkpoint(path, {"w": Tensor([1.0])}, extra={"epoch": 3})
    >>> model = {"w": Tensor([0.0])}
    >>> load_checkpoint(path, model)
    {'epoch': 3}
    >>> model["w"].tolist()
    [1.0]
    """
    facts = _facts(path)
    check_parts(path, facts, model, optimizer, schedule, rng)
    found = load_safetensors(path)
    weights, averages = (_under(found, part) for part in (_MODEL, _OPTIMIZER))
    if model is not None:
        fitting(model, weights)
    if optimizer is not None:
        optimizer.load_state_dict({**facts["optimizer"], **averages})
    if model is not None:
        load_state_dict(model, weights)
    return go_on(facts, optimizer, schedule, rng)


def check_parts(
    path: Path, facts: Any, model: Any, optimizer: Optimizer | None, schedule: Schedule | None, rng: bool
) -> None:
    """An error if something is asked for that was not saved."""
    asked = {"model": model is not None, "optimizer": optimizer is not None, "schedule": schedule is not None}
    for part, wanted in {**asked, "rng": rng}.items():
        if wanted and part not in facts:
            raise MorokError(f"{os.fspath(path)} was saved without {part}")


def go_on(facts: Any, optimizer: Optimizer | None, schedule: Schedule | None, rng: bool) -> dict[str, Any]:
    """Takes up what is no tensor; returns the `extra`."""
    if schedule is not None:
        schedule.load_state_dict(facts["schedule"])
    if optimizer is not None:
        optimizer.set_learning_rates(facts["optimizer"]["lr"])  # they may have been set by hand since
    if rng:
        Tensor.set_rng_state(facts["rng"])
    return dict(facts["extra"])


def _under(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): t for name, t in tensors.items() if name.startswith(prefix)}


def _facts(path: Path) -> dict[str, Any]:
    """What the file says beside its tensors, checked as far as it is going to be believed."""
    return read_facts(path, read_metadata(path).get(_KEY))


def read_facts(path: Path, text: str | None) -> dict[str, Any]:
    """The same, of its text."""
    if text is None:
        raise FormatError(f"{os.fspath(path)} holds tensors, but was not written by save_checkpoint")
    try:
        facts = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise FormatError(f"the checkpoint {os.fspath(path)} is damaged ({error})") from None
    if not isinstance(facts, dict) or facts.get("version") != 1 or not isinstance(facts.get("extra"), dict):
        raise FormatError(f"the checkpoint {os.fspath(path)} is of a version that is not known here")
    return facts
