"""Elements moved, picked, combined and put in order."""
