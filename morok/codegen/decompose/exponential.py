"""exp, exp2, log, log2, pow, tanh and erf as polynomials. Float32 and float64; worst errors in ULP:

| function | float32 | float64 | how |
|---|---|---|---|
| exp, exp2 | 1.01 | 1 | x = n·ln 2 + r, |r| ≤ ln 2 / 2; polynomial in r; scaled by 2ⁿ in two steps |
| log | 1 | 1 | x = 2ᵏ·m, √½ ≤ m < √2; series in s = (m-1)/(m+1) |
| log2 | 1 | 1 | the same, the leading part multiplied by log₂e with its error |
| tanh | 3 | 3 | e/(e+1) with e = (exp(2|x|) - 1) / 2 |
| erf | 2 | 2 | 1 - exp(-p), where the polynomial p is -log(erfc |x|) |
| pow | 1 | 2 | exp2(y·log2|x|); float32 in float64, float64 with the logarithm in two parts |

`benchmarks/ulp.py` measures them. Special values are exact: infinities, NaN, zeros of either sign,
subnormals. The polynomials are minimax fits (weighted, relative to the function) on the reduced interval.
"""

from __future__ import annotations

import math
from collections.abc import Callable

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
    poly_in_pairs,
    rint,
    scale_by_power,
    shl,
    shr,
    to_int,
    two_product,
    where,
)
from morok.dtype import float32, float64
from morok.ir.build import approximate_op
from morok.ir.node import UOp, alu
from morok.ir.ops import Ops

# (exp(r) - 1 - r) / r²  on |r| ≤ ln 2 / 2
_EXP = {
    float32: (
        0.4999999403953552, 0.1666652113199234, 0.04166826978325844, 0.008368680253624916,
        0.0013820419553667307,
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
        0.6931471824645996, 0.24022647738456726, 0.05550359562039375, 0.009618500247597694,
        0.0013390976237133145, 0.00015328907466027886,
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
# -log(erfc(x)) / x - 1  on 0 ≤ x ≤ 4 (6 for float64), weighted by x·erfc/erf
_ERF = {
    float32: (
        0.12837916612625122, 0.6366195678710938, 0.10277630388736725, -0.01914782077074051,
        -0.0001695149694569409, 0.001675696694292128, -0.0006373804062604904, 0.00011886779248015955,
        -9.388875696458854e-06,
    ),
    float64: (
        0.12837916709551256, 0.6366197723675898, 0.10277260330135807, -0.01912844699383276,
        -0.00020919484664014924, 0.0016962076240574263, -0.0005901322330011271, 2.59038905815914e-05,
        6.442187039590162e-05, -2.9578112131623147e-05, 3.1729855832368713e-06, 3.129432360189453e-06,
        -2.034206527593896e-06, 5.686229042584676e-07, -1.0625058650340231e-08, -6.620016114414285e-08,
        3.474481397901194e-08, -1.0816611377569852e-08, 2.369612435719809e-09, -3.775255758134499e-10,
        4.3188392386517484e-11, -3.3781598745012793e-12, 1.6217647132508772e-13, -3.6081627148056225e-15,
    ),
}  # fmt: skip

Quotient = Callable[[UOp, UOp], UOp]

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
# Below and above these, exp is 0 and infinite. The power of two is a product of two, which both are 0 at the
# lower end: one that is smaller than any subnormal number takes some processors a hundred cycles.
_EXP_RANGE = {float32: (-176.0, 89.0), float64: (-1418.0, 710.0)}
LEAST_ADDED = 1e-20  # to this, what is smaller than any normal number adds nothing
_EXP_NORMAL = {float32: -86.0, float64: -707.0}  # above it, half of exp is a normal number
_EXP_ZERO = {float32: -88.0, float64: -709.0}  # whose power of two is below all normal ones: its bits are 0
# Sigmoids: by how many powers of two the denominator is smaller on the way, and the exponents that count.
# With these the denominator and its inverse are normal numbers, so an approximate inverse is enough.
_SIGMOID = {float32: (64, -40.0, 110.5), float64: (64, -64.0, 753.7)}
_EXP2_RANGE = {float32: (-254.0, 128.5), float64: (-2046.0, 1024.5)}
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


def _exp_minus_one(x: UOp, k: int, bias: int) -> tuple[UOp, UOp]:
    """((exp(r) - 1) / k, bits that end in n + bias) for k·x = n·ln 2 + r. A small k costs nothing."""
    scalar = x.dtype.scalar
    high, low = _LN2[scalar]
    rounder = _rounder(x, bias)
    rounded = fma(x, k * _LOG2E, rounder)
    n = rounded - rounder
    r = fma(n, -low / k, fma(n, -high / k, x))  # r/k, in fact
    square = r * r
    series = poly_in_pairs(r, square, [c * k ** (i + 1) for i, c in enumerate(_EXP[scalar])])
    return fma(square, series, r), bits_of(rounded)


def _opposite(x: UOp) -> UOp | None:
    """-x, where that is less work than x."""
    if x.op is Ops.NEG:
        return x.src[0]
    if x.op is Ops.MUL:
        a, b = x.src
        if a.op is Ops.NEG:
            return a.src[0] * b
        if b.op is Ops.NEG:
            return a * b.src[0]
    return None


def _exp_within(x: UOp, low: float, high: float, bias: int) -> tuple[UOp, UOp]:
    """(exp(r) - 1, bits that end in n + bias) for x = n·ln 2 + r, x put into a range first."""
    opposite = _opposite(x)
    if opposite is None:
        return _exp_minus_one(_clamp(x, low, high), 1, bias)
    p, bits = _exp_minus_one(_clamp(opposite, -high, -low), -1, bias)
    return -p, bits


def exp(x: UOp) -> UOp:
    """e^x. The power of two is a product of two, so that the result may be subnormal or infinite."""
    p, bits = _exp_within(x, *_EXP_RANGE[x.dtype.scalar], 2 * _bias(x))
    half = shr(bits, 1)
    first = _from_last_bits(half, x)
    return fma(p, first, first) * _from_last_bits(bits - half, x)


def exp_plus(x: UOp, c: UOp) -> UOp:
    """e^x + c for a constant against which subnormal numbers are nothing: one power of two is enough.

    It is half of what it should be, so that the largest results do not need an infinite one.
    """
    low, high = _EXP_NORMAL[x.dtype.scalar], _EXP_RANGE[x.dtype.scalar][1]
    p, bits = _exp_within(x, low, high, _bias(x) - 1)
    return fma(p, 2.0, 2.0) * _from_last_bits(bits, x) + c


def exp_of_weight(x: UOp) -> UOp:
    """e^x of what is not above 0, which is 0 where it would be no normal number: one power of two is enough,
    and nothing is looked at but the lower end."""
    p, bits = _exp_minus_one(x.maximum(_EXP_ZERO[x.dtype.scalar]), 1, _bias(x))
    power = _from_last_bits(bits, x)
    return fma(p, power, power)


def exact_quotient(x: UOp, y: UOp) -> UOp:
    """x / y."""
    return x / y


def quick_quotient(x: UOp, y: UOp) -> UOp:
    """x / y by an approximate inverse, which has to be a normal number as y is, and one correction: at most
    0.51 ULP. A division that is right for all numbers looks at them first, and has a branch."""
    inverse = approximate_op(Ops.RECIP, y)
    near = x * inverse
    return fma(fma(-near, y, x), inverse, near)


def sigmoid(x: UOp, quotient: Quotient = exact_quotient) -> UOp:
    """1 / (1 + e^-x), subnormal results included: both sides are 2^-k of themselves, so nothing overflows."""
    k, low, high = _SIGMOID[x.dtype.scalar]
    p, bits = _exp_within(-x, low, high, _bias(x) - k)
    power, part = _from_last_bits(bits, x), like(x, 2.0**-k)
    return quotient(part, fma(p, power, power) + part)


def exp2(x: UOp) -> UOp:
    """2^x."""
    scalar = x.dtype.scalar
    y = _clamp(x, *_EXP2_RANGE[scalar])
    rounder = _rounder(x, 2 * _bias(x))
    rounded = y + rounder
    r = y - (rounded - rounder)
    bits = bits_of(rounded)
    half = shr(bits, 1)
    p = fma(r, poly(r, _EXP2[scalar]), 1.0)
    return p * _from_last_bits(half, x) * _from_last_bits(bits - half, x)


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


def tanh(x: UOp, quotient: Quotient = exact_quotient) -> UOp:
    """Hyperbolic tangent."""
    p, bits = _exp_minus_one(absolute(x).minimum(_TANH_END[x.dtype.scalar]), 2, _bias(x))
    power = _from_last_bits(bits, x)
    e = fma(p, power, fma(power, 0.5, -0.5))  # (exp(2|x|) - 1) / 2
    return copy_sign(quotient(e, e + 1.0), x)


def _bias(x: UOp) -> int:
    return (1 << x.dtype.scalar.exponent_bits - 1) - 1


def erf(x: UOp) -> UOp:
    """Error function."""
    scalar = x.dtype.scalar
    a = absolute(x).minimum(_ERF_END[scalar])
    p, bits = _exp_minus_one(fma(a, poly_in_pairs(a, a * a, _ERF[scalar]), a), -1, _bias(x))
    power = _from_last_bits(bits, x)
    return copy_sign(fma(p, power, 1.0 - power), x)


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
