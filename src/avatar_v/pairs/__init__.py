"""Pairs of samples that raters have ranked."""
