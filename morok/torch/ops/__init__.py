"""Operators of ATen by family; each file enters its functions into the table."""
