"""Proofs about kernels: that a list of instructions is safe, and that it computes what the kernel says."""
