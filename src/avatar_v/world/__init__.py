"""A procedural world of talking heads: pictures, speech and motion with exact ground truth."""
