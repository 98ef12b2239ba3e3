"""Instruction list → text: LLVM IR for CPUs. Running it is another room's business."""
