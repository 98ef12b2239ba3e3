"""sin, cos, tan and atan2. Worst errors in ULP: float32 sin, cos 2, tan 1, atan2 1; float64 1, 1, 3, 3.

The argument is brought into -π/4 … π/4 with the number of the quadrant. Float32 does so in float64: with two
parts of π/2 up to 2²⁷; beyond that (up to 2¹²⁸) x is multiplied by 2/π piece by piece, each product exact and
taken modulo 4 at once. Float64 uses three parts of π/2 up to 2³⁰, and Payne and Hanek's method beyond: a
window of 192 bits of 2/π, chosen by the exponent, times the integer mantissa.
"""

from __future__ import annotations

import math

from morok.codegen.decompose.pieces import (
    absolute,
    as_type,
    bits_of,
    copy_sign,
    fma,
    is_nan,
    like,
    low_bits,
    poly,
    rarely,
    rint,
    shl,
    shr,
    two_product,
    two_sum,
    where,
)
from morok.dtype import float32, float64, int32, int64, uint64
from morok.ir.build import bitcast
from morok.ir.node import UOp, alu, const
from morok.ir.ops import Ops

# (sin(r) - r) / r³ and (cos(r) - 1 + r²/2) / r⁴ in r², |r| ≤ π/4
_SIN = {
    float32: (-0.1666666716337204, 0.008333331905305386, -0.00019840085587929934, 2.724969135670108e-06),
    float64: (
        -0.16666666666666666, 0.008333333333333331, -0.00019841269841265044, 2.755731921932217e-06,
        -2.5052106226492063e-08, 1.6058530668286756e-10, -7.586640750233638e-13,
    ),
}  # fmt: skip
_COS = {
    float32: (0.0416666679084301, -0.00138888880610466, 2.4800598112051375e-05, -2.730075436829793e-07),
    float64: (
        0.041666666666666664, -0.0013888888888888887, 2.4801587301584635e-05, -2.755731922139329e-07,
        2.0876755787741586e-09, -1.1470460355051436e-11, 4.745840347399056e-14,
    ),
}  # fmt: skip
# (atan(t) - t) / t³ in t², t ≤ tan(π/8)
_ATAN = (
    -0.3333333333333333, 0.19999999999999815, -0.14285714285661974, 0.11111111105346586, -0.09090908762227237,
    0.07692296607416992, -0.066664287429881, 0.05878970105044655, -0.052307356104441045, 0.045527884675117807,
    -0.0345992481096158, 0.01631547605533312,
)  # fmt: skip

_TWO_OVER_PI = 0.6366197723675814
_HALF_PI = (1.5707963267948966, 6.123233995736765e-17, 1.0828566739219139e-32)
_QUARTER_PI = (0.7853981633974483, 3.0616169978683824e-17)
_PI = (3.141592653589793, 1.224646799147353e-16)
# 2/π in pieces of 29 bits, each with its weight
_PIECES = tuple(
    piece * 2.0 ** (-29 * (k + 1))
    for k, piece in enumerate((341782637, 423170132, 352195499, 488592205, 461485765, 90590992, 478285810))
)
# 2/π, 64 bits per word, with a word of zeros in front
_WORDS = (
    0, 0xA2F9836E4E441529, 0xFC2757D1F534DDC0, 0xDB6295993C439041, 0xFE5163ABDEBBC561, 0xB7246E3A424DD2E0,
    0x06492EEA09D1921C, 0xFE1DEB1CB129A73E, 0xE88235F52EBB4484, 0xE99C7026B45F7E41, 0x3991D639835339F4,
    0x9C845F8BBDF9283B, 0x1FF897FFDE05980F, 0xEF2F118B5A0A6D1F, 0x6D367ECF27CB09B7, 0x4F463F669E5FEA2D,
    0x7527BAC7EBE5F17B, 0x3D0739F78A5292EA, 0x6BFB5FB11F8D5D08, 0x56033046FC7B6BAB, 0xF0CFBC209AF4361D,
)  # fmt: skip
_LARGE_SINGLE = float(1 << 27)
_LARGE_DOUBLE = float(1 << 30)

Reduced = tuple[UOp, UOp, UOp]  # quadrant, r, what r lacks


def _reduce_single(single: UOp) -> tuple[UOp, UOp]:
    """A float32 as a quadrant and r in float64; infinities have no r."""
    x = as_type(single, float64)
    n = rint(x * _TWO_OVER_PI)
    r = fma(n, -_HALF_PI[1], fma(n, -_HALF_PI[0], x))
    total, error = like(x, 0.0), like(x, 0.0)
    for piece in _PIECES:
        product = x * piece
        part = fma(rint(product * 0.25), -4.0, product)
        total, lost = two_sum(total, part)
        error = error + lost
    quadrant = rint(total)
    far = (total - quadrant + error) * _HALF_PI[0]
    large = _LARGE_SINGLE < absolute(single)
    return as_type(low_bits(rarely(large, quadrant, n)), int32), rarely(large, far, r)


def _reduce_double(x: UOp) -> Reduced:
    n = rint(x * _TWO_OVER_PI)
    first = fma(n, -_HALF_PI[0], x)  # exact
    w, w_low = two_product(n, like(x, _HALF_PI[1]))
    r = first - w
    low = (first - r) - w - fma(n, _HALF_PI[2], w_low)
    quadrant, far, far_low = _reduce_large(x)
    large = _LARGE_DOUBLE < absolute(x)
    return rarely(large, quadrant, low_bits(n)), rarely(large, far, r), rarely(large, far_low, low)


def _reduce_large(x: UOp) -> Reduced:
    """Payne and Hanek: the bits of 2/π that matter for this exponent, times the mantissa, modulo 4."""
    lanes = x.dtype.lanes
    bits = bitcast(absolute(x), uint64.vec(lanes))
    exponent = shr(bits, 52)
    mantissa = (bits & ((1 << 52) - 1)) | (1 << 52)
    # the first bit that counts has weight 2: skip 64 + (exponent - 1023 - 52) - 2 bits of _WORDS
    skip = exponent - (1023 + 52 + 2 - 64)
    words = [const(uint64.vec(lanes), w) for w in _WORDS]
    zero = const(uint64.vec(lanes), 0)
    needed = {16: 19, 8: 11, 4: 7, 2: 5, 1: 4}
    for step, count in needed.items():
        chosen = (skip & (step << 6)).ne(0)
        words = [
            where(chosen, words[i + step] if i + step < len(words) else zero, words[i]) for i in range(count)
        ]
    shift = skip & 63
    back = 63 - shift
    window = [alu(Ops.SHL, words[i], shift) | shr(alu(Ops.SHR, words[i + 1], back), 1) for i in range(3)]
    f0, f1, f2 = window
    middle_product = mantissa * f1
    middle = middle_product + alu(Ops.MULHI, mantissa, f2)
    carry = where(middle < middle_product, like(middle, 1), like(middle, 0))
    top = mantissa * f0 + alu(Ops.MULHI, mantissa, f1) + carry
    quadrant = shr(top + (1 << 61), 62)
    rest = bitcast(top - shl(quadrant, 62), int64.vec(lanes))
    high = as_type(rest, float64)
    low = as_type(rest - as_type(high, int64), float64) * 2.0**-62 + as_type(middle, float64) * 2.0**-126
    high = high * 2.0**-62
    r, r_low = two_product(high, like(x, _HALF_PI[0]))
    r_low = fma(low, _HALF_PI[0], fma(high, _HALF_PI[1], r_low))
    r, r_low = r + r_low, r_low - ((r + r_low) - r)
    negative = x < 0.0
    n = bitcast(quadrant, int64.vec(lanes))
    r = where(absolute(x) < math.inf, r, math.nan)
    return where(negative, -n, n), where(negative, -r, r), where(negative, -r_low, r_low)


def _sine(r: UOp, low: UOp | None) -> UOp:
    z = r * r
    correction = z * r * poly(z, _SIN[r.dtype.scalar])
    if low is not None:
        correction = correction + low * fma(z, -0.5, 1.0)
    return r + correction


def _cosine(r: UOp, low: UOp | None) -> UOp:
    z = r * r
    half = z * 0.5
    w = 1.0 - half
    tail = z * z * poly(z, _COS[r.dtype.scalar])
    if low is not None:
        tail = tail - r * low
    return w + (((1.0 - w) - half) + tail)


def _wave(x: UOp, turn: int) -> UOp:
    """sin(x + turn·π/2)."""
    if x.dtype.scalar is float32:
        quadrant, wide = _reduce_single(x)
        r = as_type(wide, float32)
        sine, cosine = _sine(r, None), _cosine(r, None)
    else:
        quadrant, r, low = _reduce_double(x)
        sine, cosine = _sine(r, low), _cosine(r, low)
    n = quadrant + turn if turn else quadrant
    result = where((n & 1).ne(0), cosine, sine)
    return where((n & 2).ne(0), -result, result)


def sin(x: UOp) -> UOp:
    """Sine."""
    return where(x.eq(0.0), x, _wave(x, 0))


def cos(x: UOp) -> UOp:
    """Cosine."""
    return _wave(x, 1)


def tan(x: UOp) -> UOp:
    """Tangent."""
    if x.dtype.scalar is float32:
        quadrant, r = _reduce_single(x)
        low = None
    else:
        quadrant, r, low = _reduce_double(x)
    sine, cosine = _sine(r, low), _cosine(r, low)
    odd = (quadrant & 1).ne(0)
    result = where(odd, -cosine, sine) / where(odd, sine, cosine)
    result = as_type(result, x.dtype.scalar)
    return where(x.eq(0.0), x, result)


def atan2(y: UOp, x: UOp) -> UOp:
    """The angle of the point (x, y)."""
    if x.dtype.scalar is float32:
        return as_type(atan2(as_type(y, float64), as_type(x, float64)), float32)
    a, b = absolute(x), absolute(y)
    greater, less = a.maximum(b), a.minimum(b)
    scale = where(1e300 < greater, like(x, 0.25), like(x, 1.0))
    greater, less = greater * scale, less * scale
    infinite = less.eq(math.inf)
    greater = where(infinite | greater.eq(0.0), 1.0, greater)
    less = where(infinite, 1.0, less)
    steep = greater * 0.41421356237309503 < less
    t = where(steep, less - greater, less) / where(steep, less + greater, greater)
    z = t * t
    angle = t + t * z * poly(z, _ATAN)
    angle = where(steep, (angle + _QUARTER_PI[1]) + _QUARTER_PI[0], angle)
    angle = where(a < b, (_HALF_PI[0] - angle) + _HALF_PI[1], angle)
    angle = where(bits_of(x) < 0, (_PI[0] - angle) + _PI[1], angle)
    return where(is_nan(x) | is_nan(y), math.nan, copy_sign(angle, y))
