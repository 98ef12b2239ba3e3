"""`morok.special`: special functions, under SciPy's and PyTorch's names.

They are computed in double precision and rounded once. Against mpmath, float32 results are within 4 units in
the last place (`tests/tensor/special`); exceptions stand in the functions' own texts.
"""

from __future__ import annotations

from morok.tensor.calls.record import recorded
from morok.tensor.special import bessel, errors, gamma, polynomials
from morok.tensor.tensor import Tensor

exp2, expm1, log1p, log_softmax = Tensor.exp2, Tensor.expm1, Tensor.log1p, Tensor.log_softmax
softmax, logsumexp, xlogy, sinc = Tensor.softmax, Tensor.logsumexp, Tensor.xlogy, Tensor.sinc
logit = Tensor.logit

erf, erfc, erfinv, erfcx = Tensor.erf, Tensor.erfc, Tensor.erfinv, recorded(errors.erfcx)
ndtr, ndtri, log_ndtr = Tensor.ndtr, Tensor.ndtri, Tensor.log_ndtr
xlog1py, entr, expit = Tensor.xlog1py, Tensor.entr, Tensor.expit

gammaln = lgamma = Tensor.lgamma
digamma = psi = Tensor.digamma
polygamma, multigammaln = Tensor.polygamma, Tensor.multigammaln
gammainc, gammaincc = Tensor.gammainc, Tensor.gammaincc
zeta, beta, betaln = recorded(gamma.zeta), recorded(gamma.beta), recorded(gamma.betaln)

i0 = modified_bessel_i0 = Tensor.i0
i1 = modified_bessel_i1 = Tensor.i1
i0e, i1e = Tensor.i0e, Tensor.i1e
j0 = bessel_j0 = recorded(bessel.bessel_j0)
j1 = bessel_j1 = recorded(bessel.bessel_j1)
y0 = bessel_y0 = recorded(bessel.bessel_y0)
y1 = bessel_y1 = recorded(bessel.bessel_y1)
k0 = modified_bessel_k0 = recorded(bessel.modified_bessel_k0)
k1 = modified_bessel_k1 = recorded(bessel.modified_bessel_k1)
k0e = scaled_modified_bessel_k0 = recorded(bessel.scaled_modified_bessel_k0)
k1e = scaled_modified_bessel_k1 = recorded(bessel.scaled_modified_bessel_k1)
spherical_bessel_j0 = recorded(bessel.spherical_bessel_j0)
airy_ai = recorded(bessel.airy_ai)

chebyshev_polynomial_t = recorded(polynomials.chebyshev_polynomial_t)
chebyshev_polynomial_u = recorded(polynomials.chebyshev_polynomial_u)
chebyshev_polynomial_v = recorded(polynomials.chebyshev_polynomial_v)
chebyshev_polynomial_w = recorded(polynomials.chebyshev_polynomial_w)
shifted_chebyshev_polynomial_t = recorded(polynomials.shifted_chebyshev_polynomial_t)
shifted_chebyshev_polynomial_u = recorded(polynomials.shifted_chebyshev_polynomial_u)
shifted_chebyshev_polynomial_v = recorded(polynomials.shifted_chebyshev_polynomial_v)
shifted_chebyshev_polynomial_w = recorded(polynomials.shifted_chebyshev_polynomial_w)
hermite_polynomial_h = recorded(polynomials.hermite_polynomial_h)
hermite_polynomial_he = recorded(polynomials.hermite_polynomial_he)
laguerre_polynomial_l = recorded(polynomials.laguerre_polynomial_l)
legendre_polynomial_p = recorded(polynomials.legendre_polynomial_p)
