"""Operators by family; each file enters its rows into the table."""
