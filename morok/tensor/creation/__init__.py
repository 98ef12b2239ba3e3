"""Where tensors come from: numbers, arrays, files."""
