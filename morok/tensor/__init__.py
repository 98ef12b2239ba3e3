"""The lazy tensor: what users write. Methods add nodes to a graph; nothing runs until values are wanted."""
