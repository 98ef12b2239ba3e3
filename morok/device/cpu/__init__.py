"""The CPU: LLVM, machine code in memory, and the threads that share a kernel's outermost loop."""
