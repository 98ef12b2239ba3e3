"""Optimisers: how parameters follow their gradients."""

from morok.nn.optim.adaptive import LAMB, Adadelta, Adagrad, Adam, Adamax, AdamW, NAdam, RAdam, RMSprop
from morok.nn.optim.base import Optimizer
from morok.nn.optim.clip import clip_grad_norm, clip_grad_value
from morok.nn.optim.momentum import SGD, Muon, orthogonal

__all__ = [
    "Adadelta",
    "Adagrad",
    "Adamax",
    "NAdam",
    "RAdam",
    "RMSprop",
    "LAMB",
    "SGD",
    "Adam",
    "AdamW",
    "Muon",
    "Optimizer",
    "clip_grad_norm",
    "clip_grad_value",
    "orthogonal",
]
