"""The lazy tensor: one table of its methods, and where each is written.

A method is a function of a module, attached here under its name, and under other names that people know it
by. `methods` makes each remember the user's line; those of the pure modules are traced once per signature.
"""

from __future__ import annotations

from functools import partial
from typing import Any, Self, final

from morok.ir.layout import Layout
from morok.ir.ops import Ops
from morok.tensor import assign as assignment  # `assign`, like three below, is the name of a method, too
from morok.tensor import distributions, export, random, sharding
from morok.tensor.arrays import (
    arrange,
    distinct,
    histograms,
    index,
    joining,
    middle,
    movement,
    nan_reductions,
    padding,
    pieces,
    reduce,
    selection,
    sorting,
    statistics,
)
from morok.tensor.arrays import scatter as scattering
from morok.tensor.calls.record import constructor, methods
from morok.tensor.creation import constructors
from morok.tensor.creation.sources import node_of
from morok.tensor.dtypes import as_dtype
from morok.tensor.elementwise import (
    activations,
    arithmetic,
    comparison,
    conversion,
    functions,
    named,
    rounding,
    whole,
)
from morok.tensor.elementwise.operators import Operators
from morok.tensor.gradient import backward as reverse
from morok.tensor.gradient.walk import CALLS
from morok.tensor.gradient_track import cut
from morok.tensor.images import fold, grid, pools, resize
from morok.tensor.linalg import (
    attention,
    contract,
    convolution,
    factors,
    inverses,
    normalization,
    powers,
    products,
    windows,
)
from morok.tensor.linalg import solve as solving
from morok.tensor.linalg.solve_gradients import enter_gradients
from morok.tensor.memory.storage import Storage, claim, identified
from morok.tensor.protocols import facts, python
from morok.tensor.protocols import in_place as over
from morok.tensor.special import bessel, errors, gamma
from morok.tensor.special import gradients as special_gradients

# Modules whose functions do nothing but make a graph from their operands.
_PURE = (
    arithmetic, comparison, conversion, functions, rounding, named, activations, movement, padding, joining,
    arrange, reduce, nan_reductions, normalization, index, scattering, sorting, middle, products, attention,
    contract, windows, convolution, pools, fold, grid, bessel, errors, gamma, whole, pieces, statistics,
)  # fmt: skip


@final
@methods(pure=_PURE)
class Tensor(Operators):
    """An array whose values are computed when somebody asks for them.

    >>> x = Tensor([[1.0, 2.0], [3.0, 4.0]])
    >>> (x @ x + 1).sum().item()
    58.0

    `data` is a number, nested lists, a NumPy array, anything with DLPack or the buffer protocol, or another
    tensor; it is copied (`from_numpy` and its kin share memory). Python floats become float32, integers
    int64; arrays keep their type.
    """

    __array_priority__ = 1000.0  # older NumPy functions leave mixed operands to the tensor

    def __init__(
        self, data: Any, dtype: Any = None, device: str | None = None, requires_grad: bool = False
    ) -> None:
        node = node_of(data, None if dtype is None else as_dtype(dtype), device)
        self._storage = Storage(cut(identified(node) if node.op is Ops.CONST else node))
        memory = node.src[0] if node.op is Ops.RESHAPE else node
        if memory.op is Ops.BUFFER:
            claim(memory, self._storage)
        if requires_grad:
            reverse.requires_grad_(self)

    @property
    def T(self) -> Self:
        """The axes in reverse order.

        >>> Tensor.ones(2, 3, 4).T.shape
        (4, 3, 2)
        """
        return movement.reversed_axes(self)

    @property
    def mT(self) -> Self:
        """The last two axes swapped.

        >>> Tensor.ones(2, 3, 4).mT.shape
        (2, 4, 3)
        """
        return arrange.matrix_transpose(self)

    @property
    def is_realized(self) -> bool:
        """Whether the values are in memory, so that nothing is left to compute.

        >>> x = Tensor([1.0]) + 1.0
        >>> x.is_realized, x.realize().is_realized
        (False, True)
        """
        return export.is_realized(self)

    @property
    def placement(self) -> Layout | None:
        """How the tensor lies on its mesh; None for one on a plain device.

        >>> Tensor([1.0]).placement is None
        True
        """
        return sharding.placement(self)

    @property
    def requires_grad(self) -> bool:
        """Whether gradients are wanted for this tensor, or for something that it is computed from.

        >>> (Tensor([1.0], requires_grad=True) * 2.0).requires_grad
        True
        """
        return reverse.requires_grad(self)

    @requires_grad.setter
    def requires_grad(self, wanted: bool) -> None:
        reverse.requires_grad_(self, wanted)

    # --- Where tensors come from
    from_numpy = constructor(constructors.from_numpy)
    from_dlpack = constructor(constructors.from_dlpack)
    from_buffer = constructor(constructors.from_buffer)
    from_url = constructor(constructors.from_url)
    from_file = constructor(constructors.from_file)
    empty = constructor(constructors.empty)
    full = constructor(constructors.full)
    zeros = constructor(constructors.zeros)
    ones = constructor(constructors.ones)
    empty_like = constructors.empty_like
    full_like = constructors.full_like
    zeros_like = constructors.zeros_like
    ones_like = constructors.ones_like
    arange = constructor(constructors.arange)
    linspace = constructor(constructors.linspace)
    logspace = constructor(constructors.logspace)
    eye = constructor(constructors.eye)
    tri = constructor(constructors.tri)
    tril_indices = constructor(pieces.tril_indices)
    triu_indices = constructor(pieces.triu_indices)
    new_empty, new_full = pieces.new_empty, pieces.new_full
    new_zeros, new_ones = pieces.new_zeros, pieces.new_ones
    to = constructors.to
    contiguous = constructors.contiguous
    clone = constructors.clone
    detach = constructors.detach
    shard = sharding.shard
    unshard = sharding.unshard

    # --- Random numbers
    manual_seed = staticmethod(random.manual_seed)
    get_rng_state = staticmethod(random.get_rng_state)
    set_rng_state = staticmethod(random.set_rng_state)
    rand = constructor(random.rand)
    rand_like = random.rand_like
    randn = constructor(random.randn)
    randn_like = random.randn_like
    uniform = constructor(random.uniform)
    normal = constructor(random.normal)
    randint = constructor(random.randint)
    bernoulli = random.bernoulli
    permutation = randperm = constructor(random.permutation)
    multinomial, randint_like, dropout = random.multinomial, random.randint_like, random.dropout
    exponential = constructor(distributions.exponential)
    gumbel = constructor(distributions.gumbel)
    truncated_normal = constructor(distributions.truncated_normal)
    standard_gamma, dirichlet = distributions.standard_gamma, distributions.dirichlet
    poisson, binomial = distributions.poisson, distributions.binomial
    categorical = distributions.categorical

    # --- Arithmetic
    add = arithmetic.add
    sub = subtract = arithmetic.sub
    mul = multiply = arithmetic.mul
    div = divide = true_divide = arithmetic.div
    floor_divide = arithmetic.floor_divide
    remainder = mod = arithmetic.remainder
    pow = power = arithmetic.pow
    neg = negative = arithmetic.neg
    abs = absolute = arithmetic.abs

    # --- Comparison, bits, choice
    lt = less = comparison.lt
    le = less_equal = comparison.le
    gt = greater = comparison.gt
    ge = greater_equal = comparison.ge
    eq = equal = comparison.eq
    ne = not_equal = comparison.ne
    maximum, minimum = comparison.maximum, comparison.minimum
    clamp = clip = comparison.clamp
    bitwise_and, bitwise_or = comparison.bitwise_and, comparison.bitwise_or
    bitwise_xor = comparison.bitwise_xor
    bitwise_left_shift = left_shift = comparison.bitwise_left_shift
    bitwise_right_shift = right_shift = comparison.bitwise_right_shift
    bitwise_not = invert = comparison.bitwise_not
    logical_not, where, masked_fill = comparison.logical_not, comparison.where, comparison.masked_fill

    # --- Functions of two numbers and more
    isclose, logical_and, logical_or = named.isclose, named.logical_and, named.logical_or
    logical_xor, __divmod__, fmod, frac = named.logical_xor, named.divmod_, named.fmod, named.frac
    fmax, fmin, nan_to_num, isposinf = named.fmax, named.fmin, named.nan_to_num, named.isposinf
    isneginf, hypot, logaddexp = named.isneginf, named.hypot, named.logaddexp
    logaddexp2, xlogy, heaviside, ldexp = named.logaddexp2, named.xlogy, named.heaviside, named.ldexp
    float_power, addcmul, addcdiv = named.float_power, named.addcmul, named.addcdiv
    deg2rad = radians = named.deg2rad
    rad2deg = degrees = named.rad2deg
    sinc, logit, positive = named.sinc, named.logit, named.positive
    gcd, lcm, nextafter, frexp = whole.gcd, whole.lcm, whole.nextafter, whole.frexp
    clamp_min, clamp_max, rsub = whole.clamp_min, whole.clamp_max, whole.rsub

    # --- Conversion
    byte, char, short = whole.byte, whole.char, whole.short
    cast = astype = conversion.cast
    bitcast, float, double = conversion.bitcast, conversion.float, conversion.double
    half, bfloat16, int, long = conversion.half, conversion.bfloat16, conversion.int, conversion.long
    bool = conversion.bool

    # --- Functions of one number
    exp, exp2, log, log2 = functions.exp, functions.exp2, functions.log, functions.log2
    log10, expm1, log1p, sqrt = functions.log10, functions.expm1, functions.log1p, functions.sqrt
    rsqrt, square, reciprocal = functions.rsqrt, functions.square, functions.reciprocal
    sin, cos, tan = functions.sin, functions.cos, functions.tan
    atan = arctan = functions.atan
    atan2 = arctan2 = functions.atan2
    asin = arcsin = functions.asin
    acos = arccos = functions.acos
    sinh, cosh, tanh = functions.sinh, functions.cosh, functions.tanh
    asinh = arcsinh = functions.asinh
    acosh = arccosh = functions.acosh
    atanh = arctanh = functions.atanh
    erf = functions.erf
    erfc, erfinv = errors.erfc, errors.erfinv
    ndtr, ndtri, log_ndtr = errors.ndtr, errors.ndtri, errors.log_ndtr
    xlog1py, entr, expit = errors.xlog1py, errors.entr, errors.expit
    lgamma = gammaln = gamma.lgamma
    digamma, polygamma = gamma.digamma, gamma.polygamma
    mvlgamma = multigammaln = gamma.multigammaln
    gammainc = igamma = gamma.gammainc
    gammaincc = igammac = gamma.gammaincc
    i0, i0e, i1, i1e = bessel.i0, bessel.i0e, bessel.i1, bessel.i1e

    # --- Rounding, signs, what is no number
    floor, ceil = rounding.floor, rounding.ceil
    trunc = fix = rounding.trunc
    round = rint = __round__ = rounding.round
    sign = sgn = rounding.sign
    signbit, copysign, isnan = rounding.signbit, rounding.copysign, rounding.isnan
    isinf, isfinite = rounding.isinf, rounding.isfinite
    lerp = functions.lerp

    # --- Activation functions
    relu, relu6, leaky_relu = activations.relu, activations.relu6, activations.leaky_relu
    sigmoid = activations.sigmoid
    logsigmoid = log_sigmoid = activations.logsigmoid
    softplus = activations.softplus
    silu = swish = activations.silu
    gelu, quick_gelu, elu = activations.gelu, activations.quick_gelu, activations.elu
    mish, hardsigmoid, hardswish = activations.mish, activations.hardsigmoid, activations.hardswish
    softsign, hardtanh, celu = activations.softsign, activations.hardtanh, activations.celu
    selu, prelu, softshrink = activations.selu, activations.prelu, activations.softshrink
    hardshrink, tanhshrink = activations.hardshrink, activations.tanhshrink
    threshold = activations.threshold
    glu = activations.glu

    # --- Movement
    reshape = view = movement.reshape
    flatten, unflatten, squeeze = movement.flatten, movement.unflatten, movement.squeeze
    unsqueeze, permute, transpose = movement.unsqueeze, movement.permute, movement.transpose
    flip, expand, broadcast_to = movement.flip, movement.expand, movement.broadcast_to
    repeat = tile = movement.repeat
    shrink, narrow = movement.shrink, movement.narrow
    pad = padding.pad
    cat = concat = joining.cat
    stack, split, chunk, unbind = joining.stack, joining.split, joining.chunk, joining.unbind
    roll = joining.roll
    ravel = arrange.ravel
    swapaxes = swapdims = arrange.swapaxes
    movedim = moveaxis = arrange.movedim
    expand_as = arrange.expand_as
    reshape_as = view_as = arrange.reshape_as
    select, fliplr, flipud, rot90 = arrange.select, arrange.fliplr, arrange.flipud, arrange.rot90
    tensor_split, hstack, vstack = arrange.tensor_split, arrange.hstack, arrange.vstack
    meshgrid = staticmethod(arrange.meshgrid)
    diagonal, diag_embed, diag = arrange.diagonal, arrange.diag_embed, arrange.diag
    trace, rearrange = arrange.trace, arrange.rearrange

    atleast_1d, atleast_2d, atleast_3d = pieces.atleast_1d, pieces.atleast_2d, pieces.atleast_3d
    broadcast_tensors, sum_to_size = pieces.broadcast_tensors, pieces.sum_to_size
    column_stack, dstack, block_diag = pieces.column_stack, pieces.dstack, pieces.block_diag
    hsplit, vsplit, dsplit = pieces.hsplit, pieces.vsplit, pieces.dsplit
    split_with_sizes, as_strided, vander = pieces.split_with_sizes, pieces.as_strided, pieces.vander
    slice_scatter, select_scatter = pieces.slice_scatter, pieces.select_scatter
    diagonal_scatter, diagflat = pieces.diagonal_scatter, pieces.diagflat
    unravel_index, cartesian_prod = pieces.unravel_index, pieces.cartesian_prod
    combinations = pieces.combinations

    # --- Reductions
    sum, prod = reduce.sum, reduce.prod
    max = amax = reduce.max
    min = amin = reduce.min
    any, all, count_nonzero, mean = reduce.any, reduce.all, reduce.count_nonzero, reduce.mean
    var, std, norm, argmax = reduce.var, reduce.std, reduce.norm, reduce.argmax
    argmin, cumsum, cumprod, cummax = reduce.argmin, reduce.cumsum, reduce.cumprod, reduce.cummax
    cummin = reduce.cummin
    nansum, nanprod, nanmean = nan_reductions.nansum, nan_reductions.nanprod, nan_reductions.nanmean
    nanvar, nanmax, nanmin = nan_reductions.nanvar, nan_reductions.nanmax, nan_reductions.nanmin
    aminmax, var_mean = nan_reductions.aminmax, nan_reductions.var_mean
    allclose, array_equal, isin = statistics.allclose, statistics.array_equal, statistics.isin
    diff, trapezoid, slopes = statistics.diff, statistics.trapezoid, statistics.slopes
    cumulative_trapezoid, std_mean = statistics.cumulative_trapezoid, statistics.std_mean
    cov, corrcoef, dist, cdist = statistics.cov, statistics.corrcoef, statistics.dist, statistics.cdist
    kthvalue, mode, msort = statistics.kthvalue, statistics.mode, statistics.msort
    nanmedian, nanquantile, renorm = statistics.nanmedian, statistics.nanquantile, statistics.renorm
    histc, histogram, histogramdd = histograms.histc, histograms.histogram, histograms.histogramdd

    # --- Softmax, norms, losses
    softmax = normalization.softmax
    log_softmax = normalization.log_softmax
    logsumexp = normalization.logsumexp
    logcumsumexp = normalization.logcumsumexp
    layer_norm = normalization.layer_norm
    rms_norm = normalization.rms_norm
    batch_norm = normalization.batch_norm
    one_hot = normalization.one_hot
    cross_entropy = normalization.cross_entropy
    nll_loss = normalization.nll_loss
    mse_loss = normalization.mse_loss
    binary_cross_entropy_with_logits = normalization.binary_cross_entropy_with_logits
    tril = normalization.tril
    triu = normalization.triu

    # --- Index
    __getitem__ = index.getitem
    gather = index.gather
    take_along_dim = take_along_axis = index.take_along_dim
    index_select = index.index_select
    take = index.take
    embedding = index.embedding
    scatter = scattering.scatter
    scatter_add = scattering.scatter_add
    scatter_reduce = scattering.scatter_reduce
    index_add = scattering.index_add
    index_copy = scattering.index_copy
    index_put, put = scattering.index_put, scattering.put_flat
    index_fill, index_reduce = scattering.index_fill, scattering.index_reduce
    nonzero = selection.nonzero
    argwhere = selection.argwhere
    masked_select = selection.masked_select
    masked_scatter = selection.masked_scatter
    repeat_interleave = selection.repeat_interleave
    nonzero_static = selection.nonzero_static
    unique, unique_consecutive = distinct.unique, distinct.unique_consecutive
    bincount = selection.bincount
    assign = assignment.assign
    __setitem__ = assignment.setitem
    __iadd__, __isub__, __imul__ = assignment.iadd, assignment.isub, assignment.imul
    __itruediv__, __ifloordiv__ = assignment.itruediv, assignment.ifloordiv
    __imod__, __ipow__ = assignment.imod, assignment.ipow
    __iand__, __ior__, __ixor__ = assignment.iand, assignment.ior, assignment.ixor
    __ilshift__, __irshift__ = assignment.ilshift, assignment.irshift

    # --- In place, by PyTorch's names
    zero_, fill_, copy_, uniform_, normal_ = over.zero_, over.fill_, over.copy_, over.uniform_, over.normal_
    add_, sub_, mul_, div_, pow_ = over.add_, over.sub_, over.mul_, over.div_, over.pow_
    floor_divide_, remainder_, fmod_, neg_ = over.floor_divide_, over.remainder_, over.fmod_, over.neg_
    abs_, sign_ = over.abs_, over.sign_
    clamp_ = clip_ = over.clamp_
    clamp_min_, clamp_max_, masked_fill_ = over.clamp_min_, over.clamp_max_, over.masked_fill_
    addcmul_, addcdiv_, lerp_, nan_to_num_ = over.addcmul_, over.addcdiv_, over.lerp_, over.nan_to_num_
    exp_, log_, sqrt_, rsqrt_, square_ = over.exp_, over.log_, over.sqrt_, over.rsqrt_, over.square_
    reciprocal_, sin_, cos_ = over.reciprocal_, over.sin_, over.cos_
    tanh_, sigmoid_ = over.tanh_, over.sigmoid_
    relu_, floor_, ceil_, round_, trunc_ = over.relu_, over.floor_, over.ceil_, over.round_, over.trunc_
    tril_, triu_, cumsum_, index_add_ = over.tril_, over.triu_, over.cumsum_, over.index_add_
    index_copy_, index_fill_, index_put_ = over.index_copy_, over.index_fill_, over.index_put_
    scatter_, scatter_add_ = over.scatter_, over.scatter_add_

    # --- Facts
    dim, nelement, element_size, stride = facts.dim, facts.nelement, facts.element_size, facts.stride
    is_floating_point, is_contiguous = facts.is_floating_point, facts.is_contiguous
    t, type_as, cpu, copy, new_tensor = facts.t, facts.type_as, facts.cpu, facts.copy, facts.new_tensor

    # --- Order
    argsort, sort, topk = sorting.argsort, sorting.sort, sorting.topk
    searchsorted, bucketize, median = sorting.searchsorted, sorting.bucketize, middle.median
    quantile = middle.quantile

    # --- Products
    matmul = __matmul__ = products.matmul
    __rmatmul__, __imatmul__, outer = products.rmatmul, products.imatmul, products.outer
    linear = products.linear
    scaled_dot_product_attention = attention.scaled_dot_product_attention
    einsum, tensordot, dot, vdot = contract.einsum, contract.tensordot, contract.dot, contract.vdot
    inner, kron, cross, mm = contract.inner, contract.kron, contract.cross, contract.mm
    mv, bmm, addmm = contract.mv, contract.bmm, contract.addmm
    baddbmm, addbmm = contract.baddbmm, contract.addbmm
    addmv, addr = contract.addmv, contract.addr

    # --- Windows: convolutions, pools, resizing
    unfold = windows.unfold
    conv1d, conv2d, conv3d = convolution.conv1d, convolution.conv2d, convolution.conv3d
    conv_transpose, conv_transpose1d = convolution.conv_transpose, convolution.conv_transpose1d
    conv_transpose2d, conv_transpose3d = convolution.conv_transpose2d, convolution.conv_transpose3d
    max_pool1d, max_pool2d, max_pool3d = pools.max_pool1d, pools.max_pool2d, pools.max_pool3d
    avg_pool1d, avg_pool2d, avg_pool3d = pools.avg_pool1d, pools.avg_pool2d, pools.avg_pool3d
    adaptive_avg_pool1d, adaptive_avg_pool2d = pools.adaptive_avg_pool1d, pools.adaptive_avg_pool2d
    adaptive_max_pool1d, adaptive_max_pool2d = pools.adaptive_max_pool1d, pools.adaptive_max_pool2d
    adaptive_avg_pool3d, adaptive_max_pool3d = pools.adaptive_avg_pool3d, pools.adaptive_max_pool3d
    max_unpool1d, max_unpool2d, max_unpool3d = fold.max_unpool1d, fold.max_unpool2d, fold.max_unpool3d
    interpolate = resize.interpolate
    grid_sample, affine_grid = grid.grid_sample, grid.affine_grid
    im2col, col2im = fold.im2col, fold.col2im
    pixel_shuffle, pixel_unshuffle = fold.pixel_shuffle, fold.pixel_unshuffle
    channel_shuffle = fold.channel_shuffle

    # --- Systems of equations, factorisations
    solve_triangular, solve = solving.solve_triangular, solving.solve
    inv = inverse = solving.inv
    det, cholesky, qr, svd = solving.det, solving.cholesky, solving.qr, solving.svd
    logdet, slogdet = factors.logdet, factors.slogdet
    matrix_power, matrix_exp = powers.matrix_power, powers.matrix_exp
    cholesky_solve, cholesky_inverse = factors.cholesky_solve, factors.cholesky_inverse
    pinverse = inverses.pinv

    # --- Gradients
    requires_grad_, zero_grad, backward = reverse.requires_grad_, reverse.zero_grad, reverse.backward
    gradient = reverse.gradient

    # --- Values
    realize = export.realize
    prepare = plan = export.prepare
    numpy = export.numpy
    item = export.item
    tolist = export.tolist
    size = export.size

    # --- What Python and NumPy ask
    __array__, __dlpack__ = python.as_array, python.dlpack
    __array_ufunc__, __array_function__ = python.array_ufunc, python.array_function
    __dlpack_device__ = python.dlpack_device
    __len__, __iter__, __contains__ = python.length, python.iterate, python.contains
    __bool__, __int__, __float__ = python.truth, python.as_int, python.as_float
    __index__ = python.as_index
    __repr__, __format__ = python.text_of, python.format_text
    __copy__, __deepcopy__, __reduce__ = python.copied, python.deepcopied, python.pickled


# Gradients of functions by name, which are made of tensors.
CALLS["attention"] = partial(attention.pull_attention, Tensor._new)
CALLS["sorted"] = partial(sorting.pull_sorted, Tensor._new)
CALLS["conv"] = partial(convolution.pull_convolution, Tensor._new)
enter_gradients(Tensor._new)
special_gradients.enter_gradients(Tensor._new)
