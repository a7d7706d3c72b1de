"""One engine for every objective: roles, optimisers, draws, windows, what batches give."""
