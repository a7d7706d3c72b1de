"""Of what kind each clip is: names for ranges of what the stages say, in nineteen dimensions.

`select` evens a tier out by them (Avatar V §5.4), in balance.py as by any column. What has no
column, since the plan lacks the stage, has no kind. Persons are in none of the dimensions: who they
are, their age, sex or origin are not guessed.
"""

from bisect import bisect_right
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from avatar_v_data.curation.stages import Stage

KINDS: Mapping[str, tuple[str, tuple[float, ...], str]] = {
    "resolution": ("face_pixels", (160, 320), "small middle large"),
    "framing": ("face_share", (0.2, 0.4), "wide bust close"),
    "length": ("seconds", (5, 10), "short middle long"),
    "light": ("brightness", (80, 170), "dark normal bright"),
    "contrast": ("contrast", (30, 60), "flat normal hard"),
    "focus": ("sharpness", (100, 400), "soft normal sharp"),
    "background": ("background_spread", (15, 40), "plain mixed busy"),
    "motion": ("subject_motion", (4, 12), "calm normal lively"),
    "camera": ("camera_motion", (1, 5), "fixed handheld moving"),
    "head": ("turned", (0.1, 0.5), "frontal turning turned"),
    "gaze": ("gaze_away", (0.2, 0.6), "camera changing aside"),
    "mouth": ("mouth_movement", (0.1, 0.2), "calm normal lively"),
    "persons": ("num_faces", (1.5,), "one several"),
    "text": ("text", (0.005, 0.05), "none some much"),
    "pace": ("words_per_s", (2, 3.5), "slow normal fast"),
    "sound": ("snr_db", (15, 30), "noisy fair clean"),
    "speakers": ("speakers", (1.5,), "one several"),
    "hands": ("hands", (0.2, 0.7), "none sometimes mostly"),
}
"""Dimension → its column, where one kind ends and the next begins, and their names."""
DERIVED = {"face_share": "looks", "background_spread": "looks", "sync_shift": "sync"}
"""Columns that table.py makes of what a stage says."""
OF_ALL = ("seconds", "num_partners", "num_scenes"), ("file", "person", "scene", "copy_of")
"""Numbers and words that each clip has by table.py and graph.py, whatever the stages."""


def kinds(row: Mapping[str, Any]) -> dict[str, str]:
    """``kind_DIMENSION`` of a clip. A language is a kind as it is."""
    found = {
        f"kind_{name}": words.split()[bisect_right(ends, row[column])]
        for name, (column, ends, words) in KINDS.items()
        if column in row
    }
    return found | ({"kind_language": row["language"]} if "language" in row else {})


def columns(stages: Iterable[type[Stage] | Stage]) -> tuple[list[str], list[str]]:
    """What clips behind these stages have: the numbers, which limits can name (`Stage.numbers`),
    and the words."""
    stages = list(stages)
    numbers, words = ([*own] for own in OF_ALL)
    numbers += [name for stage in stages for name in stage.numbers]
    words += [name for stage in stages for name in stage.texts]
    known = {stage.name for stage in stages}
    numbers += [column for column, stage in DERIVED.items() if stage in known]
    words += [f"kind_{name}" for name, (column, *_) in KINDS.items() if column in numbers]
    words += ["kind_language"] if "language" in words else []
    return numbers, words


def is_among(column: str, names: Iterable[str]) -> bool:
    """Whether it is one of them, or begins as one that ends in "_"."""
    return any(column == name or (name[-1] == "_" and column.startswith(name)) for name in names)


def background_spread(cells: Iterable[list[int] | None]) -> float:
    """Standard deviation of a background's colours over its cells, mean of red, green and blue; 0
    where the head is everywhere."""
    known = np.array([cell for cell in cells if cell is not None], float).reshape(-1, 3)
    return round(float(known.std(0).mean()), 2) if len(known) else 0.0
