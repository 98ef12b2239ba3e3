"""Ranks that were started together, and recipes for training on a mesh.

rank(), processes()         who this process is
data_parallel(model, mesh)  the same parameters everywhere, batches cut
fully_sharded(model, mesh)  parameters cut too, and gathered layer by layer (ZeRO-3)
tensor_parallel, sequence_parallel, stages and pipeline; Block, a transformer's that takes all of them
accumulate                  several batches for one step
save, load                  a file per rank and an index; loads onto any other mesh
save_checkpoint, load_checkpoint    the same for all that a training consists of: it goes on on any mesh
"""

from morok.device.mesh.world import processes, rank
from morok.nn.distributed.checkpoint import load, load_checkpoint, save, save_checkpoint
from morok.nn.distributed.recipes import (
    TRANSFORMER,
    accumulate,
    column_parallel,
    data_parallel,
    fully_sharded,
    gathered,
    pipeline,
    replicate,
    row_parallel,
    shard_batch,
    shard_model,
    tensor_parallel,
)
from morok.nn.distributed.transformer import Block, sequence_parallel, stages

__all__ = [
    "TRANSFORMER",
    "Block",
    "accumulate",
    "column_parallel",
    "data_parallel",
    "fully_sharded",
    "gathered",
    "load",
    "load_checkpoint",
    "pipeline",
    "processes",
    "rank",
    "replicate",
    "row_parallel",
    "save_checkpoint",
    "save",
    "sequence_parallel",
    "shard_batch",
    "shard_model",
    "stages",
    "tensor_parallel",
]
