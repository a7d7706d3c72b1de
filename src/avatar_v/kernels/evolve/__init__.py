"""A search for faster code of one scope: `avatar-v kernels evolve` (spec, grammar, islands)."""
