"""PyTorch: `torch.compile(model, backend="morok")`, exported programs, one table of ATen operators."""

from morok.torch.backend import morok
from morok.torch.explain import Explanation, explain
from morok.torch.exported import ExportedModel, load

__all__ = ["morok", "load", "ExportedModel", "explain", "Explanation"]
