"""`morok.linalg`: systems of equations, factorisations, norms, under NumPy's and PyTorch's names."""

from __future__ import annotations

from morok.tensor.calls.record import recorded
from morok.tensor.linalg import factors, inverses, powers
from morok.tensor.tensor import Tensor

inv, det, solve, solve_triangular = Tensor.inv, Tensor.det, Tensor.solve, Tensor.solve_triangular
cholesky, qr, svd = Tensor.cholesky, Tensor.qr, Tensor.svd
matmul, cross, vander = Tensor.matmul, Tensor.cross, Tensor.vander
logdet = Tensor.logdet
slogdet = recorded(factors.slogdet)
lu, lu_factor, lu_solve = recorded(factors.lu), recorded(factors.lu_factor), recorded(factors.lu_solve)
eigh, eigvalsh, svdvals = recorded(factors.eigh), recorded(factors.eigvalsh), recorded(factors.svdvals)
cholesky_solve, cholesky_inverse = recorded(factors.cholesky_solve), recorded(factors.cholesky_inverse)
pinv, lstsq, matrix_rank = recorded(inverses.pinv), recorded(inverses.lstsq), recorded(inverses.matrix_rank)
cond, norm = recorded(inverses.cond), recorded(inverses.norm)
vector_norm, matrix_norm = recorded(inverses.vector_norm), recorded(inverses.matrix_norm)
matrix_power, matrix_exp = recorded(powers.matrix_power), recorded(powers.matrix_exp)
multi_dot, vecdot = recorded(powers.multi_dot), recorded(powers.vecdot)
tensorinv, tensorsolve = recorded(powers.tensorinv), recorded(powers.tensorsolve)
householder_product = recorded(powers.householder_product)


def diagonal(x: Tensor, offset: int = 0, dim1: int = -2, dim2: int = -1) -> Tensor:
    """A diagonal of the last two axes.

    >>> diagonal(Tensor([[1, 2], [3, 4]])).tolist()
    [1, 4]
    """
    return x.diagonal(offset, dim1, dim2)
