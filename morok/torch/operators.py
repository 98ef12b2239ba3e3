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
)

FAMILIES = (
    elementwise, movement, creation, reductions, normalization, products, convolution, pools, indexing,
    linalg, searching, random,
)  # fmt: skip
