"""Reductions, scans and local buffers: from what is summed to how it is added up."""
