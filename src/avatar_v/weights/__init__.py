"""Folders of weights: cards, presets, loading and saving, adapters, averages, import of Wan."""
