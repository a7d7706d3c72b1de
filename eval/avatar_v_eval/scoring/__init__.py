"""Scores of a clip: one interface, ``score(clip) -> values``, for the benchmark and the studies.

`clip` is what a score sees, its frames in blocks (`pictures`). A `scorer` reads named numbers of
it (`values`), each with a unit and the way that is better; those that come along are the files of
`scorers/`, found by the `registry`. A metric of the benchmark is a scorer over the files of a case
(bench/score.py), a metric of a study a scorer over a generated case (study_metrics.py).
"""
