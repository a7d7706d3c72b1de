"""Spreading models over devices. It wraps them from outside; no model knows of it."""
