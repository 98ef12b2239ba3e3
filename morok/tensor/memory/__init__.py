"""The identity of memory: storages, views of them, and their states after assignments."""
