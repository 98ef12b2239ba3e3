"""Numbers on the left of a product with packed weights: integers of a few signed bytes with common scales.

An integer of 24 bits is three signed bytes, and so many numbers have a common scale. Four bytes of the same
value of four numbers are a word, of which DOT4 multiplies two.
"""

from __future__ import annotations

from morok import dtype as dt
from morok.tensor.sizes import concrete
from morok.tensor.tensor import Tensor

SCALED = 32  # numbers on the left that have a common scale
EXACT, Q8 = 3, 1  # bytes of a number on the left
_LARGEST = {EXACT: 8_350_000.0, Q8: 127.0}  # which the bytes can hold
SUM_SHIFT = 64.0  # by which sums of numbers are less, so that float16 holds those of 32
_HALF_TOP = 2.0**14  # what the largest number of a block becomes, at least, and less than twice that
_EXPONENT = 0x7F800000
_LEAST = 1e-30  # of the largest of 32 numbers: below, a scale could not be inverted


def in_bytes(
    x: Tensor, digits: int, scaled: int = SCALED, device: str | None = None
) -> tuple[Tensor, Tensor]:
    """Rows of numbers as words of four signed bytes, (n, digits, numbers / 4), and the scales of so many
    numbers each, (n, numbers / scaled). The first digit has the lowest value.

    With 128 added to each byte all borrowing between bytes is done, and turning their top bits takes it off.
    """
    rows, columns = concrete(x.shape[0]), concrete(x.shape[1])
    largest, turn = _LARGEST[digits], _turn(digits)
    wide = x.reshape(rows, columns // scaled, scaled)
    top = wide.abs().max(-1, keepdim=True).maximum(_LEAST).contiguous()
    whole = _whole(wide * (largest / top), turn)
    places = Tensor.arange(digits, device=x.device if device is None else device)
    shifts = (places * 8).cast(dt.int32).reshape(digits, 1, 1)
    four = (whole.reshape(rows, 1, columns // 4, 4) >> shifts) & 255
    return _word([four[..., i] for i in range(4)]).contiguous(), top.squeeze(-1) * (1 / largest)


def in_bytes_at_once(
    x: Tensor, digits: int, run: int, block: int, scaled: int = SCALED
) -> tuple[Tensor, Tensor, Tensor | None]:
    """The same for a grid, with the sums of so many numbers each, or none, at every word of them.

    It is one kernel, since starting another takes longer than all of it: a thread has four numbers, others
    tell it the largest and what numbers add up to, and it writes all that is made of its four. Words, scales
    and sums are in one memory, so that whatever makes the numbers is computed once."""
    rows, columns, each = concrete(x.shape[0]), concrete(x.shape[1]), SCALED // 4
    largest, turn = _LARGEST[digits], _turn(digits)
    wide = x.reshape(rows, columns // scaled, scaled // SCALED, each, 4)
    four = [wide[..., i] for i in range(4)]
    a, b, c, d = (t.abs() for t in four)
    top = a.maximum(b).maximum(c.maximum(d)).max((-1, -2), keepdim=True).maximum(_LEAST)
    whole = [_whole(t * (largest / top), turn) for t in four]
    found = [_word([(t >> 8 * i) & 255 for t in whole]) for i in range(digits)]
    found.append((top * (1 / largest)).expand(*found[0].shape).bitcast(dt.int32))
    if run:
        total = (four[0] + four[1]) + (four[2] + four[3])
        found.append(_sums(total, run // 4).expand(*found[0].shape).bitcast(dt.int32))
    together = _stored(Tensor.stack(*found, dim=1), block)
    words = together[:, :digits].reshape(rows, digits, -1)
    scales = together[:, digits, :, 0, 0].bitcast(dt.float32)
    sums = together[:, digits + 1].bitcast(dt.float32).reshape(rows, -1) if run else None
    return words, scales, sums


def in_halves_at_once(x: Tensor, run: int, block: int) -> tuple[Tensor, Tensor, Tensor]:
    """Rows of numbers as pairs of float16, which add up to them but for a last bit.

    Words are (n, 2, 2, numbers / 4), two float16 each, as the bits of a float32: of the first and the
    third of four numbers, or of the others; and of these what is large, or what is left. Then the scale of
    each block, and the sums of so many numbers each, whose word is a pair.

    A scale is a power of two, so only what is far below the largest number of a block loses bits, and that is
    less than 2⁻³⁸ of it. Again it is one kernel."""
    rows, columns, each = concrete(x.shape[0]), concrete(x.shape[1]), SCALED // 4
    wide = x.reshape(rows, columns // block, block // SCALED, each, 4)
    four = [wide[..., i] for i in range(4)]
    a, b, c, d = (t.abs() for t in four)
    top = a.maximum(b).maximum(c.maximum(d)).max((-1, -2), keepdim=True).maximum(_LEAST)
    power = (top.bitcast(dt.int32) & _EXPONENT).bitcast(dt.float32)
    up, down = _HALF_TOP / power, power * (1 / _HALF_TOP)
    pieces = [_in_two(t * up) for t in four]
    found = [_pair(pieces[i][piece], pieces[i + 2][piece]) for i in (0, 1) for piece in (0, 1)]
    total = (four[0] + four[1]) + (four[2] + four[3])
    sums = _pair(*_in_two(_sums(total, run // 4) * up * (1 / SUM_SHIFT)))
    found += [down.bitcast(dt.int32), sums]
    spread = Tensor.stack(*(t.expand(*found[0].shape) for t in found), dim=-1)
    shape = tuple(map(concrete, found[0].shape))
    cut = spread.reshape(*shape[:-1], each // 2, 2, 3, 2)  # rows, blocks, groups, words, two, kinds, pieces
    together = cut.permute(1, 2, 5, 0, 3, 6, 4).contiguous().permute(3, 2, 5, 0, 1, 4, 6)
    together = together.bitcast(dt.float32)
    words = together[:, :2].reshape(rows, 2, 2, -1)
    scales, totals = (together[:, 2, i] for i in (0, 1))
    return words, scales[:, :, 0, 0, 0], totals.reshape(rows, columns // run, -1)[..., 0]


def _in_two(x: Tensor) -> tuple[Tensor, Tensor]:
    """Numbers as sums of two of float16, in float32."""
    first = x.cast(dt.float16)
    return first, (x - first.cast(dt.float32)).cast(dt.float16)


def _pair(low: Tensor, high: Tensor) -> Tensor:
    """Two float16 as one word."""
    first, second = (t.bitcast(dt.uint16).cast(dt.int32) for t in (low, high))
    return first | (second << 16)


def _stored(x: Tensor, block: int) -> Tensor:
    """What is made of numbers, (rows, kinds, scales, 32 of them, words), as it is multiplied. Neighbouring
    threads have neighbouring blocks of one row: by vectors of four words, of all blocks the first ones first.
    What several rows have in a column is multiplied at the same time."""
    rows, kinds, scales, groups, each = map(concrete, x.shape)
    if rows > 1:
        return x.permute(2, 3, 1, 0, 4).contiguous().permute(3, 2, 0, 1, 4)
    if block == SCALED:
        return x.contiguous()
    cut = (kinds, scales * groups * SCALED // block, block // SCALED, each // 4, 4)
    found = x.reshape(cut).permute(0, 2, 3, 1, 4).contiguous().permute(0, 3, 1, 2, 4)
    return found.reshape(rows, kinds, scales, groups, each)


def _sums(x: Tensor, words: int) -> Tensor:
    """What so many words beside each other add up to, at each of them. All words of 32 numbers are gone
    through for each of their parts: then threads have the same words in all reductions."""
    each = concrete(x.shape[-1])
    if words == each:
        return x.sum(-1, keepdim=True)
    part = Tensor.arange(each, device=x.device) // words
    found = [(part == i).where(x, 0.0).sum(-1, keepdim=True) for i in range(each // words)]
    chosen = found[0]
    for i, others in enumerate(found[1:], 1):
        chosen = (part == i).where(others, chosen)
    return chosen


def _turn(digits: int) -> int:
    return sum(0x80 << 8 * i for i in range(digits))


def _whole(x: Tensor, turn: int) -> Tensor:
    """Numbers as integers whose bytes have signs."""
    return (x.rint().cast(dt.int32) + turn) ^ turn


def _word(four: list[Tensor]) -> Tensor:
    """Four bytes as one word."""
    return four[0] | (four[1] << 8) | (four[2] << 16) | (four[3] << 24)
