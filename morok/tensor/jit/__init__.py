"""`@jit`: tracing, guards, replay."""
