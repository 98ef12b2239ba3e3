"""From writes to a schedule: which share a kernel, in which order, in which memory."""
