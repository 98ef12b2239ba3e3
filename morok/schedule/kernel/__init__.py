"""One kernel, from tensor ops to loops over scalars: stages 2 to 6."""
