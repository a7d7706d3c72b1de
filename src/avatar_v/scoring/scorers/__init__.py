"""Files of scorers; `registry.scorer_classes` finds them. A new file here is a new score."""
