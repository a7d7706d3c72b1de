"""What every page and server of the project shares: who may come in, and how many."""
