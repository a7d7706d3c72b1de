"""Which clips a tier takes: limits on columns, one after the other, no marked faults, no copies.

Nothing is computed from pictures here, so limits are tried in seconds. A tier becomes a manifest
that `avatar-v-data import` turns into shards. Where the tier asks for lips that follow the sound,
it says by how much the sound is late, and the import moves it back.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from avatar_v.base.outside import read_table
from avatar_v.shards.writer import write_text_atomically
from avatar_v_data.curation.plan import Limit
from avatar_v_data.curation.stages import seconds
from avatar_v_data.curation.table import HIDDEN, CurationResults, clip_name

CLIPS_FILE = "clips.parquet"
NUM_SCENES = "num_scenes"
"""A limit on the scenes of a clip's person."""
SURE = "sync_confidence"
"""A tier that asks for some of it trusts the offsets, too."""
Clip = Mapping[str, Any]
Drops = Mapping[str, Sequence[tuple[float, float]]]
"""Recording → ranges in seconds that nothing is learned from, since people found faults there."""


@dataclass(frozen=True)
class FunnelStep:
    """What is left behind one limit."""

    what: str
    clips: int
    seconds: float


@dataclass(frozen=True)
class Selection:
    """The clips of a tier, and how they became so few."""

    tier: str
    clips: tuple[Clip, ...]
    steps: tuple[FunnelStep, ...]
    moves_sound: bool = False  # by the offset between lips and sound


def read_drops(path: str | Path) -> Drops:
    """A table of file, start_s, stop_s and fault, as ``avatar-v-eval votes drop`` writes it.
    ValueError for another one, and for what is no range."""
    drops: dict[str, list[tuple[float, float]]] = {}
    for number, row in read_table(path, ("file", "start_s", "stop_s", "fault")):
        try:
            start, stop = float(row["start_s"]), float(row["stop_s"])
        except ValueError as error:
            raise ValueError(f"{path}, line {number}: {error}") from error
        if not 0 <= start < stop:
            raise ValueError(f"{path}, line {number}: expected a start before a stop, got {row}")
        drops.setdefault(row["file"], []).append((start, stop))
    return drops


def select(
    found: CurationResults, tier: str, limits: Mapping[str, Limit], drops: Drops | None = None
) -> Selection:
    """ValueError for a limit on a column that no stage of the plan gives, and for ``drops`` of a
    recording that the run has not.

    `NUM_SCENES` is counted last, of the clips that are left: a person whose other scenes were
    dropped has none to draw a reference from.
    """
    left: list[Clip] = list(found.clips)
    steps = [FunnelStep("footage", 0, found.footage_s), _step("clips", left)]
    for column, limit in limits.items():
        if column == NUM_SCENES:
            continue
        known = [name for name, value in (left[0] if left else {}).items() if is_number(value)]
        if left and column not in known:
            names = ", ".join([*known, NUM_SCENES])
            raise ValueError(f"tier {tier}: no column {column!r}; expected one of {names}")
        left = [clip for clip in left if limit.holds(float(clip[column]))]
        steps.append(_step(f"{column} {limit}", left))
    if drops is not None:
        if unknown := sorted(set(drops) - set(found.shots) - set(found.failed)):
            raise ValueError(f"marked faults are of no recording of this run: {unknown[0]}")
        left = [clip for clip in left if not _is_marked(clip, drops.get(clip["file"], ()))]
        steps.append(_step("no marked faults", left))
    left = [clip for clip in left if not clip["copy_of"]]
    steps.append(_step("no copies", left))
    if limit := limits.get(NUM_SCENES):
        scenes: dict[str, set[str]] = {}
        for clip in left:
            scenes.setdefault(clip["person"], set()).add(clip["scene"])
        left = [clip for clip in left if limit.holds(float(len(scenes[clip["person"]])))]
        steps.append(_step(f"{NUM_SCENES} {limit}", left))
    return Selection(tier, tuple(left), tuple(steps), moves_sound=SURE in limits)


def write_manifest(path: Path, selection: Selection) -> None:
    """One line a clip, for `avatar-v-data import --manifest`."""
    lines = [
        json.dumps(
            {
                "file": clip["file"],
                "start": clip["start"],
                "stop": clip["stop"],
                "sound_late": -clip["sync_offset"] if selection.moves_sound else 0,
                "person": clip["person"],
                "scene": clip["scene"],
                **({"caption": clip["caption"]} if "caption" in clip else {}),
            }
        )
        for clip in selection.clips
    ]
    write_text_atomically(path, "".join(f"{line}\n" for line in lines))


def write_clips(path: Path, found: CurationResults, selections: Sequence[Selection]) -> None:
    """All clips with all columns that a limit can name, and a column for each tier."""
    import polars

    kept = {s.tier: {clip_name(clip) for clip in s.clips} for s in selections}
    rows = []
    for clip in found.clips:
        row = {name: value for name, value in clip.items() if name not in HIDDEN}
        rows.append(row | {f"in_{tier}": clip_name(clip) in names for tier, names in kept.items()})
    polars.DataFrame(rows).write_parquet(path)


def is_number(value: object) -> bool:
    """Whether a limit can be put on it."""
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _is_marked(clip: Clip, ranges: Sequence[tuple[float, float]]) -> bool:
    return any(
        start < seconds(clip["stop"]) and seconds(clip["start"]) < stop for start, stop in ranges
    )


def _step(what: str, clips: Sequence[Clip]) -> FunnelStep:
    return FunnelStep(what, len(clips), sum(clip["seconds"] for clip in clips))
