"""Kernels for AVX-512 on an emulated processor that has it: Bochs, without an operating system."""
