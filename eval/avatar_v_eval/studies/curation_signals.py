"""Whether the data engine's signals of a clip fit what was drawn: faults of camera and light, and
what a face does."""

import dataclasses
from collections.abc import Sequence

import numpy as np
import torch

from avatar_v.faces.face_reader import READ
from avatar_v.types import MOTION_NAMES
from avatar_v_data.curation.expression import columns
from avatar_v_eval.intervals import interval_without, within_unit
from avatar_v_eval.records import Number
from avatar_v_eval.studies.curation_truth import WANTED, WHOLE, WORDS, Truth

SIGNALS = {
    "shaky": "shake",
    "choppy": "repeats",
    "light": "light_change",
    "flicker": "light_flicker",
}
"""Fault → the column that shows it."""
COMPARED = ("mouth_open", "mouth_movement", "gaze_away", "blinks", "teeth")
"""Columns whose truth the motion of a drawn person tells."""


def faults(truths: Sequence[Truth]) -> dict[str, Number]:
    """Of clips of one person who speaks: how often the fault's column is larger than that of a clip
    without fault (area under the curve)."""
    rows = [
        (unit, *truth.most("kind", clip), clip)
        for unit, truth in enumerate(truths)
        for clip in truth.clips
        if all(column in clip for column in SIGNALS.values())
    ]
    numbers = {}
    for fault, column in SIGNALS.items():
        kinds_of = [
            (unit, kind, clip[column]) for unit, kind, share, clip in rows if share >= WHOLE
        ]
        bad = [(unit, value) for unit, kind, value in kinds_of if kind == fault]
        good = [(unit, value) for unit, kind, value in kinds_of if kind in WANTED]
        if bad and good:
            numbers[f"auc_{fault}"] = auc(bad, good).described(
                f"{column} tells clips apart: {WORDS[fault]}"
            )
    return numbers


def auc(bad: Sequence[tuple[int, float]], good: Sequence[tuple[int, float]]) -> Number:
    """How often a bad one's value is the larger one, of all pairs; recordings, which are named
    beside the values, are left out one at a time. n counts the values."""
    units = np.unique([unit for unit, _ in (*bad, *good)])
    (bad_of, high), (good_of, low) = (np.array(part, float).T for part in (bad, good))
    wins = (high[:, None] > low[None]) + 0.5 * (high[:, None] == low[None])

    def of(*without: int) -> float:
        kept = wins[~np.isin(bad_of, without)][:, ~np.isin(good_of, without)]
        return float(kept.mean()) if kept.size else float(wins.mean())

    number = interval_without(of(), np.array([of(unit) for unit in units]))
    return dataclasses.replace(within_unit(number), n=len(bad) + len(good))


def readings(truths: Sequence[Truth]) -> dict[str, Number]:
    """Correlation over clips of what is read of faces with the same of the drawn motion."""
    names = [MOTION_NAMES.index(name) for name in READ]
    pairs: dict[str, list[tuple[int, float, float]]] = {name: [] for name in COMPARED}
    for unit, truth in enumerate(truths):
        for clip in truth.clips:
            if truth.most("kind", clip)[0] in (*WANTED, *SIGNALS) and COMPARED[0] in clip:
                motion = truth.motion[clip["start"] : clip["stop"], names]
                true = columns(torch.from_numpy(motion).float())
                for name in COMPARED:
                    pairs[name].append((unit, clip[name], true[name]))
    return {
        f"read_{name}": _correlation(rows).described(f"{name}: correlation with the truth")
        for name, rows in pairs.items()
        if len(rows) > 2
    }


def _correlation(rows: Sequence[tuple[int, float, float]]) -> Number:
    unit, read, true = np.array(rows, float).T

    def of(kept: np.ndarray) -> float:
        spread = read[kept].std() * true[kept].std()
        return float(np.corrcoef(read[kept], true[kept])[0, 1]) if spread else 0.0

    without = np.array([of(unit != one) for one in np.unique(unit)])
    number = interval_without(of(np.ones(len(unit), bool)), without)
    return dataclasses.replace(number, n=len(rows), high=min(number.high or 1.0, 1.0))
