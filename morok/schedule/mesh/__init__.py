"""Graphs of tensors on a mesh become the graph of one rank."""
