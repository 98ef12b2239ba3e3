"""Search among sequences of actions: the space, a cost model, beam search, and timing in pairs."""
