"""A kernel's list of instructions as CUDA C++."""
