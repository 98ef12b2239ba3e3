"""Lanes: ranges become vectors, vectors what the device has; fragments of matrix units."""
