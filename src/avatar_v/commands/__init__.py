"""One module a command of avatar-v, each above all that it calls."""
