"""Matrices of weights: plain numbers, or blocks that stay packed and are decoded inside of the products.

Rows of a packed matrix lie side by side, sixteen at a time, byte by byte: (rows / 16, blocks, bytes, 16). A
vector of bytes then holds the same byte of sixteen rows, so decoding needs no shuffles, and each lane of the
sums belongs to one row. The blocks are put in that order once, when a model is loaded.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import final

import numpy as np

from morok import dtype as dt
from morok.nn.blocks import BlockFormat, Part
from morok.tensor.sizes import concrete
from morok.tensor.tensor import Tensor

LANES = 16
FEW_ROWS = (
    4  # rows on the left that are multiplied while blocks are decoded; for more the matrix is decoded first
)


@final
@dataclass(frozen=True)
class Plain:
    """A matrix (rows, columns) of numbers of any float type; products are in float32."""

    numbers: Tensor

    @property
    def shape(self) -> tuple[int, int]:
        rows, columns = map(concrete, self.numbers.shape)
        return rows, columns

    @property
    def nbytes(self) -> int:
        return self.shape[0] * self.shape[1] * int(self.numbers.dtype.itemsize)

    def product(self, x: Tensor) -> Tensor:
        """x · matrixᵀ: (n, columns) → (n, rows)."""
        return x @ self.numbers.cast(dt.float32).T

    def rows(self, places: Tensor) -> Tensor:
        """Some of the rows, in float32."""
        return self.numbers.embedding(places).cast(dt.float32)


@final
@dataclass(frozen=True)
class Packed:
    """A matrix of blocks, in lanes."""

    form: BlockFormat
    blocks: Tensor  # (rows / LANES, blocks, bytes, LANES)
    count: int  # of rows; the last lanes may be empty

    @property
    def shape(self) -> tuple[int, int]:
        return self.count, concrete(self.blocks.shape[1]) * self.form.numbers

    @property
    def nbytes(self) -> int:
        return math.prod(map(concrete, self.blocks.shape))

    def product(self, x: Tensor) -> Tensor:
        """x · matrixᵀ: (n, columns) → (n, rows)."""
        found = self._small(x) if concrete(x.shape[0]) <= FEW_ROWS else self._large(x)
        return found if self.count == concrete(found.shape[1]) else found[:, : self.count]

    def rows(self, places: Tensor) -> Tensor:
        """Some of the rows, in float32."""
        lanes = self.blocks.permute(0, 3, 1, 2).reshape(-1, *self.blocks.shape[1:3])
        found = self.form.decode(lanes[places].contiguous().unsqueeze(3))
        return found.reshape(places.shape[0], self.shape[1])

    def _small(self, x: Tensor) -> Tensor:
        """Codes are summed first, and scales multiply the sums of groups."""
        rows, places = concrete(x.shape[0]), self.form.select(x, 1)
        total: Tensor | None = None
        for parts in _by_scale(self.form.parts(self.blocks), places):
            products = [p.codes.unsqueeze(0) * at.unsqueeze(1).unsqueeze(-1) for p, at in parts]
            inner = sum(products[1:], products[0]).sum(-2)
            part = parts[0][0]
            term = inner * part.scale.squeeze(-2).unsqueeze(0)
            if part.offset is not None:
                sums = sum((at for _, at in parts[1:]), parts[0][1]).sum(-1).contiguous()
                term = term + part.offset.squeeze(-2).unsqueeze(0) * sums.unsqueeze(1).unsqueeze(-1)
            total = term if total is None else total + term
        assert total is not None
        return total.sum(tuple(range(2, len(total.shape) - 1))).reshape(rows, -1)

    def _large(self, x: Tensor) -> Tensor:
        """The numbers of each part as a matrix (columns, rows) of its own, which is multiplied then."""
        total: Tensor | None = None
        count = concrete(self.blocks.shape[0]) * LANES
        for part, place in zip(self.form.parts(self.blocks), self.form.select(x, 1), strict=True):
            values = part.values()
            inner = tuple(range(1, len(values.shape) - 1))
            matrix = values.permute(*inner, 0, len(values.shape) - 1).reshape(-1, count).contiguous()
            found = place.reshape(x.shape[0], -1) @ matrix
            total = found if total is None else total + found
        assert total is not None
        return total


Matrix = Plain | Packed


def _by_scale(parts: tuple[Part, ...], places: list[Tensor]) -> list[list[tuple[Part, Tensor]]]:
    """Parts whose numbers have the same scale and offset, together."""
    found: dict[tuple[int, int], list[tuple[Part, Tensor]]] = {}
    for part, place in zip(parts, places, strict=True):
        found.setdefault((id(part.scale), id(part.offset)), []).append((part, place))
    return list(found.values())


def pack(form: BlockFormat, raw: np.ndarray, device: str | None = None) -> Packed:
    """Blocks (rows, blocks of a row, bytes) in lanes."""
    rows, blocks, width = raw.shape
    if rows % LANES:
        empty = np.zeros((-rows % LANES, blocks, width), np.uint8)
        raw = np.concatenate((raw, empty))
    lanes = raw.reshape(-1, LANES, blocks, width).transpose(0, 2, 3, 1)
    return Packed(form, Tensor(np.ascontiguousarray(lanes), device=device), rows)
