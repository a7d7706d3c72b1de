"""What makes an input that was not given: speech of a script, and the first picture of a scene."""
