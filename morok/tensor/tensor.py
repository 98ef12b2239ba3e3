"""The lazy tensor: one table of its methods, and where each is written.

A method is a function of a module, attached here under its name, and under other names that people know it
by. `methods` makes each remember the user's line; those of the pure modules are traced once per signature.
"""

from __future__ import annotations

from functools import partial
from typing import Any, Self, final

from morok.ir.ops import Ops
from morok.tensor import assign as assignment  # `assign`, like three below, is the name of a method, too
from morok.tensor import export, random
from morok.tensor.arrays import (
    arrange,
    index,
    joining,
    movement,
    nan_reductions,
    padding,
    reduce,
    selection,
    sorting,
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
)
from morok.tensor.elementwise.operators import Operators
from morok.tensor.gradient import backward as reverse
from morok.tensor.gradient.walk import CALLS
from morok.tensor.gradient_track import cut
from morok.tensor.linalg import (
    attention,
    contract,
    convolution,
    normalization,
    pools,
    products,
    resize,
    windows,
)
from morok.tensor.linalg import solve as solving
from morok.tensor.linalg.solve_gradients import enter_gradients
from morok.tensor.memory.storage import Storage, identified
from morok.tensor.protocols import python

# Modules whose functions do nothing but make a graph from their operands.
_PURE = (
    arithmetic, comparison, conversion, functions, rounding, named, activations, movement, padding, joining,
    arrange, reduce, nan_reductions, normalization, index, scattering, sorting, products, attention, contract,
    windows, convolution, pools,
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
        if requires_grad:
            reverse.requires_grad_(self)

    @property
    def T(self) -> Self:
        """The axes in reverse order."""
        return movement.reversed_axes(self)

    @property
    def mT(self) -> Self:
        """The last two axes swapped."""
        return arrange.matrix_transpose(self)

    @property
    def is_realized(self) -> bool:
        """Whether the values are in memory, so that nothing is left to compute."""
        return export.is_realized(self)

    @property
    def requires_grad(self) -> bool:
        """Whether gradients are wanted for this tensor, or for something that it is computed from."""
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
    to = constructors.to
    contiguous = constructors.contiguous
    clone = constructors.clone
    detach = constructors.detach

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
    multinomial = random.multinomial
    randint_like = random.randint_like
    dropout = random.dropout

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
    maximum = comparison.maximum
    minimum = comparison.minimum
    clamp = clip = comparison.clamp
    bitwise_and = comparison.bitwise_and
    bitwise_or = comparison.bitwise_or
    bitwise_xor = comparison.bitwise_xor
    bitwise_left_shift = left_shift = comparison.bitwise_left_shift
    bitwise_right_shift = right_shift = comparison.bitwise_right_shift
    bitwise_not = invert = comparison.bitwise_not
    logical_not = comparison.logical_not
    where = comparison.where
    masked_fill = comparison.masked_fill

    # --- Functions of two numbers and more
    isclose = named.isclose
    logical_and = named.logical_and
    logical_or = named.logical_or
    logical_xor = named.logical_xor
    __divmod__ = named.divmod_
    fmod = named.fmod
    frac = named.frac
    fmax = named.fmax
    fmin = named.fmin
    nan_to_num = named.nan_to_num
    isposinf = named.isposinf
    isneginf = named.isneginf
    hypot = named.hypot
    logaddexp = named.logaddexp
    logaddexp2 = named.logaddexp2
    xlogy = named.xlogy
    heaviside = named.heaviside
    ldexp = named.ldexp
    float_power = named.float_power
    addcmul = named.addcmul
    addcdiv = named.addcdiv
    deg2rad = radians = named.deg2rad
    rad2deg = degrees = named.rad2deg
    sinc = named.sinc
    logit = named.logit
    positive = named.positive

    # --- Conversion
    cast = astype = conversion.cast
    bitcast = conversion.bitcast
    float = conversion.float
    double = conversion.double
    half = conversion.half
    bfloat16 = conversion.bfloat16
    int = conversion.int
    long = conversion.long
    bool = conversion.bool

    # --- Functions of one number
    exp = functions.exp
    exp2 = functions.exp2
    log = functions.log
    log2 = functions.log2
    log10 = functions.log10
    expm1 = functions.expm1
    log1p = functions.log1p
    sqrt = functions.sqrt
    rsqrt = functions.rsqrt
    square = functions.square
    reciprocal = functions.reciprocal
    sin = functions.sin
    cos = functions.cos
    tan = functions.tan
    atan = arctan = functions.atan
    atan2 = arctan2 = functions.atan2
    asin = arcsin = functions.asin
    acos = arccos = functions.acos
    sinh = functions.sinh
    cosh = functions.cosh
    tanh = functions.tanh
    asinh = arcsinh = functions.asinh
    acosh = arccosh = functions.acosh
    atanh = arctanh = functions.atanh
    erf = functions.erf

    # --- Rounding, signs, what is no number
    floor = rounding.floor
    ceil = rounding.ceil
    trunc = fix = rounding.trunc
    round = rint = __round__ = rounding.round
    sign = sgn = rounding.sign
    signbit = rounding.signbit
    copysign = rounding.copysign
    isnan = rounding.isnan
    isinf = rounding.isinf
    isfinite = rounding.isfinite
    lerp = functions.lerp

    # --- Activation functions
    relu = activations.relu
    relu6 = activations.relu6
    leaky_relu = activations.leaky_relu
    sigmoid = activations.sigmoid
    logsigmoid = log_sigmoid = activations.logsigmoid
    softplus = activations.softplus
    silu = swish = activations.silu
    gelu = activations.gelu
    quick_gelu = activations.quick_gelu
    elu = activations.elu
    mish = activations.mish
    hardsigmoid = activations.hardsigmoid
    hardswish = activations.hardswish
    softsign = activations.softsign
    hardtanh = activations.hardtanh
    celu = activations.celu
    selu = activations.selu
    prelu = activations.prelu
    softshrink = activations.softshrink
    hardshrink = activations.hardshrink
    tanhshrink = activations.tanhshrink
    threshold = activations.threshold

    # --- Movement
    reshape = view = movement.reshape
    flatten = movement.flatten
    unflatten = movement.unflatten
    squeeze = movement.squeeze
    unsqueeze = movement.unsqueeze
    permute = movement.permute
    transpose = movement.transpose
    flip = movement.flip
    expand = movement.expand
    broadcast_to = movement.broadcast_to
    repeat = tile = movement.repeat
    shrink = movement.shrink
    narrow = movement.narrow
    pad = padding.pad
    cat = concat = joining.cat
    stack = joining.stack
    split = joining.split
    chunk = joining.chunk
    unbind = joining.unbind
    roll = joining.roll
    ravel = arrange.ravel
    swapaxes = swapdims = arrange.swapaxes
    movedim = moveaxis = arrange.movedim
    expand_as = arrange.expand_as
    reshape_as = view_as = arrange.reshape_as
    select = arrange.select
    fliplr = arrange.fliplr
    flipud = arrange.flipud
    rot90 = arrange.rot90
    tensor_split = arrange.tensor_split
    hstack = arrange.hstack
    vstack = arrange.vstack
    meshgrid = staticmethod(arrange.meshgrid)
    diagonal = arrange.diagonal
    diag_embed = arrange.diag_embed
    diag = arrange.diag
    trace = arrange.trace
    rearrange = arrange.rearrange

    # --- Reductions
    sum = reduce.sum
    prod = reduce.prod
    max = amax = reduce.max
    min = amin = reduce.min
    any = reduce.any
    all = reduce.all
    count_nonzero = reduce.count_nonzero
    mean = reduce.mean
    var = reduce.var
    std = reduce.std
    norm = reduce.norm
    argmax = reduce.argmax
    argmin = reduce.argmin
    cumsum = reduce.cumsum
    cumprod = reduce.cumprod
    cummax = reduce.cummax
    cummin = reduce.cummin
    nansum = nan_reductions.nansum
    nanprod = nan_reductions.nanprod
    nanmean = nan_reductions.nanmean
    nanvar = nan_reductions.nanvar
    nanmax = nan_reductions.nanmax
    nanmin = nan_reductions.nanmin
    aminmax = nan_reductions.aminmax
    var_mean = nan_reductions.var_mean

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
    index_put = scattering.index_put
    nonzero = selection.nonzero
    argwhere = selection.argwhere
    masked_select = selection.masked_select
    masked_scatter = selection.masked_scatter
    repeat_interleave = selection.repeat_interleave
    unique = selection.unique
    bincount = selection.bincount
    assign = assignment.assign
    __setitem__ = assignment.setitem
    __iadd__, __isub__, __imul__ = assignment.iadd, assignment.isub, assignment.imul
    __itruediv__, __ifloordiv__ = assignment.itruediv, assignment.ifloordiv
    __imod__, __ipow__ = assignment.imod, assignment.ipow
    __iand__, __ior__, __ixor__ = assignment.iand, assignment.ior, assignment.ixor
    __ilshift__, __irshift__ = assignment.ilshift, assignment.irshift

    # --- Order
    argsort = sorting.argsort
    sort = sorting.sort
    topk = sorting.topk
    searchsorted = sorting.searchsorted
    bucketize = sorting.bucketize
    median = sorting.median
    quantile = sorting.quantile

    # --- Products
    matmul = __matmul__ = products.matmul
    __rmatmul__ = products.rmatmul
    __imatmul__ = products.imatmul
    outer = products.outer
    linear = products.linear
    scaled_dot_product_attention = attention.scaled_dot_product_attention
    einsum = contract.einsum
    tensordot = contract.tensordot
    dot = contract.dot
    vdot = contract.vdot
    inner = contract.inner
    kron = contract.kron
    cross = contract.cross
    mm = contract.mm
    mv = contract.mv
    bmm = contract.bmm
    addmm = contract.addmm

    # --- Windows: convolutions, pools, resizing
    unfold = windows.unfold
    conv1d = convolution.conv1d
    conv2d = convolution.conv2d
    conv3d = convolution.conv3d
    conv_transpose = convolution.conv_transpose
    conv_transpose1d = convolution.conv_transpose1d
    conv_transpose2d = convolution.conv_transpose2d
    conv_transpose3d = convolution.conv_transpose3d
    max_pool1d = pools.max_pool1d
    max_pool2d = pools.max_pool2d
    max_pool3d = pools.max_pool3d
    avg_pool1d = pools.avg_pool1d
    avg_pool2d = pools.avg_pool2d
    avg_pool3d = pools.avg_pool3d
    adaptive_avg_pool1d = pools.adaptive_avg_pool1d
    adaptive_avg_pool2d = pools.adaptive_avg_pool2d
    adaptive_max_pool1d = pools.adaptive_max_pool1d
    adaptive_max_pool2d = pools.adaptive_max_pool2d
    interpolate = resize.interpolate

    # --- Systems of equations, factorisations
    solve_triangular = solving.solve_triangular
    solve = solving.solve
    inv = inverse = solving.inv
    det = solving.det
    cholesky = solving.cholesky
    qr = solving.qr
    svd = solving.svd

    # --- Gradients
    requires_grad_ = reverse.requires_grad_
    zero_grad = reverse.zero_grad
    backward = reverse.backward
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
CALLS["conv"] = partial(convolution.pull_convolution, Tensor._new)
enter_gradients(Tensor._new)
