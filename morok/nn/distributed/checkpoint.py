"""Checkpoints of tensors on a mesh: a safetensors file per rank, and an index that says what lies where.

Each rank writes the parts that it has, and of equal parts the first rank writes. A checkpoint is a folder
that appears under its name when all of it is there: it is whole, or not there. Loading asks only for boxes of
whole tensors, so the mesh that reads may have another shape than the one that wrote, or be a plain device.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from morok.device.base import Device
from morok.device.buffer import Buffer, bind_buffer
from morok.device.mesh.device import MeshDevice
from morok.device.mesh.memory import shards
from morok.device.mesh.world import processes, rank
from morok.device.registry import get_device
from morok.errors import FormatError, MeshError
from morok.ir.arithmetic.arrays import storage
from morok.ir.layout import Layout
from morok.ir.memory import base_of
from morok.nn.optim import Optimizer
from morok.nn.resume import check_parts, go_on, read_facts, training_state, training_tensors
from morok.nn.safetensors import load_safetensors, save_safetensors
from morok.nn.schedules import Schedule
from morok.runtime.plan import buffer_for
from morok.tensor.dtypes import as_dtype
from morok.tensor.memory.names import new_buffer
from morok.tensor.memory.states import resolve, view_of
from morok.tensor.tensor import Tensor

_INDEX = "index.json"


def _file(number: int) -> str:
    return f"rank-{number:05}.safetensors"


def save(state: Mapping[str, Tensor], path: str | os.PathLike[str]) -> None:
    """Writes tensors of any placement to a folder. All ranks call it together."""
    _save(state, path, None)


def save_checkpoint(
    path: str | os.PathLike[str],
    model: Any = None,
    optimizer: Optimizer | None = None,
    schedule: Schedule | None = None,
    rng: bool = True,
    extra: Mapping[str, Any] | None = None,
) -> None:
    """All that a training consists of, as `nn.save_checkpoint`, in a folder with a file per rank.

    A run on another mesh, of more or fewer ranks, or on one device goes on from it.

    >>> import tempfile
    >>> path = tempfile.mkdtemp() + "/run"
    >>> w = Tensor([1.0, 2.0, 3.0]).shard(morok.mesh(2, "data"), morok.P("data"))
    >>> morok.distributed.save_checkpoint(path, {"w": w}, extra={"epoch": 3})
    >>> model = {"w": Tensor([0.0, 0.0, 0.0])}
    >>> morok.distributed.load_checkpoint(path, model)
    {'epoch': 3}
    >>> model["w"].tolist()
    [1.0, 2.0, 3.0]
    """
    tensors, facts = training_state(model, optimizer, schedule, rng, extra)
    _save(tensors, path, facts)


def load_checkpoint(
    path: str | os.PathLike[str],
    model: Any = None,
    optimizer: Optimizer | None = None,
    schedule: Schedule | None = None,
    rng: bool = True,
) -> dict[str, Any]:
    """Goes on from what `save_checkpoint` has written, on any mesh; returns its `extra`."""
    folder, index = _index(path)
    facts = read_facts(path, index.get("training"))
    check_parts(path, facts, model, optimizer, schedule, rng)
    asked = [part for part, own in (("model.", model), ("optimizer.", optimizer)) if own is not None]
    entries = {name: entry for name, entry in index["tensors"].items() if name.startswith(tuple(asked))}
    _load_into(folder, entries, training_tensors(model, optimizer))
    return go_on(facts, optimizer, schedule, rng)


def _save(state: Mapping[str, Tensor], path: str | os.PathLike[str], facts: str | None) -> None:
    target = Path(path)
    saving = target.with_name(f".{target.name}.saving")
    state = {name: t.detach().contiguous() for name, t in state.items()}
    if state:
        first, *rest = state.values()
        first.realize(*rest)
    engine = _engine(state)
    if rank() == 0:
        shutil.rmtree(saving, ignore_errors=True)
        saving.mkdir(parents=True)
    if engine is not None:
        engine.barrier()
    own: dict[int, dict[str, Tensor]] = {}
    index: dict[str, Any] = {}
    for name, tensor in state.items():
        parts = _parts(name, tensor, own)
        index[name] = {"shape": list(tensor.shape), "dtype": str(tensor.dtype), "parts": parts}
    for number, tensors in own.items():
        save_safetensors(tensors, saving / _file(number))
    if engine is not None:
        engine.barrier()
    if rank() == 0:
        _write(saving / _INDEX, {"format": 1, "tensors": index, "training": facts})
        old = _before(target)
        shutil.rmtree(old, ignore_errors=True)
        if target.exists():
            os.replace(target, old)
        os.replace(saving, target)
        shutil.rmtree(old, ignore_errors=True)
    if engine is not None:
        engine.barrier()


def _before(target: Path) -> Path:
    """Where a checkpoint is for the moment in which the next one takes its name."""
    return target.with_name(f".{target.name}.old")


def _write(path: Path, index: Any) -> None:
    with open(path, "w", encoding="utf-8") as file:
        json.dump(index, file)
        file.flush()
        os.fsync(file.fileno())  # the name must not be there before the contents


def _index(path: str | os.PathLike[str]) -> tuple[Path, dict[str, Any]]:
    """The folder of a checkpoint, or of the one before if a run ended while it was replaced; its index."""
    folder = Path(path)
    if not folder.exists() and _before(folder).exists():
        folder = _before(folder)
    try:
        index = json.loads((folder / _INDEX).read_text(encoding="utf-8"))
        if index["format"] == 1 and isinstance(index["tensors"], dict):
            return folder, index
    except (OSError, ValueError, KeyError, TypeError):
        pass
    raise FormatError(f"{path} is no checkpoint: it has no whole {_INDEX}")


def _engine(state: Mapping[str, Tensor]) -> Any:
    """What ranks wait for each other by; None if there is only this process."""
    if processes() == 1:
        return None
    for tensor in state.values():
        layout = tensor.placement
        if layout is not None:
            device = get_device(layout.name)
            assert isinstance(device, MeshDevice)
            return device.engine
    raise MeshError("ranks save tensors on a mesh together, and none of these is on one")


def _memory(tensor: Tensor) -> tuple[Buffer, Layout | None]:
    buffer = buffer_for(base_of(resolve([tensor.uop])[0]))
    return buffer, tensor.placement


def _parts(name: str, tensor: Tensor, own: dict[int, dict[str, Tensor]]) -> list[dict[str, Any]]:
    """Which ranks write which boxes of a tensor; what this process has of them goes to `own`."""
    buffer, layout = _memory(tensor)
    whole = [[0, n] for n in tensor.shape]
    if layout is None:
        if rank() == 0:
            own.setdefault(0, {})[name] = tensor
        return [{"file": _file(0), "box": whole}]
    device = get_device(layout.name)
    assert isinstance(device, MeshDevice)
    local = dict(zip(device.ranks, shards(buffer, device.base, len(device.ranks)), strict=True))
    parts, seen = [], set()
    for number in range(layout.mesh.count):
        box = layout.box(number)
        limits = [[b.start, b.stop] for b in box]
        key = str(limits)
        if key in seen or any(start == stop for start, stop in limits):
            continue
        seen.add(key)
        parts.append({"file": _file(number), "box": limits})
        if number in local:
            sizes = tuple(slice(0, stop - start) for start, stop in limits)
            array = local[number].copy_out().reshape(layout.local_shape)[sizes]
            own.setdefault(number, {})[name] = Tensor(np.ascontiguousarray(array), tensor.dtype, "CPU")
    return parts


def load(path: str | os.PathLike[str], into: Mapping[str, Tensor] | None = None) -> dict[str, Tensor]:
    """What a folder holds: whole tensors, or, given tensors, what they are assigned, in their placements.

    Of tensors on a mesh every rank reads its own parts alone.
    """
    folder, index = _index(path)
    entries = index["tensors"]
    if into is None:
        files: dict[str, dict[str, Tensor]] = {}
        return {
            name: Tensor(_box(folder, files, name, entry, _all(entry)), as_dtype(entry["dtype"]))
            for name, entry in entries.items()
        }
    _load_into(folder, entries, into)
    return dict(into)


def _load_into(folder: Path, index: Mapping[str, Any], into: Mapping[str, Tensor]) -> None:
    files: dict[str, dict[str, Tensor]] = {}
    missing = sorted(into.keys() ^ index.keys())
    if missing:
        raise FormatError(f"only one of the checkpoint and the model has {', '.join(missing[:4])}")
    for name, target in into.items():  # before anything is changed
        entry = index[name]
        if tuple(entry["shape"]) != target.shape or entry["dtype"] != str(target.dtype):
            raise FormatError(
                f"{name} is {entry['dtype']} of {entry['shape']} in the checkpoint, "
                f"and {target.dtype} of {list(target.shape)} here"
            )
    for name, target in into.items():
        entry, layout = index[name], target.placement
        if layout is None:
            value = Tensor(_box(folder, files, name, entry, _all(entry)), target.dtype, target.device)
        else:
            value = _laid_out(folder, files, name, entry, target, layout)
        target.assign(value)
    if into:
        first, *rest = into.values()
        first.realize(*rest)


def _all(entry: Any) -> tuple[slice, ...]:
    return tuple(slice(0, n) for n in entry["shape"])


def _laid_out(
    folder: Path, files: dict[str, dict[str, Tensor]], name: str, entry: Any, like: Tensor, layout: Layout
) -> Tensor:
    device = get_device(layout.name)
    assert isinstance(device, MeshDevice)
    buffer = device.buffer(layout.numel, like.dtype)
    base: Device = device.base
    for number, part in zip(device.ranks, buffer.memory.parts, strict=True):
        mine = _box(folder, files, name, entry, layout.box(number))
        room = np.zeros(layout.local_shape, storage(like.dtype))
        room[tuple(slice(0, n) for n in mine.shape)] = mine
        base.allocator.copy_in(part, 0, room.reshape(-1))
    node = new_buffer(like.dtype, layout.numel, layout.name)
    bind_buffer(node, buffer)
    return Tensor._new(view_of(node, layout.shape))


def _box(
    folder: Path, files: dict[str, dict[str, Tensor]], name: str, entry: Any, wanted: tuple[slice, ...]
) -> Any:
    """A box of a whole tensor, from the parts that overlap it."""
    found: Any = None
    for part in entry["parts"]:
        overlap = [
            (max(w.start, start), min(w.stop, stop))
            for w, (start, stop) in zip(wanted, part["box"], strict=True)
        ]
        if any(low >= high for low, high in overlap):
            continue
        file = part["file"]
        if file not in files:
            files[file] = load_safetensors(folder / file, "CPU")
        array = files[file][name].numpy()
        if found is None:
            found = np.zeros([w.stop - w.start for w in wanted], array.dtype)
        here = tuple(
            slice(low - w.start, high - w.start) for (low, high), w in zip(overlap, wanted, strict=True)
        )
        there = tuple(
            slice(low - start, high - start)
            for (low, high), (start, _) in zip(overlap, part["box"], strict=True)
        )
        found[here] = array[there]
    if found is None:
        sizes = [max(w.stop - w.start, 0) for w in wanted]
        found = np.zeros(sizes, storage(as_dtype(entry["dtype"])))
    return found
