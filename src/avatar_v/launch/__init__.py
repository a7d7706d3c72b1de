"""A recipe on this machine, a queue or a cloud: what engines read, written and submitted."""
