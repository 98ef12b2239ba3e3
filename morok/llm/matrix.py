"""Matrices of weights: plain numbers, or blocks that stay packed and are multiplied as they are.

A product with packed weights is one of bytes: the numbers on the left become integers of 24 bits, 32 of them
with a common scale, and each integer three signed bytes. Products of bytes and sums of four of them are one
instruction (DOT4), and no sum rounds before the codes of a group are through. So the result is as good as
float32 (the last bit of the largest number of 32 is the first that is lost), for less than half of the
instructions. Where groups have whole factors, all numbers of a block have a common scale on processors and
for several rows on a grid's units, and sums round once for a block (the last bit of the largest of 256).
Where codes times factors are below 2¹⁰ these units multiply them as float16, and numbers on the left are two
of them. With one byte instead of three, `activations="q8"`, it is what others call Q8 activations.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import final

import numpy as np

from morok import dtype as dt
from morok.ir.node import alu
from morok.ir.ops import Ops
from morok.llm.as_bytes import (
    EXACT,
    Q8,
    SCALED,
    SUM_SHIFT,
    in_bytes,
    in_bytes_at_once,
    in_halves_at_once,
)
from morok.llm.words import LANES, WORD_FORMATS, Stored, WordFormat, WordPart
from morok.machine.devices import machine_of
from morok.machine.machine import Machine
from morok.nn.blocks import BlockFormat
from morok.tensor.calls.record import repeated
from morok.tensor.core import operand, require_shape
from morok.tensor.elementwise.arithmetic import binary
from morok.tensor.sizes import broadcast_shapes, concrete
from morok.tensor.tensor import Tensor

FEW_ROWS = 16  # rows on the left that are multiplied as bytes; for more the matrix is decoded first
PANEL = (8, 4, 2, 1)  # sixteens of rows that are decoded side by side
SUBNORMAL = 1024  # from here on whole numbers are no subnormal float16
_IN_HALVES = 0x00FF00FF  # the first and the third byte
MOST_GROUPS = 8  # of a block, whose sums of whole numbers a grid's kernel has all written out


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
        wide = self.numbers.cast(dt.float32).T
        rows = concrete(x.shape[0])
        if (
            rows == 1
            or self.numbers.dtype is not dt.bfloat16
            or not machine_of(self.numbers.device).matrix_units
        ):
            return x @ wide
        found = (_in_bfloat16(x).cast(dt.float32) @ wide).contiguous()
        return found.reshape(3, rows, -1).sum(0)

    def rows(self, places: Tensor) -> Tensor:
        """Some of the rows, in float32."""
        return self.numbers.embedding(places).cast(dt.float32)


@final
@dataclass(frozen=True)
class Packed:
    """A matrix of blocks, in words and lanes."""

    form: WordFormat
    stored: Stored
    count: int  # of rows; the last lanes may be empty
    digits: int = EXACT

    @property
    def shape(self) -> tuple[int, int]:
        return self.count, concrete(self.stored.words.shape[1]) * self.form.block.numbers

    @property
    def nbytes(self) -> int:
        rows, columns = self.shape
        return -(-rows // LANES) * LANES * columns // self.form.block.numbers * self.form.block.bytes

    @property
    def _machine(self) -> Machine:
        return machine_of(self.stored.words.device)

    def product(self, x: Tensor) -> Tensor:
        """x · matrixᵀ: (n, columns) → (n, rows)."""
        s = self.stored
        return _times_packed(x, s.words, s.halves, s.bytes, self.form.block.name, self.count, self.digits)

    def _product(self, x: Tensor) -> Tensor:
        found = self._small(x) if concrete(x.shape[0]) <= FEW_ROWS else self._large(x)
        return found if self.count == concrete(found.shape[1]) else found[:, : self.count]

    def rows(self, places: Tensor) -> Tensor:
        """Some of the rows, in float32."""
        return self.form.rows_of(self.stored, places)

    def _small(self, x: Tensor) -> Tensor:
        """Bytes by bytes; scales multiply the sums of groups."""
        rows, block = concrete(x.shape[0]), self.form.block
        parts, on_grid = self.form.parts(self.stored), bool(self._machine.block_threads)
        few = block.numbers // block.shape[-1] <= MOST_GROUPS
        on_units = on_grid and few and any(rows % unit.n == 0 for unit in self._machine.word_units)
        if on_units and self.digits == EXACT and self.form.minima and parts[0].largest < SUBNORMAL:
            found = self._in_halves(parts, x).sum(2)
            return found.transpose(0, 1).reshape(rows, -1)
        whole = parts[0].factor is not None and (on_units or not on_grid)
        scaled = block.numbers if whole else SCALED
        if on_grid:
            run = block.shape[-1] if parts[0].offset is not None else 0
            words, scales, sums = in_bytes_at_once(x, self.digits, run, block.numbers, scaled)
            each = 0 if sums is None else concrete(x.shape[1]) // concrete(sums.shape[1])
            totals = [] if sums is None else [t[..., 0] for t in _select(sums, block, each)]
        else:
            words, scales = in_bytes(x, self.digits, scaled, self.stored.words.device)
            totals = [t.sum(-1) for t in block.select(x, 1)]
        left = _select(words, block, 4)  # (n, digits, blocks, groups, words) for each part
        if whole and on_units:
            parts, left, totals = _by_group(parts, left, totals)
            value = self._with_factors(parts, left, scales)
            value = value + _least_of_blocks(parts, totals) if totals else value
        elif parts[0].factor is not None and on_grid:  # which turns sums to floats as fast as it multiplies
            value = self._by_block(parts, left, scales, totals)
        else:
            value = self._with_factors(parts, left, scales) if whole else self._by_scale(parts, left, scales)
            for total, offset in _offsets(parts, totals):
                term = offset.unsqueeze(1) * _across(total if on_grid else total.contiguous())
                value = value + (term.sum(tuple(range(3, len(term.shape) - 1))) if whole else term)
        found = value.sum(tuple(range(2, len(value.shape) - 1)))  # (rows / LANES, n, LANES)
        if rows == 1:
            return found.reshape(1, -1)
        if on_grid:  # which writes anywhere as fast
            return found.transpose(0, 1).reshape(rows, -1)
        return found.contiguous().transpose(0, 1).reshape(rows, -1)

    def _in_halves(self, parts: tuple[WordPart, ...], x: Tensor) -> Tensor:
        """Codes times the factors of their groups are float16 without being converted: subnormal ones, 2²⁴
        times less. So units add up all of a block, and what has groups in common comes once:
        (rows / LANES, n, blocks, LANES)."""
        block = self.form.block
        assert self.form.minima is not None and parts[0].least is not None
        words, scales, sums = in_halves_at_once(x, block.shape[-1], block.numbers)
        products = []
        for part, left in zip(parts, _select(words, block, 4), strict=True):
            assert part.factor is not None
            for place in np.ndindex(*map(concrete, part.words.shape[2:-2])):
                here = tuple(slice(i, i + 1) for i in place)
                codes, mine = part.words[:, :, *here], left[:, :, :, :, *here]
                factor = part.factor[:, :, *here].unsqueeze(-2)
                for odd in (0, 1):
                    pairs = ((codes >> 8 * odd) & _IN_HALVES) * factor
                    products += [_products(pairs, mine[:, odd, piece]) for piece in (0, 1)]
        total = _of_blocks(sum(products[1:], products[0]).sum(-2))
        totals = sums.reshape(*scales.shape, -1)
        groups = concrete(totals.shape[-1])
        upper = (Tensor.arange(groups, device=x.device) >= groups // 2).reshape(groups, 1)
        minima = [_for_all(t, concrete(x.shape[0])) for t in self.form.minima(self.stored)]
        twice = upper.where(minima[1], minima[0]).cast(dt.int32) * 0x10001
        least = binary(twice.bitcast(dt.float32), Ops.DOT2, _across(totals)).sum(-2)
        scale, offset = (_of_blocks(t.unsqueeze(1)) for t in (parts[0].scale, parts[0].least[0]))
        common = _across(scales)
        return total * (common * (scale * 2.0**24)) + least * (common * (offset * (2.0**24 * SUM_SHIFT)))

    def _by_scale(self, parts: tuple[WordPart, ...], left: list[Tensor], scales: Tensor) -> Tensor:
        """Every group has a scale of its own: (rows / LANES, n, blocks, groups, LANES)."""
        factors, on_grid = self._scales_of_groups(scales), bool(self._machine.block_threads)
        total: Tensor | None = None
        for together in _same_scale(parts):
            found = [_sum_of_products(together, left, digit) for digit in range(self.digits)]
            first, part = together[0]
            term = _joined(found, at_once=on_grid) * _across(factors[first][..., 0]) * part.scale.unsqueeze(1)
            total = term if total is None else total + term
        assert total is not None
        return total

    def _by_block(
        self, parts: tuple[WordPart, ...], left: list[Tensor], scales: Tensor, totals: list[Tensor]
    ) -> Tensor:
        """Whole factors of groups multiply the scales of the numbers on the left, and what a block has in
        common comes last: (rows / LANES, n, blocks, groups, LANES)."""
        factors = self._scales_of_groups(scales)
        value: Tensor | None = None
        for at, part in enumerate(parts):
            assert part.factor is not None
            found = [_sum_of_products([(at, part)], left, digit) for digit in range(self.digits)]
            factor = _across(factors[at][..., 0]) * part.factor.cast(dt.float32).unsqueeze(1)
            value = _plus_product(_joined(found, at_once=True), factor, value)
        assert value is not None
        value = value * parts[0].scale.unsqueeze(1)
        if not totals:
            return value
        offset: Tensor | None = None
        for total, part in zip(totals, parts, strict=True):
            assert part.least is not None
            offset = _plus_product(part.least[1].unsqueeze(1), _across(total), offset)
        assert offset is not None and parts[0].least is not None
        return value + offset * parts[0].least[0].unsqueeze(1)

    def _scales_of_groups(self, scales: Tensor) -> list[Tensor]:
        """The scales of the numbers on the left, as groups have them."""
        twice = scales.unsqueeze(-1).expand(*scales.shape, 2).reshape(scales.shape[0], -1)
        return _select(twice, self.form.block, SCALED // 2)

    def _with_factors(self, parts: tuple[WordPart, ...], left: list[Tensor], scales: Tensor) -> Tensor:
        """Groups have whole factors, and blocks a scale: (rows / LANES, n, blocks, LANES)."""
        found = []
        for digit in range(self.digits):
            total: Tensor | None = None
            for at, part in enumerate(parts):
                assert part.factor is not None
                term = _sum_of_products([(at, part)], left, digit) * part.factor.unsqueeze(1)
                term = term.sum(tuple(range(3, len(term.shape) - 1)), dtype=dt.int32)
                total = term if total is None else total + term
            assert total is not None
            found.append(total)
        scale = parts[0].scale
        flat = scale.reshape(scale.shape[0], scale.shape[1], scale.shape[-1]).unsqueeze(1)
        return _joined(found, wide=True) * _across(scales) * flat

    def _large(self, x: Tensor) -> Tensor:
        """The numbers of each part as a matrix (columns, rows) of its own, which is multiplied then. A
        processor writes it panel by panel, in the order in which the blocks lie in memory."""
        if not self._machine.block_threads:
            return self._panels(x)
        total: Tensor | None = None
        count = concrete(self.stored.words.shape[0]) * LANES
        for part, place in zip(self.form.parts(self.stored), self.form.block.select(x, 1), strict=True):
            values = part.values()
            inner = tuple(range(1, len(values.shape) - 1))
            matrix = values.permute(*inner, 0, len(values.shape) - 1).reshape(-1, count).contiguous()
            found = place.reshape(x.shape[0], -1) @ matrix
            total = found if total is None else total + found
        assert total is not None
        return total

    def _panels(self, x: Tensor) -> Tensor:
        """(panels, columns, rows of a panel), times all of x."""
        rows, strips = concrete(x.shape[0]), concrete(self.stored.words.shape[0])
        each = next(n for n in PANEL if strips % n == 0)
        total: Tensor | None = None
        for part, place in zip(self.form.parts(self.stored), self.form.block.select(x, 1), strict=True):
            values = part.values().reshape(strips // each, each, -1, LANES)
            panels = values.transpose(1, 2).reshape(strips // each, -1, each * LANES).contiguous()
            found = place.reshape(rows, -1).contiguous() @ panels
            total = found if total is None else total + found
        assert total is not None
        return total.contiguous().transpose(0, 1).reshape(rows, -1)


@repeated(1)
def _times_packed(
    x: Tensor, words: Tensor, halves: Tensor | None, small: Tensor | None, name: str, count: int, digits: int
) -> Tensor:
    """A product, traced once for all matrices of one shape and format: models repeat their layers."""
    return Packed(WORD_FORMATS[name], Stored(halves, small, words), count, digits)._product(x)


Matrix = Plain | Packed


@final
@dataclass(frozen=True)
class Stack:
    """Matrices of one shape, as one with an axis before its own. Of those that are named when it runs nothing
    but what is multiplied is read."""

    all: Matrix
    count: int
    shape: tuple[int, int]  # of one

    def at(self, place: int | Tensor) -> Matrix:
        """The matrix at a place that is known, or that a tensor without axes has."""
        if isinstance(self.all, Plain):
            return Plain(self.all.numbers[place])
        s = self.all.stored
        halves, small = (None if x is None else x[place] for x in (s.halves, s.bytes))
        return replace(self.all, stored=Stored(halves, small, s.words[place]))


def stacked(matrices: Sequence[Plain]) -> Stack:
    """Plain matrices one after the other."""
    together = Tensor.stack(*(m.numbers for m in matrices)).contiguous().realize()
    return Stack(Plain(together), len(matrices), matrices[0].shape)


def below_each_other(matrices: Sequence[Matrix]) -> Plain | None:
    """The rows of plain matrices in a grid's memory as those of one; None where they are anything else."""
    plain = [m.numbers for m in matrices if isinstance(m, Plain)]
    same = len({(x.dtype, x.device) for x in plain}) == 1
    if len(plain) < len(matrices) or not same or not machine_of(plain[0].device).block_threads:
        return None
    return Plain(Tensor.cat(*plain).contiguous().realize())


def _in_bfloat16(x: Tensor) -> Tensor:
    """Numbers as sums of three of bfloat16, all first ones before all second ones: matrix units multiply
    these, and nothing is lost."""
    first = x.cast(dt.bfloat16)
    rest = x - first.cast(dt.float32)
    second = rest.cast(dt.bfloat16)
    third = (rest - second.cast(dt.float32)).cast(dt.bfloat16)
    return Tensor.cat(first, second, third, dim=0).contiguous()


def _select(x: Tensor, block: BlockFormat, each: int) -> list[Tensor]:
    """The last axis, of which an element stands for some numbers, as blocks and groups, one tensor per part:
    (…, blocks, groups, elements)."""
    shape = (*block.shape[:-1], block.shape[-1] // each)
    front = tuple(x.shape[:-1])
    found = [x.reshape(*front, concrete(x.shape[-1]) * each // block.numbers, *shape)]
    for at in sorted(block.apart, reverse=True):
        place = len(front) + 1 + at
        found = [t.narrow(place, i, 1).squeeze(place) for i in range(shape[at]) for t in found]
    return found


def _by_group(
    parts: tuple[WordPart, ...], left: list[Tensor], totals: list[Tensor]
) -> tuple[tuple[WordPart, ...], list[Tensor], list[Tensor]]:
    """Every group as a part of its own: what multiplies it is used in one place of a kernel."""
    found, others, sums = [], [], []
    for at, part in enumerate(parts):
        assert part.factor is not None
        for place in np.ndindex(*map(concrete, part.words.shape[2:-2])):
            here = tuple(slice(i, i + 1) for i in place)
            least = None if part.least is None else (part.least[0], part.least[1][:, :, *here])
            words, factor = part.words[:, :, *here], part.factor[:, :, *here]
            found.append(replace(part, words=words, factor=factor, least=least))
            others.append(left[at][:, :, :, *here])
            if totals:
                sums.append(totals[at][:, :, *here])
    return tuple(found), others, sums


def _least_of_blocks(parts: tuple[WordPart, ...], totals: list[Tensor]) -> Tensor:
    """What offsets add for the sums of groups that are parts: (rows / LANES, n, blocks, LANES)."""
    offset: Tensor | None = None
    for total, part in zip(totals, parts, strict=True):
        assert part.least is not None
        offset = _plus_product(part.least[1].unsqueeze(1), _across(total), offset)
    assert offset is not None and parts[0].least is not None
    least = parts[0].least[0]
    found = offset.sum(tuple(range(3, len(offset.shape) - 1)))
    return found * least.reshape(least.shape[0], least.shape[1], least.shape[-1]).unsqueeze(1)


def _across(x: Tensor) -> Tensor:
    """Numbers (n, blocks, groups) for all rows and lanes: (1, n, blocks, groups, 1)."""
    return x.unsqueeze(0).unsqueeze(-1)


def _sum_of_products(parts: list[tuple[int, WordPart]], left: list[Tensor], digit: int) -> Tensor:
    """Σ over the words of groups of one digit's products: int32 (rows / LANES, n, blocks, groups, LANES)."""
    products = [binary(part.words.unsqueeze(1), Ops.DOT4, _across(left[at][:, digit])) for at, part in parts]
    return sum(products[1:], products[0]).sum(-2, dtype=dt.int32)


def _products(pairs: Tensor, left: Tensor) -> Tensor:
    """Words of two float16, (rows / LANES, blocks, …, words, LANES), times those of (n, blocks, …, words)."""
    return binary(pairs.bitcast(dt.float32).unsqueeze(1), Ops.DOT2, _across(left))


def _for_all(x: Tensor, rows: int) -> Tensor:
    """Of each row on the left: (rows / LANES, n, …)."""
    return x.unsqueeze(1).expand(x.shape[0], rows, *x.shape[1:])


def _of_blocks(x: Tensor) -> Tensor:
    """Without axes of groups: (rows / LANES, n, blocks, LANES)."""
    return x.reshape(*x.shape[:3], x.shape[-1])


def _joined(found: list[Tensor], wide: bool = False, at_once: bool = False) -> Tensor:
    """Sums of digits as one number each. The lower two fit an integer together, unless they are wide. The
    upper ones times a power of two are exact, so they may be multiplied and added at once."""
    if len(found) == Q8:
        return found[0].cast(dt.float32)
    low, middle, high = found
    if wide:
        return high.cast(dt.float32) * 65536.0 + (middle.cast(dt.float32) * 256.0 + low.cast(dt.float32))
    upper, lower = high.cast(dt.float32), (middle * 256 + low).cast(dt.float32)
    if at_once:
        return _plus_product(upper, Tensor.full((1,), 65536.0, device=upper.device), lower)
    return upper * 65536.0 + lower


def _plus_product(x: Tensor, y: Tensor, z: Tensor | None) -> Tensor:
    """x · y + z with one rounding, or x · y."""
    if z is None:
        return x * y
    sizes = broadcast_shapes(*map(require_shape, (x.uop, y.uop, z.uop)))
    return x._new(alu(Ops.MULACC, *(operand(t.uop, sizes) for t in (x, y, z))))


def _same_scale(parts: tuple[WordPart, ...]) -> list[list[tuple[int, WordPart]]]:
    """Parts whose numbers have the same scale and offset, together, with their places."""
    found: dict[tuple[int, int], list[tuple[int, WordPart]]] = {}
    for at, part in enumerate(parts):
        found.setdefault((id(part.scale), id(part.offset)), []).append((at, part))
    return list(found.values())


def _offsets(parts: tuple[WordPart, ...], totals: list[Tensor]) -> list[tuple[Tensor, Tensor]]:
    """The sums of the numbers on the left that each offset of groups multiplies, and that offset."""
    found = []
    for together in _same_scale(parts):
        first, part = together[0]
        if part.offset is not None:
            found.append((sum((totals[at] for at, _ in together[1:]), totals[first]), part.offset))
    return found


def pack(form: BlockFormat, raw: np.ndarray, device: str | None = None, digits: int = EXACT) -> Packed:
    """Blocks (rows, blocks of a row, bytes) in lanes."""
    rows, blocks, width = raw.shape
    if rows % LANES:
        empty = np.zeros((-rows % LANES, blocks, width), np.uint8)
        raw = np.concatenate((raw, empty))
    words = WORD_FORMATS[form.name]
    return Packed(words, words.store(raw, device), rows, digits)


def pack_stack(form: BlockFormat, raw: np.ndarray, device: str | None = None, digits: int = EXACT) -> Stack:
    """Blocks (matrices, rows, blocks of a row, bytes), each matrix in lanes of its own."""
    count, rows, blocks, width = raw.shape
    if rows % LANES:
        raw = np.concatenate((raw, np.zeros((count, -rows % LANES, blocks, width), np.uint8)), 1)
    whole = pack(form, raw.reshape(-1, blocks, width), device, digits)

    def cut(x: Tensor | None) -> Tensor | None:
        return None if x is None else x.reshape(count, -1, *x.shape[1:])

    s = whole.stored
    words = cut(s.words)
    assert words is not None
    found = replace(whole, stored=Stored(cut(s.halves), cut(s.bytes), words), count=rows)
    return Stack(found, count, (rows, blocks * form.numbers))
