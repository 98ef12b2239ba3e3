"""The one IR: ops, nodes, their meaning, what can be inferred about them, and how they are written down."""
