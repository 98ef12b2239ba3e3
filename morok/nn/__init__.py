"""Layers, losses, optimisers, and models' state on disk."""

from morok.nn import losses as losses
from morok.nn import schedules as schedules
from morok.nn import state as state
from morok.nn.attention import MultiHeadAttention
from morok.nn.conv import (
    Conv1d,
    Conv2d,
    Conv3d,
    ConvTranspose1d,
    ConvTranspose2d,
    ConvTranspose3d,
    conv_transpose,
)
from morok.nn.linear import Bilinear, Dropout, Embedding, Identity, Linear
from morok.nn.module import (
    Module,
    Sequential,
    is_training,
    named_tensors,
    parameter_count,
    parameters,
    training,
    zero_grad,
)
from morok.nn.norm import (
    BatchNorm,
    BatchNorm1d,
    BatchNorm2d,
    BatchNorm3d,
    GroupNorm,
    InstanceNorm,
    InstanceNorm1d,
    InstanceNorm2d,
    InstanceNorm3d,
    LayerNorm,
    RMSNorm,
)
from morok.nn.optim import LAMB, SGD, Adam, AdamW, Muon, Optimizer, clip_grad_norm, clip_grad_value
from morok.nn.recurrent import GRU, LSTM, RNN
from morok.nn.resume import load_checkpoint, save_checkpoint
from morok.nn.schedules import Schedule
from morok.nn.train import TrainStep, batches

__all__ = [
    "Linear", "Bilinear", "Embedding", "Dropout", "Identity", "Sequential", "Module",
    "Conv1d", "Conv2d", "Conv3d", "ConvTranspose1d", "ConvTranspose2d", "ConvTranspose3d", "conv_transpose",
    "BatchNorm", "BatchNorm1d", "BatchNorm2d", "BatchNorm3d", "LayerNorm", "RMSNorm", "GroupNorm",
    "InstanceNorm", "InstanceNorm1d", "InstanceNorm2d", "InstanceNorm3d",
    "MultiHeadAttention", "RNN", "LSTM", "GRU",
    "Optimizer", "SGD", "Adam", "AdamW", "LAMB", "Muon", "clip_grad_norm", "clip_grad_value", "Schedule",
    "TrainStep", "batches", "save_checkpoint", "load_checkpoint",
    "parameters", "named_tensors", "parameter_count", "zero_grad", "training", "is_training",
]  # fmt: skip
