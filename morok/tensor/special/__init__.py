"""Special functions: errors, gammas, Bessel functions, polynomials."""
