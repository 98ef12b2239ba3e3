"""A kernel's list of instructions as LLVM IR."""
