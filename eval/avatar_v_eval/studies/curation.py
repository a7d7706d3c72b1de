"""What the data engine makes of drawn footage, whose truth is known (`avatar-v-data footage`).

It reads what `avatar-v-data select` left: the manifest of a tier, all clips with their persons, and
the shots. Recordings are the independent units.
"""

import argparse
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from avatar_v.types import FRAME_RATE_HZ
from avatar_v_data.curation.curated import opened
from avatar_v_data.world_faults import PLANTED
from avatar_v_eval.intervals import interval_without, pooled_mean, within_unit
from avatar_v_eval.protocol import Findings
from avatar_v_eval.records import Number
from avatar_v_eval.studies.curation_clips import beside_limits
from avatar_v_eval.studies.curation_faults import planted
from avatar_v_eval.studies.curation_signals import faults, readings
from avatar_v_eval.studies.curation_truth import WANTED, WHOLE, WORDS, Truth, read

NEAR = 12
"""Frames from a true cut to one that counts as found: a dissolve lasts ten."""


def add_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--footage", required=True, help="what avatar-v-data footage drew, or plant made of films")
    add("--selected", required=True, help="what avatar-v-data select wrote of it")
    add("--run", help="what avatar-v-data curate wrote of it: clipping beside single limits, too")
    add("--tier", default="a2v", help="whose clips are judged (default: a2v)")


def measure(options: argparse.Namespace) -> Findings:
    truths = read(Path(options.footage), Path(options.selected), options.tier)
    if any(shot["kind"] in PLANTED for truth in truths for shot in truth.shots):
        if options.run is None:
            raise ValueError("--run: planted faults are measured at the limits of its plan")
        return planted(opened(options.run), truths, options.tier)
    numbers = {**shots(truths), **kinds(truths), **sound(truths), **groups(truths)}
    numbers |= {**copies(truths), **faults(truths), **readings(truths)}
    numbers |= funnel(Path(options.selected), options.tier)
    if options.run is not None:
        numbers |= beside_limits(opened(options.run), truths)
    minutes = sum(truth.num_frames for truth in truths) / FRAME_RATE_HZ / 60
    return Findings(
        "The data engine on drawn footage",
        numbers,
        notes=[
            f"{len(truths)} recordings, {minutes:.0f} minutes, tier {options.tier}; intervals are "
            "over recordings, of pairs by leaving out one at a time",
            f"a cut is found if one lies within {NEAR} frames; persons and scenes are counted in "
            f"pairs of clips that show one person for {WHOLE:.0%} of their time",
        ],
    )


def shots(truths: Sequence[Truth]) -> dict[str, Number]:
    """Cuts found of those that can be seen, and found ones that are true, where shots were looked
    for."""
    seen = [truth for truth in truths if truth.found_shots]

    def hits(cuts: list[int], others: list[int]) -> int:
        return sum(any(abs(cut - other) <= NEAR for other in others) for cut in cuts)

    def recall(words: str, *is_dissolve: bool) -> Number:
        parts = []
        for truth in seen:
            slow = {shot["start"] for shot in truth.shots if shot["dissolve"]}
            cuts = [cut for cut in truth.visible_cuts if (cut in slow) in is_dissolve]
            parts.append((hits(cuts, truth.found_cuts), len(cuts)))
        found = _share(parts, f"{words} that can be seen, found")
        return replace(found, n=sum(num for _, num in parts))

    return {
        "cuts_recall": recall("cuts", True, False),
        "cuts_dissolves": recall("of these, dissolves", True),
        "cuts_precision": _share(
            [(hits(t.found_cuts, t.any_cuts), len(t.found_cuts)) for t in seen],
            "found cuts that are true",
        ),
    }


def funnel(selected: Path, tier: str) -> dict[str, Number]:
    """Minutes that each limit of the tier leaves, of so many clips."""
    steps = json.loads((selected / "report.json").read_text())["tiers"][tier]
    return {
        f"minutes_{number}": Number(
            step["seconds"] / 60, step["clips"] or 1, unit="min", label=f"after {step['what']}"
        )
        for number, step in enumerate(steps)
    }


def kinds(truths: Sequence[Truth]) -> dict[str, Number]:
    """The share of each kind's time that is taken, and what was taken; of videos that were uploaded
    twice, once."""
    truths = [truth for truth in truths if not truth.copy_of]
    numbers = {}
    shown = {shot["kind"] for truth in truths for shot in truth.shots}
    for kind in (kind for kind in WORDS if kind in shown):
        own = [truth.of_frames("kind") == kind for truth in truths]
        numbers[f"taken_{kind}"] = _share(
            [
                (int((truth.is_taken & mask).sum()), int(mask.sum()))
                for truth, mask in zip(truths, own, strict=True)
            ],
            f"share taken: {WORDS[kind]}",
        )
    wanted = [np.isin(truth.of_frames("kind").astype(str), WANTED) for truth in truths]
    numbers["wanted_before"] = _share(
        [(int(mask.sum()), len(mask)) for mask in wanted],
        "footage in which one person is seen speaking",
    )
    numbers["wanted_after"] = _share(
        [
            (int((truth.is_taken & mask).sum()), int(truth.is_taken.sum()))
            for truth, mask in zip(truths, wanted, strict=True)
        ],
        "the same of what is taken",
    )
    return numbers


def sound(truths: Sequence[Truth]) -> dict[str, Number]:
    """How well late sound is told: of clips most of which are speech."""
    errors = []
    for truth in truths:
        rows = [row for row in truth.taken if truth.most("kind", row)[0] in WANTED]
        errors.append([abs(row["sound_late"] - truth.most("late", row)[0]) for row in rows])
    return {
        "sound_in_time": _share(
            [(sum(error <= 1 for error in own), len(own)) for own in errors],
            "clips taken whose sound is in time to a frame",
        )
    }


def groups(truths: Sequence[Truth]) -> dict[str, Number]:
    """Pairs of clips of one person, and of one person's scene; beside "a file is a person"."""
    rows = []
    for unit, truth in enumerate(truths):
        for clip in truth.clips:
            (person, share), (scene, _) = truth.most("person", clip), truth.most("scene", clip)
            if person is not None and share >= WHOLE and truth.most("kind", clip)[0] != "two":
                rows.append((unit, person, scene, clip["person"], clip["scene"], truth.file))
    unit, person, scene, found, found_scene, file = (np.array(x) for x in zip(*rows, strict=True))
    pairs = np.triu(np.ones((len(rows), len(rows)), bool), 1)
    same, said, by_file = (x[:, None] == x[None] for x in (person, found, file))
    numbers = {}
    for key, claim, words in (
        ("person", said, "one person, by faces"),
        ("person_by_file", by_file, "one person, a file each"),
    ):
        numbers |= _pairs(key, claim & pairs, same & pairs, unit, words)
    both = same & said & pairs
    numbers |= _pairs(
        "scene",
        (found_scene[:, None] == found_scene[None]) & both,
        (scene[:, None] == scene[None]) & both,
        unit,
        "one scene of a person",
    )
    return numbers


def copies(truths: Sequence[Truth]) -> dict[str, Number]:
    """Clips of videos that were uploaded twice: is what both show in clips of one alone, and what
    else was called a copy or left out before any model looked?"""
    by_file = {truth.file: truth for truth in truths}
    again = [truth for truth in truths if truth.copy_of]
    twice = {truth.copy_of for truth in again} | {truth.file for truth in again}
    said = {t.file: sum(bool(clip["copy_of"]) for clip in t.clips) for t in truths}
    right = [(num if file in twice else 0, num) for file, num in said.items()]
    once = []
    for copy in again:
        original = _kept(by_file[copy.copy_of])[copy.lacks :]
        both = np.stack([original, _kept(copy)[: len(original)]])
        once.append((int(both.any(0).sum() - both.all(0).sum()), int(both.any(0).sum())))
    out, still = [], []
    for truth in truths:
        is_out, is_still = truth.is_in(truth.left_out), truth.of_frames("kind") == "still"
        right_out = is_out & (is_still | (truth.file in twice))
        out.append((int(right_out.sum()), int(is_out.sum())))
        still.append((int((is_out & is_still).sum()), int(is_still.sum())))
    return {
        "copies_precision": Number(
            sum(num for num, _ in right) / max(sum(num for _, num in right), 1),
            sum(num for _, num in right),
            label="clips called copies that are",
        ),
        "copies_once": _share(
            once, "of what clips show of videos uploaded twice, shown in clips of one alone"
        ),
        "out_precision": _share(out, "footage left out before any model that is copied or still"),
        "out_still": _share(still, "still footage left out before any model"),
    }


def _kept(truth: Truth) -> np.ndarray:
    """Of each frame whether it lies in a clip that is not called a copy."""
    return truth.is_in((c["start"], c["stop"]) for c in truth.clips if not c["copy_of"])


def _pairs(
    key: str, claimed: np.ndarray, true: np.ndarray, unit: np.ndarray, words: str
) -> dict[str, Number]:
    """Precision and recall of claims about pairs."""
    return {
        f"{key}_precision": _share_of_pairs(claimed & true, claimed, unit).described(
            f"pairs said to be {words}, that are"
        ),
        f"{key}_recall": _share_of_pairs(claimed & true, true, unit).described(
            f"pairs that are {words}, found"
        ),
    }


def _share_of_pairs(some: np.ndarray, all_: np.ndarray, unit: np.ndarray) -> Number:
    """The share of pairs, with the interval from leaving out one recording at a time."""

    def of(kept: np.ndarray) -> float:
        both = kept[:, None] & kept[None]
        return float((some & both).sum() / max((all_ & both).sum(), 1))

    units = np.unique(unit)
    value, without = of(np.ones(len(unit), bool)), np.array([of(unit != u) for u in units])
    return within_unit(interval_without(value, without))


def _share(parts: Sequence[tuple[int, int]], label: str) -> Number:
    """Sum of the first over sum of the second, with recordings as units: those that have some. An
    interval needs two of them."""
    sums, counts = np.array(parts, float).T
    num = int((counts > 0).sum())
    if num < 2:
        return Number(float(sums.sum() / max(counts.sum(), 1)), num, label=label)
    return pooled_mean(sums, counts).described(label)
