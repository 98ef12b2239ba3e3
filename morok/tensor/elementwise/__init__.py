"""One result per element: arithmetic, functions, activations, conversions."""
