"""Attention kernels: one signature each, the specification beside the fast path."""
