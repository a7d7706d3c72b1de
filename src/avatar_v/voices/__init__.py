"""Voices: a codec of speech and a language model over its codes, trained here (Avatar V §2.3)."""
