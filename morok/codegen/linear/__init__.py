"""The list of instructions: control flow, order, bounds checks, prefetches."""
