"""A prototype of a world of three-dimensional people: asset, drawing, clips and its measures."""
