"""Before a run: whether it fits, how long it takes, and what this machine lacks for it."""
