"""Instruction list → text: LLVM IR for CPUs, CUDA C for GPUs. Running it is another room's business."""
