"""Which clips a tier takes: limits on columns, one after the other, no marked faults, no copies,
an even share.

Nothing is computed from pictures here, so limits that change cost no model. A tier becomes a
manifest, which `avatar-v-data import` takes; it says by how much the sound of a clip is late, where
sync is sure of it, and the import moves it back.
"""

import json
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from avatar_v.base.outside import read_table
from avatar_v.shards.writer import write_text_atomically
from avatar_v.types import FRAME_RATE_HZ
from avatar_v_data.curation.balance import balanced, largest_share
from avatar_v_data.curation.plan import Balance, Limit
from avatar_v_data.curation.stages import seconds
from avatar_v_data.curation.sync import sound_late
from avatar_v_data.curation.table import CurationResults, clip_name, shows_background
from avatar_v_data.import_plan import BYTES, RATE, SPLITS, split_persons

CLIPS_FILE = "clips.parquet"
NUM_SCENES = "num_scenes"
"""A limit on the scenes of a clip's person."""
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
    lost: Mapping[str, Sequence[Clip]]  # at each limit, the nearest to it first
    num_samples: int = 0
    dropped: tuple[Mapping[str, str], ...] = ()  # frames of clips that gave no sample, and why
    shares: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    """Split → its persons, and its samples, or clips where there are none."""


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
    found: CurationResults,
    tier: str,
    limits: Mapping[str, Limit],
    balance: Balance | None = None,
    drops: Drops | None = None,
) -> Selection:
    """ValueError for a limit on a column that no stage of the plan gives, and for ``drops`` of a
    recording that the run has not.

    `NUM_SCENES` is counted last, of the clips that are left: a person whose other scenes were
    dropped has none to draw a reference from, and neither has a clip that shows a head alone.
    """
    left: list[Clip] = list(found.clips)
    steps = [FunnelStep("footage", 0, found.footage_s), _step("clips", left)]
    known = [name for name, value in (left[0] if left else {}).items() if is_number(value)]
    groups = balance.groups if balance else {}
    named = [name for name, ends in groups.items() if not ends and left and name in left[0]]
    for column in (*limits, *(name for name in groups if name not in named)):
        if left and column not in known and not (column == NUM_SCENES and column in limits):
            names = ", ".join(dict.fromkeys([*known, NUM_SCENES]))
            raise ValueError(f"tier {tier}: no column {column!r}; expected one of {names}")
    lost: dict[str, list[Clip]] = {}

    def keep(what: str, limit: Limit, value: Callable[[Clip], float]) -> None:
        nonlocal left
        far = [clip for clip in left if not limit.holds(value(clip))]
        lost[what] = sorted(far, key=lambda clip: limit.beyond(value(clip)))
        left = [clip for clip in left if limit.holds(value(clip))]
        steps.append(_step(what, left))

    for column, limit in limits.items():
        if column == NUM_SCENES:
            continue
        keep(f"{column} {limit}", limit, lambda clip, column=column: float(clip[column]))
    if drops is not None:
        if unknown := sorted(set(drops) - set(found.shots) - set(found.failed)):
            raise ValueError(f"marked faults are of no recording of this run: {unknown[0]}")
        keep("no marked faults", Limit(max=0.0), lambda clip: float(_is_marked(clip, drops)))
    keep("no copies", Limit(max=0.0), lambda clip: float(bool(clip["copy_of"])))
    if limit := limits.get(NUM_SCENES):
        scenes: dict[str, set[str]] = {}
        for clip in filter(shows_background, left):
            scenes.setdefault(clip["person"], set()).add(clip["scene"])

        def num_scenes(clip: Clip) -> float:
            return float(len(scenes[clip["person"]])) if shows_background(clip) else 0.0

        keep(f"{NUM_SCENES} {limit}", limit, num_scenes)
    if balance:
        before = largest_share(left, balance)
        left = balanced(left, balance)
        group, person = zip(before, largest_share(left, balance), strict=True)
        words = "balanced: largest group {:.0%} → {:.0%}, person {:.1%} → {:.1%}"
        steps.append(_step(words.format(*group, *person), left))
    return Selection(tier, tuple(left), tuple(steps), lost)


def split_tiers(
    persons: Mapping[str, Collection[str]], share: float, seed: int, groups: Mapping[str, str]
) -> dict[str, str]:
    """Each person's split, the same in all tiers and for all of a group (`groups_of`): ``share`` of
    a tier's groups are validation. The tier with the fewest is drawn first. ValueError for a tier
    that has one split alone."""
    of_group: dict[str, str] = {}
    for own in sorted(({groups[one] for one in own} for own in persons.values() if own), key=len):
        of_group |= split_persons(own, share, seed, of_group)
    splits = {one: of_group[group] for one, group in groups.items() if group in of_group}
    for tier, own in persons.items():
        if len(found := {splits[person] for person in own}) == 1:
            words = f"--validation {share:g}: all {len(set(own))} persons of tier {tier} are drawn"
            raise ValueError(
                f"{words} for {found.pop()}: select it alone (--tiers), or leave it out"
            )
    return splits


def shares_of(persons: Sequence[str], splits: Mapping[str, str]) -> dict[str, tuple[int, int]]:
    """`Selection.shares` of one tier, whose samples are of these persons."""
    if not splits:
        return {}
    alone, own = (Counter(splits[one] for one in ones) for ones in (set(persons), persons))
    return {split: (alone[split], own[split]) for split in SPLITS}


def write_manifest(
    path: Path,
    selection: Selection,
    sure: float | None,
    splits: Mapping[str, str],
    sizes: Mapping[str, int],
    about: Mapping[str, str],
) -> None:
    """One line a clip, for `avatar-v-data import --manifest`. ``sure``: see `CurationPlan.sure`.
    ``splits``: of persons, where some are asked; others are for training. ``sizes``: of files in
    bytes. ``about``: columns of all clips."""
    lines = [
        json.dumps(
            {
                "file": clip["file"],
                "start": clip["start"],
                "stop": clip["stop"],
                RATE: FRAME_RATE_HZ,
                "sound_late": sound_late(clip, sure),
                "person": clip["person"],
                "scene": clip["scene"],
                **({BYTES: sizes[clip["file"]]} if clip["file"] in sizes else {}),
                **({"split": splits.get(clip["person"], SPLITS[0])} if splits else {}),
                **({"caption": clip["caption"]} if "caption" in clip else {}),
                **about,
            }
        )
        for clip in selection.clips
    ]
    write_text_atomically(path, "".join(f"{line}\n" for line in lines))


def write_clips(path: Path, found: CurationResults, selections: Sequence[Selection]) -> None:
    """All clips with all columns but lists, and a column for each tier."""
    import polars

    kept = {s.tier: {clip_name(clip) for clip in s.clips} for s in selections}
    rows = []
    for clip in found.clips:
        row = {name: value for name, value in clip.items() if not isinstance(value, list)}
        rows.append(row | {f"in_{tier}": clip_name(clip) in names for tier, names in kept.items()})
    polars.DataFrame(rows, infer_schema_length=None).write_parquet(path)


def is_number(value: object) -> bool:
    """Whether a limit can be put on it."""
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _is_marked(clip: Clip, drops: Drops) -> bool:
    ranges = drops.get(clip["file"], ())
    return any(
        start < seconds(clip["stop"]) and seconds(clip["start"]) < stop for start, stop in ranges
    )


def _step(what: str, clips: Sequence[Clip]) -> FunnelStep:
    return FunnelStep(what, len(clips), sum(clip["seconds"] for clip in clips))
