"""What every call of a method goes through: the user's line, the trace cache, a trace in progress."""
