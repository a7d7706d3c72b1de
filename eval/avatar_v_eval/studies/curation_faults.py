"""What the stages of a plan say of planted faults (`avatar-v-data footage --planted`, or `plant` in
films): writing, hands, turned heads and pictures, sounds, altered copies, broken files.

Each recording holds each fault once, so that shots of one fault are independent: shares of shots
have Wilson's interval. A column's value of a shot is that of its clip. A shot that has none is
given as if it were one to the stages that should find its fault, a good one to all, so that each
stage is measured by itself.
"""

import contextlib
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from avatar_v.media.reading import read_video
from avatar_v.types import FRAME_RATE_HZ
from avatar_v_data.curation.curated import Curated
from avatar_v_data.curation.plan import Limit
from avatar_v_data.curation.stages import FAILED, Clip, ClipScorer, Seen
from avatar_v_data.world_faults import ALTERED, BROKEN, PLANTED
from avatar_v_eval.intervals import pooled_mean, rate, within_unit
from avatar_v_eval.protocol import Findings
from avatar_v_eval.records import Number
from avatar_v_eval.studies.curation_signals import auc
from avatar_v_eval.studies.curation_truth import WHOLE, WORDS, Truth

FINDS = {
    "text": ("subtitle", "logo", "screencast", "slides"),
    "num_faces": ("bystander",),
    "turned": ("turned",),
    "tilt": ("tilted", "sideways"),
    "hands": ("hand", "hand_on_face"),
    "snr_db": ("music",),
    "second_voice_share": ("voices",),
    "sync_confidence": ("voices", "music"),
    "text_on_face": (),
    "nudity": (),
}
"""Column → the faults that it is there to find; none: what it is there for was not drawn."""


class Scored(NamedTuple):
    """A shot with what stages say of it, by column."""

    recording: int
    kind: str
    columns: Mapping[str, Any]


def planted(run: Curated, truths: Sequence[Truth], tier: str) -> Findings:
    """ValueError for a plan that has no column of `FINDS` in its tier."""
    limits = run.plan.limits[tier]
    if not limits.keys() & FINDS.keys():
        raise ValueError(f"tier {tier} has no limit on {next(iter(FINDS))}: use another plan")
    whole = [truth for truth in truths if not truth.altered and not truth.broken]
    numbers: dict[str, Number] = {}
    there = {shot["kind"] for truth in whole for shot in truth.shots}
    for kind in ("talk", *PLANTED):
        numbers |= reached(whole, kind) if kind in there else {}
    shots = scored(run, whole)
    for column, faults in FINDS.items():
        if column in limits:
            numbers |= told(shots, column, limits[column], faults)
    if len(whole) < len(truths):
        numbers |= {**copies(truths, whole), **broken(truths)}
    minutes = sum(truth.num_frames for truth in whole) / FRAME_RATE_HZ / 60
    return Findings(
        f"Planted faults in {'drawn footage' if len(whole) < len(truths) else 'films'}",
        numbers,
        notes=[
            f"{len(whole)} recordings, {minutes:.0f} minutes; tier {tier} of plan {run.plan_name}; "
            "intervals of shares are Wilson's, of others over recordings"
        ],
    )


def reached(truths: Sequence[Truth], kind: str) -> dict[str, Number]:
    """Shots of a kind a second of which lies in a clip, and in one that is taken."""
    shots = [(truth, shot) for truth in truths for shot in truth.shots if shot["kind"] == kind]
    numbers = {}
    for key, words, rows in (("clipped", "have a clip", "clips"), ("taken", "are taken", "taken")):
        num = sum(
            any(_common(clip, shot) >= FRAME_RATE_HZ for clip in getattr(truth, rows))
            for truth, shot in shots
        )
        words = f"shots that {words}: {WORDS[kind]}"
        numbers[f"{key}_{kind}"] = rate(num, len(shots)).described(words)
    return numbers


def scored(run: Curated, truths: Sequence[Truth]) -> list[Scored]:
    """All shots with the columns of `FINDS` that are known of them; ``text`` says nothing of a shot
    without a face. ValueError for a recording that has no results."""
    seen: dict[str, Seen] = {}
    for task in run.tasks:
        own = seen.setdefault(task.recording.name, Seen(task.recording))
        own.results[task.stage.name] = run.store.result(task.key)
    found = []
    for unit, truth in enumerate(truths):
        own, frames = seen[truth.file], None
        if why := [name for name, result in own.results.items() if FAILED in result]:
            raise ValueError(f"{truth.file} has no {why[0]}: its shots cannot be scored")
        for number, shot in enumerate(truth.shots):
            start, stop, kind = shot["start"], shot["stop"], shot["kind"]
            clips = (c for c in truth.clips if _common(c, shot) >= WHOLE * (c["stop"] - c["start"]))
            columns: Mapping[str, Any] = next(clips, {})
            asked = {column for column, faults in FINDS.items() if _should(kind, faults)}
            for stage in () if columns else _asked(run, asked):
                if frames is None:
                    frames = list(read_video(own.recording.path))
                with contextlib.suppress(ValueError):
                    score = stage.score(Clip(number, start, stop, frames[start:stop]), own)
                    columns = {**columns, **{name: score[name] for name in asked & {*score}}}
            found.append(Scored(unit, kind, columns))
    return found


def _should(kind: str, faults: Sequence[str]) -> bool:
    """Whether a column that finds such faults should tell this kind of shot from others."""
    return bool(faults) and kind in ("talk", *faults)


def _asked(run: Curated, asked: Collection[str]) -> list[ClipScorer]:
    """The stages that give some of these columns."""
    return [s for s in run.plan.stages if isinstance(s, ClipScorer) and {*asked} & {*s.numbers}]


def told(
    shots: Sequence[Scored], column: str, limit: Limit, faults: Sequence[str]
) -> dict[str, Number]:
    """How well a column tells shots with its faults from good ones, and what its limit refuses."""
    sign = 1.0 if limit.max is not None else -1.0
    judged = [shot for shot in shots if column in shot.columns]
    refused = [shot.kind for shot in judged if not limit.holds(shot.columns[column])]
    numbers: dict[str, Number] = {}

    def values(kind: str) -> list[tuple[int, float]]:
        own = [shot for shot in judged if shot.kind == kind]
        return [(shot.recording, sign * shot.columns[column]) for shot in own]

    good = values("talk")
    for fault in faults:
        if (bad := values(fault)) and good:
            of = f"{column}: {WORDS[fault]}"
            numbers[f"auc_{column}_{fault}"] = auc(bad, good).described(f"{of}: area under curve")
            recall = rate(refused.count(fault), len(bad))
            numbers[f"recall_{column}_{fault}"] = recall.described(f"{of}: refused ({limit})")
    if refused and any(values(fault) for fault in faults):
        num = sum(kind in faults for kind in refused)
        words = f"{column}: refused shots that have such a fault"
        numbers[f"precision_{column}"] = rate(num, len(refused)).described(words)
    if good:
        alarms = rate(refused.count("talk"), len(good))
        numbers[f"alarms_{column}"] = alarms.described(f"{column}: good shots refused ({limit})")
    return numbers


def copies(truths: Sequence[Truth], whole: Sequence[Truth]) -> dict[str, Number]:
    """Of each kind of copy the time that is left out before any model looks, and of what is no copy
    and moves."""
    numbers = {}
    for how in ALTERED:
        own = [truth for truth in truths if truth.altered == how]
        numbers[f"copies_{how}"] = _left_out(own).described(f"copies left out: {how}")
    words = "footage that is no copy, left out"
    return {**numbers, "copies_wrong": _left_out(whole).described(words)}


def broken(truths: Sequence[Truth]) -> dict[str, Number]:
    """Broken files that the report names with a reason, and others of which nothing is missing."""
    numbers = {}
    for how in BROKEN:
        own = [truth for truth in truths if truth.broken == how]
        named = rate(sum(bool(truth.failed) for truth in own), len(own))
        numbers[f"broken_{how}"] = named.described(f"broken files named: {how}")
    rest = [truth for truth in truths if not truth.broken]
    kept = sum(not truth.failed or "shows what" in truth.failed for truth in rest)
    numbers["broken_others"] = rate(kept, len(rest)).described("other files, whole or named copies")
    return numbers


def _common(one: Mapping[str, Any], other: Mapping[str, Any]) -> int:
    """Frames that a clip and a shot have in common."""
    return min(one["stop"], other["stop"]) - max(one["start"], other["start"])


def _left_out(truths: Sequence[Truth]) -> Number:
    parts = [(truth.is_in(truth.left_out).sum(), truth.num_frames) for truth in truths]
    out, total = np.array(parts, float).T
    return within_unit(pooled_mean(out, total))
