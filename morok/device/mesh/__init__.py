"""Meshes of devices: memory in parts, kernels for every rank, and the engines that carry between ranks."""
