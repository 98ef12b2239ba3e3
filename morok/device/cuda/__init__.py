"""NVIDIA GPUs: the driver, the run-time compiler, memory, launches and graphs."""
