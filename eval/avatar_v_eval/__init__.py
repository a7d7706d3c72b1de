"""Measurements of avatar_v: what was asked, what was measured, on what, with which command.

Every number that the project claims is a JSON file in ``eval/results``, written by one module
here (``records`` is the format) and read by ``tables`` and ``curves``, which make the README's
tables and figures. This package imports ``avatar_v``; ``avatar_v`` never imports it.
"""

from avatar_v.scoring import PACKAGES

PACKAGES.append("avatar_v_eval.scoring.scorers")
