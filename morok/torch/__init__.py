"""PyTorch: `torch.compile(model, backend="morok")`, exported programs, one table of ATen operators."""
