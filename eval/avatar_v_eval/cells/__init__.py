"""A fleet of GPU cells, simulated: what a way to schedule makes of the same work."""
