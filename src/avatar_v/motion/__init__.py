"""Motion of a face as vectors: their statistics, a person's style in them, what reads them."""
