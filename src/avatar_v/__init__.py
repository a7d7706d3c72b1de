"""avatar_v: train, distil, align, run and measure talking-avatar video models."""

__version__ = "0.1.0"
