"""All operators: importing this enters every family into the table."""

from morok.torch.ops import (
    convolution,
    creation,
    elementwise,
    indexing,
    linalg,
    movement,
    normalization,
    pools,
    products,
    random,
    reductions,
    searching,
    special,
)

FAMILIES = (
    elementwise, movement, creation, reductions, normalization, products, convolution, pools, indexing,
    linalg, searching, special, random,
)  # fmt: skip
