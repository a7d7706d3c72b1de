"""All clips of a run as rows: what the stages say of each."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from avatar_v_data.curation.kinds import background_spread, kinds
from avatar_v_data.curation.reconcile import CurationTask
from avatar_v_data.curation.stages import Result, seconds
from avatar_v_data.curation.store import CurationStore

LEAST_MISSING_S, LEAST_MISSING = 0.5, 0.02
"""Seconds, and share of what the header says, from which on a recording ends early."""


@dataclass
class CurationResults:
    """What a run has found: ``clips``, one row each, and what became of the recordings."""

    clips: list[dict[str, Any]] = field(default_factory=list)
    footage_s: float = 0.0
    shots: dict[str, list[list[int]]] = field(default_factory=dict)  # recording → first, last + 1
    failed: dict[str, str] = field(default_factory=dict)  # recording → reason
    ends_early: dict[str, str] = field(default_factory=dict)  # that is taken as far as it goes
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
        if why := own[0].recording.why:
            found.failed[name] = why
            continue
        results = {t.stage.name: kept[t.stage.name][t.key] for t in own if t.stage.name in kept}
        held_s = seconds(results["shots"]["num_frames"])
        found.footage_s += held_s
        stated_s = results.get("probe", {}).get("seconds") or 0.0
        if stated_s - held_s > max(LEAST_MISSING_S, LEAST_MISSING * stated_s):
            found.ends_early[name] = f"holds {held_s:.1f} s of the {stated_s:.1f} s in its header"
        found.shots[name] = results["shots"]["shots"]
        found.clips += _rows(name, results)
    return found


def clip_name(clip: Mapping[str, Any]) -> str:
    """File and frames of a clip."""
    return f"{clip['file']}:{clip['start']}-{clip['stop']}"


def shows_background(clip: Mapping[str, Any]) -> bool:
    """Whether something is seen beside the head: without it no room is told from another."""
    return any(cell is not None for cell in clip.get("background", (0,)))


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
        if "face_pixels" in row and "probe" in results:
            row["face_share"] = round(row["face_pixels"] / results["probe"]["height"], 4)
        if "background" in row:
            row["background_spread"] = background_spread(row["background"])
        row |= kinds(row)
        rows.append(row)
    return rows
