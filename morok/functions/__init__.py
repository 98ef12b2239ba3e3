"""Functions of tensors that are no methods, by the namespaces that NumPy, SciPy and PyTorch have them in."""
