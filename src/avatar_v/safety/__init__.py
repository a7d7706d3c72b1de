"""The mark in generated frames, and the signed manifest beside them."""
