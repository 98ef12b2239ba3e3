"""What Python and NumPy ask of a tensor by special names."""
