"""What happens between a schedule and its results: plans, kernels that are kept, timing."""
