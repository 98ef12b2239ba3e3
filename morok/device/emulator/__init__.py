"""A GPU in NumPy that checks what no GPU checks: races, bounds, deadlocks, memory that nobody has written."""
