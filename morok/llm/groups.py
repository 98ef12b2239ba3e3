"""Matrices of safetensors whose numbers are whole ones in groups: the layouts of GPTQ and of AWQ.

A layer has `qweight`, `qzeros` and `scales`, and a number is scale · (code − zero), with one scale and one
zero for so many inputs of an output. Several codes share an int32: of neighbouring inputs with GPTQ, of
neighbouring outputs, in an order of its own, with AWQ. GPTQ's zeros are stored one less, but for those of its
second version; its groups may be named input by input (`g_idx`).

They stay packed, as blocks of 32 numbers with scale and zero as float16, which is exact for both. What does
not fit (groups of no multiple of 32, scales of another type, inputs out of order) is decoded at load.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, final

import numpy as np

from morok.errors import FormatError, UnsupportedModel
from morok.llm.as_bytes import EXACT
from morok.llm.matrix import Matrix, Plain, pack
from morok.nn.blocks import INT4_GROUPS, INT8_GROUPS
from morok.tensor.tensor import Tensor

SUFFIXES = ("qweight", "qzeros", "scales", "g_idx")
_AWQ_PLACES = (0, 4, 1, 5, 2, 6, 3, 7)  # where in a word the code of each of eight outputs is
_BLOCK = 32


@final
@dataclass(frozen=True)
class Grouped:
    """How the matrices of a folder are quantised."""

    method: str  # gptq or awq
    bits: int
    group: int  # inputs with a common scale; -1: all
    less: int  # what is added to stored zeros

    def codes(self, x: np.ndarray, along_inputs: bool) -> np.ndarray:
        """The codes in words, one by one: of inputs along the first axis, of outputs along the second."""
        each = 32 // self.bits
        places = _AWQ_PLACES if self.method == "awq" else range(each)
        shifts = np.array([self.bits * p for p in places], np.uint32)
        words, mask = x.view(np.uint32), np.uint32((1 << self.bits) - 1)
        if along_inputs:
            wide = (words[:, None, :] >> shifts[None, :, None]) & mask
            return wide.reshape(-1, x.shape[1]).astype(np.uint8)
        wide = (words[:, :, None] >> shifts) & mask
        return wide.reshape(x.shape[0], -1).astype(np.uint8)


def grouped(config: Mapping[str, Any]) -> Grouped | None:
    """What a config.json says of its matrices; None if they are plain."""
    found = config.get("quantization_config")
    if not isinstance(found, Mapping):
        return None
    method, bits = str(found.get("quant_method", "")).lower(), found.get("bits", 4)
    group = found.get("group_size", 128)
    if method not in ("gptq", "awq"):
        raise UnsupportedModel(f"config.json's quantization is {method!r}; there are gptq and awq")
    if bits not in ((4, 8) if method == "gptq" else (4,)) or not isinstance(group, int):
        raise UnsupportedModel(f"config.json's quantization has {bits!r} bits in groups of {group!r}")
    if method == "awq" and str(found.get("version", "gemm")).lower() != "gemm":
        raise UnsupportedModel(f"config.json's layout of awq is {found.get('version')!r}; there is gemm")
    second = method == "awq" or found.get("checkpoint_format") == "gptq_v2"
    return Grouped(method, bits, group, 0 if second else 1)


def matrix_of(
    how: Grouped, name: str, parts: Mapping[str, Tensor], device: str | None = None, digits: int = EXACT
) -> Matrix:
    """The matrix (outputs, inputs) of a layer."""
    missing = [s for s in SUFFIXES[:3] if s not in parts]
    if missing:
        raise FormatError(f"the model's layer {name!r} has no {missing[0]}")
    packed, stored, scales = (parts[s].numpy() for s in SUFFIXES[:3])
    if packed.dtype != np.int32 or stored.dtype != np.int32 or packed.ndim != 2 or stored.ndim != 2:
        raise FormatError(f"the model's layer {name!r} has codes that are no matrices of int32")
    codes = how.codes(packed, how.method == "gptq")
    zeros = how.codes(stored, False).astype(np.int32) + how.less
    inputs, outputs = codes.shape
    size = inputs if how.group < 1 else how.group
    groups = -(-inputs // size)
    if zeros.shape != (groups, outputs) or scales.shape != (groups, outputs):
        raise FormatError(
            f"the model's layer {name!r} has zeros of shape {zeros.shape} and scales of shape "
            f"{scales.shape}; {(groups, outputs)} is needed"
        )
    places = np.arange(inputs) // size
    named = parts["g_idx"].numpy().reshape(-1) if "g_idx" in parts else places
    if named.shape != places.shape or named.min(initial=0) < 0 or named.max(initial=0) >= groups:
        raise FormatError(f"the model's layer {name!r} names groups that do not exist")
    if size % _BLOCK or inputs % _BLOCK or scales.dtype != np.float16 or (named != places).any():
        numbers = (codes.astype(np.int32) - zeros[named]) * scales[named].astype(np.float32)
        return Plain(Tensor(np.ascontiguousarray(numbers.T.astype(np.float32)), device=device))
    first = places[::_BLOCK]
    halves = np.stack((scales[first], zeros[first].astype(np.float16)), -1)  # (blocks, outputs, 2)
    raw = codes.T.reshape(outputs, inputs // _BLOCK, _BLOCK)
    if how.bits == 4:
        raw = raw[..., :16] | raw[..., 16:] << 4
    front = np.ascontiguousarray(halves.transpose(1, 0, 2)).view(np.uint8)
    form = INT4_GROUPS if how.bits == 4 else INT8_GROUPS
    return pack(form, np.concatenate((front, raw), -1), device, digits)
