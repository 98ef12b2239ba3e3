"""Optimisers: how parameters follow their gradients."""

from morok.nn.optim.adaptive import LAMB, Adam, AdamW
from morok.nn.optim.base import Optimizer
from morok.nn.optim.clip import clip_grad_norm, clip_grad_value
from morok.nn.optim.momentum import SGD, Muon, orthogonal

__all__ = [
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
