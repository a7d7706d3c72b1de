"""All clips of a run as rows: what the stages say of each, and who it shows where."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from avatar_v_data.curation.copies import copies
from avatar_v_data.curation.people import group_backgrounds, group_faces
from avatar_v_data.curation.plan import Grouping
from avatar_v_data.curation.reconcile import CurationTask
from avatar_v_data.curation.stages import Result, seconds
from avatar_v_data.curation.store import CurationStore

HIDDEN = ("thumbnail", "background", "face", "loudness", "voice", "turns", "words")
"""Vectors and lists, which no limit reads and no table shows."""


@dataclass
class CurationResults:
    """What a run has found: ``clips``, one row each, and what became of the recordings."""

    clips: list[dict[str, Any]] = field(default_factory=list)
    footage_s: float = 0.0
    shots: dict[str, list[list[int]]] = field(default_factory=dict)  # recording → first, last + 1
    failed: dict[str, str] = field(default_factory=dict)  # recording → reason
    unfinished: list[str] = field(default_factory=list)


def collect(
    tasks: Sequence[CurationTask], store: CurationStore, stages: Collection[str] = ()
) -> CurationResults:
    """The clips of all recordings whose stages are done. ``stages``: whose columns, shots and clips
    among them; none: of all."""
    found, finished = CurationResults(), store.finished()
    names = {task.stage.name for task in tasks}
    failures = {name: store.failures(name) for name in names}
    kept = {name: store.results(name) for name in names.intersection(stages or names)}
    by_recording: dict[str, list[CurationTask]] = {}
    for task in tasks:
        by_recording.setdefault(task.recording.name, []).append(task)
    for name, own in by_recording.items():
        if any(task.key not in finished for task in own):
            found.unfinished.append(name)
            continue
        reasons = [failures[t.stage.name][t.key] for t in own if t.key in failures[t.stage.name]]
        if reasons:
            found.failed[name] = reasons[0]
            continue
        results = {t.stage.name: kept[t.stage.name][t.key] for t in own if t.stage.name in kept}
        found.footage_s += seconds(results["shots"]["num_frames"])
        found.shots[name] = results["shots"]["shots"]
        found.clips += _rows(name, results)
    return found


def grouped(clips: list[dict[str, Any]], grouping: Grouping) -> None:
    """Add to each clip its ``person``, its ``scene``, and the clip that it is a ``copy_of``, "" for
    none."""
    if not clips:
        return
    faces = np.array([clip["face"] for clip in clips])
    for clip, number in zip(clips, group_faces(faces, grouping.same_face), strict=True):
        clip["person"] = f"person-{number:05d}"
    clips_of: dict[str, list[dict[str, Any]]] = {}
    for clip in clips:
        clips_of.setdefault(clip["person"], []).append(clip)
    for person, own in clips_of.items():
        scenes = group_backgrounds([c["background"] for c in own], grouping.same_background)
        for clip, scene in zip(own, scenes, strict=True):
            clip["scene"] = f"{person}-scene-{scene:03d}"
    twins = copies(
        np.array([clip["thumbnail"] for clip in clips], float).reshape(len(clips), -1),
        [np.array(clip["loudness"]) for clip in clips],
        [clip["sharpness"] for clip in clips],
        same_picture=grouping.same_picture,
        same_sound=grouping.same_sound,
    )
    for number, clip in enumerate(clips):
        clip["copy_of"] = clip_name(clips[twins[number]]) if number in twins else ""


def clip_name(clip: Mapping[str, Any]) -> str:
    """File and frames of a clip."""
    return f"{clip['file']}:{clip['start']}-{clip['stop']}"


def _rows(name: str, results: Mapping[str, Result]) -> list[dict[str, Any]]:
    """The columns of all stages that have some of each clip."""
    rows = []
    for number, clip in enumerate(results["clips"]["clips"]):
        row: dict[str, Any] = {"file": name}
        for result in results.values():
            row |= result["clips"][number] if "clips" in result else {}
        row["seconds"] = seconds(clip["stop"] - clip["start"])
        if "speech" in results:
            row["loudness"] = results["speech"]["loudness"][clip["start"] : clip["stop"]]
        if "sync_offset" in row:
            row["sync_shift"] = abs(row["sync_offset"])
        rows.append(row)
    return rows
