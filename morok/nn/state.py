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

from morok.errors import FormatError
from morok.nn.module import load_state_dict, named_tensors
from morok.nn.safetensors import load_safetensors, save_safetensors
from morok.tensor.tensor import Tensor

Path = str | os.PathLike[str]
__all__ = ["load", "load_state_dict", "save", "state_dict"]


def state_dict(model: Any, prefix: str = "") -> dict[str, Tensor]:
    """All tensors of a model by name, learned or not.

    >>> from morok.nn import Linear
    >>> list(state_dict(Linear(2, 3)))
    ['weight', 'bias']
    """
    return named_tensors(model, prefix)


def save(state: Mapping[str, Tensor], path: Path, metadata: Mapping[str, str] | None = None) -> None:
    """Write tensors to a safetensors file. The file is replaced as a whole, or not at all.

    >>> import tempfile
    >>> path = tempfile.mkdtemp() + "/model.safetensors"
    >>> save({"w": Tensor([1.0, 2.0])}, path)
    >>> load(path)["w"].tolist()
    [1.0, 2.0]
    """
    save_safetensors(state, path, metadata)


def load(path: Path, device: str | None = None) -> Any:
    """The tensors of a file, by its ending: .safetensors, .gguf, or PyTorch's .pt, .pth, .bin, .ckpt.

    >>> import tempfile
    >>> path = tempfile.mkdtemp() + "/model.safetensors"
    >>> save({"w": Tensor([1.0, 2.0])}, path, {"made by": "me"})
    >>> list(load(path))
    ['w']
    """
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
