"""exp, exp2, log, log2, pow, tanh and erf as polynomials. Float32 and float64; worst errors in ULP:

| function | float32 | float64 | how |
|---|---|---|---|
| exp, exp2 | 1 | 1 | x = n·ln 2 + r, |r| ≤ ln 2 / 2; polynomial in r; scaled by 2ⁿ in two steps |
| log | 1 | 1 | x = 2ᵏ·m, √½ ≤ m < √2; series in s = (m-1)/(m+1) |
| log2 | 1 | 1 | the same, the leading part multiplied by log₂e with its error |
| tanh | 3 | 3 | e/(e+2) with e = exp(2|x|) - 1 |
| erf | 2 | 2 | odd polynomial up to 0.92, then 1 - exp(polynomial) |
| pow | 1 | 2 | exp2(y·log2|x|); float32 in float64, float64 with the logarithm in two parts |

`benchmarks/ulp.py` measures them. Special values are exact: infinities, NaN, zeros of either sign,
subnormals. The polynomials are minimax fits (weighted, relative to the function) on the reduced interval.
"""

from __future__ import annotations

import math

from morok.codegen.decompose.pieces import (
    absolute,
    as_type,
    bits_of,
    copy_sign,
    fast_two_sum,
    float_of,
    fma,
    is_nan,
    like,
    poly,
    rint,
    scale_by_power,
    shl,
    shr,
    to_int,
    two_product,
    where,
)
from morok.dtype import float32, float64
from morok.ir.node import UOp, alu
from morok.ir.ops import Ops

# (exp(r) - 1 - r) / r²  on |r| ≤ ln 2 / 2
_EXP = {
    float32: (
        0.5, 0.1666666716337204, 0.04166646674275398, 0.008333287201821804, 0.0013933652080595493,
        0.0001990677264984697,
    ),
    float64: (
        0.5, 0.1666666666666667, 0.041666666666666685, 0.008333333333326134, 0.0013888888888874856,
        0.00019841269874822342, 2.4801587346272237e-05, 2.755725539830222e-06, 2.755725392788209e-07,
        2.5105217709184134e-08, 2.0921251245070653e-09,
    ),
}  # fmt: skip
# (2^r - 1) / r  on |r| ≤ 1/2
_EXP2 = {
    float32: (
        0.6931471824645996, 0.24022650718688965, 0.05550410971045494, 0.009618056938052177,
        0.0013333454262465239, 0.0001546147104818374, 1.5310024537029676e-05,
    ),
    float64: (
        0.6931471805599453, 0.24022650695910072, 0.055504108664821625, 0.009618129107628487,
        0.0013333558146406434, 0.00015403530393355114, 1.5252733841603448e-05, 1.3215486822986523e-06,
        1.0178057063826726e-07, 7.05489159146736e-09, 4.455822144429709e-10, 2.5737633972486688e-11,
    ),
}  # fmt: skip
# (log((1+s)/(1-s)) - 2s) / s³  in z = s²
_LOG = {
    float32: (0.6666666865348816, 0.4000012278556824, 0.28550705313682556, 0.23333284258842468),
    float64: (
        0.6666666666666666, 0.4000000000000089, 0.2857142857079493, 0.2222222239356989, 0.18181795451596644,
        0.15386249513946618, 0.1326852044672321, 0.130891785544701,
    ),
}  # fmt: skip
# erf(x)/x - 1  in x², x ≤ 0.92
_ERF_SMALL = {
    float32: (
        0.12837916612625122, -0.37612631916999817, 0.11283687502145767, -0.026858940720558167,
        0.005199905019253492, -0.0008129994967021048, 8.316706953337416e-05,
    ),
    float64: (
        0.1283791670955126, -0.37612638903183754, 0.11283791670955069, -0.026866170645116896,
        0.005223977625253896, -0.0008548327008724129, 0.00012055332240912245, -1.492562532339521e-05,
        1.646153357446014e-06, -1.6356552909515172e-07, 1.4706074135416995e-08, -1.1570122689287793e-09,
        6.324880234446865e-11,
    ),
}  # fmt: skip
# log(erfc(x)) / x  on 0.92 ≤ x ≤ 4 (6 for float64), weighted by erfc
_ERF_LARGE = {
    float32: (
        -1.1284619569778442, -0.6361135840415955, -0.10412449389696121, 0.02119016833603382,
        -0.0017472815234214067, -0.0005403336836025119, 0.00022524819360114634, -3.5478944482747465e-05,
        2.217836936324602e-06,
    ),
    float64: (
        -1.1283791737319664, -0.6366196890197882, -0.10277309622362092, 0.01913027109292344,
        0.00020446282333850337, -0.0016870768315346218, 0.000576576279554325, -1.0130430676017079e-05,
        -7.889503086145403e-05, 3.9965307263928854e-05, -8.808789215593723e-06, -1.062070658611106e-06,
        1.7854261176231063e-06, -8.587367678257886e-07, 2.757242769132457e-07, -6.65738222168495e-08,
        1.2489593009716539e-08, -1.8264231409649853e-09, 2.0520318405626108e-10, -1.7154293479934043e-11,
        1.006391114124598e-12, -3.69951349973248e-14, 6.413002307625464e-16,
    ),
}  # fmt: skip

_LOG2E = 1.4426950408889634
# ln 2 and log₂e in two parts. The first part of ln 2 has few bits, so that n·hi is exact.
_LN2 = {
    float32: (0.693145751953125, 1.42860682030941723212e-6),
    float64: (6.93147180369123816490e-01, 1.90821492927058770002e-10),
}
_LOG2E_PARTS = {
    float32: (1.4426950216293335, 1.9259629911266175e-08),
    float64: (1.4426950408889634, 2.0355273740931033e-17),
}
_SQRT_HALF = {float32: 0x3F3504F3, float64: 0x3FE6A09E667F3BCD}
# below and above these, exp is 0 and infinite
_EXP_RANGE = {float32: (-104.0, 89.0), float64: (-746.0, 710.0)}
_EXP2_RANGE = {float32: (-150.5, 128.5), float64: (-1075.5, 1024.5)}
_ERF_END = {float32: 4.0, float64: 6.0}
_TANH_END = {float32: 20.0, float64: 44.0}


def _clamp(x: UOp, low: float, high: float) -> UOp:
    """x in low … high; NaN stays."""
    return x.maximum(low).minimum(high)


def _rounder(x: UOp, bias: int) -> float:
    """So large a number that adding it rounds to whole ones; its last bits are what was added, biased."""
    return 1.5 * (1 << x.dtype.scalar.mantissa_bits) + bias


def _from_last_bits(x: UOp, like_: UOp) -> UOp:
    """2 to the power that the last bits hold together with its bias; all other bits go."""
    return float_of(shl(x, like_.dtype.scalar.mantissa_bits), like_.dtype)


def _exp_minus_one(x: UOp, n: UOp) -> UOp:
    """exp(r) - 1 for x = n·ln 2 + r."""
    high, low = _LN2[x.dtype.scalar]
    r = fma(n, -low, fma(n, -high, x))
    return fma(r * r, poly(r, _EXP[x.dtype.scalar]), r)


def _exp_parts(x: UOp) -> tuple[UOp, UOp]:
    """(exp(r) - 1, 2ⁿ) for x = n·ln 2 + r and an n that is the exponent of a normal number."""
    rounder = _rounder(x, _bias(x))
    rounded = fma(x, _LOG2E, rounder)
    return _exp_minus_one(x, rounded - rounder), _from_last_bits(bits_of(rounded), x)


def exp(x: UOp) -> UOp:
    """e^x. The power of two is a product of two, so that the result may be subnormal or infinite."""
    x = _clamp(x, *_EXP_RANGE[x.dtype.scalar])
    rounder = _rounder(x, 2 * _bias(x))
    rounded = fma(x, _LOG2E, rounder)
    half = bits_of(fma(x, _LOG2E / 2, _rounder(x, _bias(x))))
    p = _exp_minus_one(x, rounded - rounder) + 1.0
    return p * _from_last_bits(half, x) * _from_last_bits(bits_of(rounded) - half, x)


def exp2(x: UOp) -> UOp:
    """2^x."""
    scalar = x.dtype.scalar
    y = _clamp(x, *_EXP2_RANGE[scalar])
    n = rint(y)
    r = y - n
    return scale_by_power(fma(r, poly(r, _EXP2[scalar]), 1.0), to_int(n))


def _log_parts(x: UOp) -> tuple[UOp, UOp, UOp]:
    """(k, f, R) for x = 2ᵏ·(1+f): log(1+f) = f - f²/2 + s·(f²/2 + R). For positive, finite x."""
    scalar = x.dtype.scalar
    mantissa = scalar.mantissa_bits
    tiny = x < scalar.smallest_normal
    scaled = where(tiny, x * float(1 << mantissa + 2), x)
    bits = bits_of(scaled)
    # the exponent of x/√½, so that the mantissa lies in √½ … √2
    k = shr(bits - _SQRT_HALF[scalar], mantissa)
    m = float_of(bits - shl(k, mantissa), scalar)
    k = k - where(tiny, like(k, mantissa + 2), like(k, 0))
    f = m - 1.0
    s = f / (f + 2.0)
    z = s * s
    return as_type(k, scalar), f, _log_tail(s, z, f, scalar)


def _log_tail(s: UOp, z: UOp, f: UOp, scalar: object) -> UOp:
    """s·(f²/2 + R), which is small against f."""
    half_square = f * f * 0.5
    return s * (half_square + z * poly(z, _LOG[scalar]))  # type: ignore[index]


def _log_special(x: UOp, result: UOp) -> UOp:
    """log outside of the positive, finite numbers."""
    result = where(x.eq(math.inf), math.inf, result)
    result = where(x.eq(0.0), -math.inf, result)
    return where((x < 0.0) | is_nan(x), math.nan, result)


def log(x: UOp) -> UOp:
    """Natural logarithm."""
    high, low = _LN2[x.dtype.scalar]
    k, f, tail = _log_parts(x)
    half_square = f * f * 0.5
    result = fma(k, high, f - (half_square - fma(k, low, tail)))
    return _log_special(x, result)


def log2(x: UOp) -> UOp:
    """Logarithm to base 2."""
    high, low = _LOG2E_PARTS[x.dtype.scalar]
    k, f, tail = _log_parts(x)
    half_square = f * f * 0.5
    # f - f²/2 + tail as a leading part and the rest, both times log₂e
    lead = f - half_square
    rest = (f - lead) - half_square + tail
    product = lead * high
    correction = fma(lead, like(x, high), -product) + fma(lead, low, rest * high)
    total, error = fast_two_sum(k, product)
    exact = where(k.eq(0.0), product, total)
    return _log_special(x, exact + where(k.eq(0.0), correction, error + correction))


def tanh(x: UOp) -> UOp:
    """Hyperbolic tangent."""
    y = absolute(x).minimum(_TANH_END[x.dtype.scalar]) * 2.0
    p, power = _exp_parts(y)
    e = fma(power, p, power - 1.0)
    return copy_sign(e / (e + 2.0), x)


def _bias(x: UOp) -> int:
    return (1 << x.dtype.scalar.exponent_bits - 1) - 1


def erf(x: UOp) -> UOp:
    """Error function."""
    scalar = x.dtype.scalar
    a = absolute(x)
    small = fma(x, poly(x * x, _ERF_SMALL[scalar]), x)
    t = a.minimum(_ERF_END[scalar])
    p, power = _exp_parts(t * poly(t, _ERF_LARGE[scalar]))
    large = copy_sign(1.0 - fma(p, power, power), x)
    return where(a < 0.92, small, large)


# --- pow


def pow_(x: UOp, y: UOp) -> UOp:
    """x to the power y, as C's pow."""
    if x.dtype.scalar is float32:
        wide = pow_(as_type(x, float64), as_type(y, float64))
        return as_type(wide, float32)
    a = absolute(x)
    high, low = _log2_double(a)
    product, error = two_product(y, high)
    error = fma(y, low, error)
    # keep the exponent finite: beyond this the result is 0 or infinite anyway, and inf - inf would be NaN
    bounded = _clamp(product, -1100.0, 1100.0)
    error = where(product.eq(bounded), error, 0.0)
    n = rint(bounded)
    r = (bounded - n) + error
    result = scale_by_power(fma(r, poly(r, _EXP2[float64]), 1.0), to_int(n))
    return _pow_special(x, y, a, result)


def _log2_double(x: UOp) -> tuple[UOp, UOp]:
    """log₂ of a positive float64 as a sum of two floats with about 65 good bits."""
    k, f, _ = _log_parts(x)
    # s = f / (2 + f) in two parts
    d, d_low = fast_two_sum(like(x, 2.0), f)
    s = f / d
    s_low = fma(-s, d, f)
    s_low = fma(-s, d_low, s_low) / d
    z, z_low = two_product(s, s)
    z_low = fma(s * 2.0, s_low, z_low)
    # log(m) = 2s + s·z·(2/3 + z·tail): the first two terms in two parts
    tail = poly(z, _LOG[float64][1:])
    c, c_low = 2.0 / 3.0, 3.700743415417188e-17
    t, t_low = two_product(z, like(x, c))
    t_low = fma(z, c_low, fma(z_low, c, t_low))
    t2 = z * z * tail
    u, u_low = fast_two_sum(like(x, 2.0), t)
    u_low = u_low + t_low + t2
    p, p_low = two_product(s, u)
    p_low = fma(s, u_low, fma(s_low, u, p_low))
    log_high, log_low = fast_two_sum(p, p_low)
    high, low = _LOG2E_PARTS[float64]
    q, q_low = two_product(log_high, like(x, high))
    q_low = fma(log_high, low, fma(log_low, high, q_low))
    total, error = fast_two_sum(k, q)
    zero = k.eq(0.0)
    first = where(zero, q, total)
    rest = where(zero, q_low, error + q_low)
    return fast_two_sum(first, rest)


def _pow_special(x: UOp, y: UOp, a: UOp, result: UOp) -> UOp:
    """Signs, zeros, infinities and NaN, as C has them."""
    whole = alu(Ops.RINT, y).eq(y)
    half = y * 0.5
    odd = whole & alu(Ops.RINT, half).ne(half)
    grows = (0.0 < y) ^ (a < 1.0)  # the limit of |x|^y for |y| → ∞
    extreme = where(grows, like(x, math.inf), like(x, 0.0))
    result = where(absolute(y).eq(math.inf), where(a.eq(1.0), 1.0, extreme), result)
    at_ends = where((0.0 < y) ^ a.eq(0.0), like(x, math.inf), like(x, 0.0))
    result = where(a.eq(0.0) | a.eq(math.inf), at_ends, result)
    negative = bits_of(x) < 0
    result = where(negative & odd, -result, result)
    finite_base = (x < 0.0) & x.ne(-math.inf)
    result = where(finite_base & ~whole, math.nan, result)
    result = where(is_nan(x) | is_nan(y), math.nan, result)
    return where(x.eq(1.0) | y.eq(0.0), 1.0, result)
