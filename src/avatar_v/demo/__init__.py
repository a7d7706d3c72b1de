"""One held-out person of the embedded world through the whole way, and a score."""
