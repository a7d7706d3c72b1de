"""Scores of a clip: one interface, ``score(clip) -> values``, for all that measures a video.

`clip` is what a score sees, its frames in blocks (`pictures`). A `scorer` reads named numbers of
it (`values`), each with a unit and the way that is better; those that come along are the files of
`scorers/`, found by the `registry`. A metric of the benchmark is a scorer over the files of a case
(avatar_v_eval/bench/score.py), one of a study a scorer over a generated case, a reward one over a
sample (rewards/scored.py), and so are features of the preference model (rewards/score_features.py).
"""

OWN = "avatar_v.scoring.scorers"
PACKAGES = [OWN]
"""Where a benchmark finds scorers by their names; avatar_v_eval adds those of sets and systems."""
