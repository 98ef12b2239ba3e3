"""A model's state: names and tensors, to and from files.

    save(state_dict(model), "model.safetensors")
    load_state_dict(model, load("model.safetensors"))

Files are mapped, not read: a tensor's bytes come in when a kernel touches them. Whatever a file says about
itself is checked before it is believed.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from morok.errors import FormatError, MorokError, ShapeError
from morok.ir.infer import show_shape
from morok.nn.module import named_tensors
from morok.nn.safetensors import load_safetensors, save_safetensors
from morok.tensor.tensor import Tensor

Path = str | os.PathLike[str]
_LATER = ("num_batches_tracked",)  # what files that were written earlier do not have


def state_dict(model: Any, prefix: str = "") -> dict[str, Tensor]:
    """All tensors of a model by name, learned or not.

    >>> from morok.nn import Linear
    >>> list(state_dict(Linear(2, 3)))
    ['weight', 'bias']
    """
    return named_tensors(model, prefix)


def load_state_dict(model: Any, state: Mapping[str, Tensor], strict: bool = True) -> None:
    """Overwrite a model's tensors with those of the same names; types are converted, shapes must fit.

    Unless `strict`, names that only one side has are passed over. Nothing is changed if something is wrong.
    """
    own, names = fitting(model, state, strict)
    for name in names:
        own[name].assign(state[name].detach().to(own[name].device))
    if names:
        own[names[0]].realize(*(own[name] for name in names[1:]))


def fitting(
    model: Any, state: Mapping[str, Tensor], strict: bool = True
) -> tuple[dict[str, Tensor], list[str]]:
    """A model's tensors, and the names of those that a state has too; an error if the two do not fit."""
    own = named_tensors(model)
    missing, unknown = sorted(own.keys() - state.keys()), sorted(state.keys() - own.keys())
    missing = [name for name in missing if name.rpartition(".")[2] not in _LATER]
    if strict and (missing or unknown):
        parts = [f"no {_listed(missing)}"] * bool(missing) + [f"unknown {_listed(unknown)}"] * bool(unknown)
        raise MorokError(f"the state does not fit the model: {' and '.join(parts)}")
    names = [name for name in own if name in state]
    for name in names:
        if own[name].shape != state[name].shape:
            raise ShapeError(
                f"{name} has shape {show_shape(own[name].shape)} in the model and "
                f"{show_shape(state[name].shape)} in the state"
            )
    return own, names


def _listed(names: list[str]) -> str:
    shown = ", ".join(names[:4])
    return shown if len(names) <= 4 else f"{shown} and {len(names) - 4} more"


def save(state: Mapping[str, Tensor], path: Path, metadata: Mapping[str, str] | None = None) -> None:
    """Write tensors to a safetensors file. The file is replaced as a whole, or not at all."""
    save_safetensors(state, path, metadata)


def load(path: Path, device: str | None = None) -> Any:
    """The tensors of a file, by its ending: .safetensors, .gguf, or PyTorch's .pt, .pth, .bin, .ckpt."""
    ending = os.path.splitext(os.fspath(path))[1].lower()
    if ending == ".safetensors":
        return load_safetensors(path, device)
    if ending == ".gguf":
        from morok.nn.gguf import load_gguf

        return load_gguf(path, device)[0]
    if ending in (".pt", ".pth", ".bin", ".ckpt"):
        from morok.nn.checkpoint import load_checkpoint

        return load_checkpoint(path, device)
    raise FormatError(
        f"{path} is not a kind of file that holds tensors: .safetensors, .gguf, .pt, .pth, .bin"
    )
