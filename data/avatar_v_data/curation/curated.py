"""A run of the engine: its footage, its plan, all its tasks, and what prints say of them."""

import contextlib
import hashlib
import json
import warnings
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from avatar_v.base.outside import read_json
from avatar_v.base.words import listed
from avatar_v.shards.writer import write_text_atomically
from avatar_v_data.curation.clips import ClipStage
from avatar_v_data.curation.plan import CurationPlan, read_plan
from avatar_v_data.curation.prints import LeftOut, NotSeen, PrintStage, left_out
from avatar_v_data.curation.reconcile import CurationTask, desired
from avatar_v_data.curation.stages import FAILED, FootageRecording, Result
from avatar_v_data.curation.store import WITHDRAWN_FILE, CurationStore, withdrawn
from avatar_v_data.curation.table import CurationResults, collect
from avatar_v_data.import_plan import find_sources

RUN_FILE = "run.json"
COMPARED_FILE = "left_out.json"
"""What prints say of recordings beside each other."""
MOST_LEFT_OUT = 0.1
"""Share of a clip's frames that another recording shows, or that stand still."""
COMPARED_VERSION = 2
"""Of `left_out`: another one compares anew."""
NO_FOOTAGE = (
    ".jpg", ".jpeg", ".png", ".gif", ".webp", ".heic", ".avif", ".bmp", ".tif", ".tiff",
    ".wav", ".mp3", ".flac", ".m4a", ".aac", ".opus", ".ogg",
)  # fmt: skip
"""Names of pictures and of sound alone end so: they lie beside recordings and are none."""
ASKED = ("shots", "speech", "clips", "looks", "person")
"""Stages that choosing reads."""


@dataclass(frozen=True)
class Curated:
    """A run: its footage, its plan and all its tasks."""

    folder: Path
    footage: Path
    plan: CurationPlan
    tasks: tuple[CurationTask, ...]
    plan_name: str = ""  # as commands take it
    left_out: LeftOut = field(default_factory=dict)
    """Known when prints are done. Where they are not made beforehand, all stages see it still, and
    `found` leaves out the clips that lie there."""

    @cached_property
    def store(self) -> CurationStore:
        return CurationStore(self.folder)

    def found(self, stages: Collection[str] = ()) -> CurationResults:
        """`collect` of its tasks, less what prints leave out."""
        found = collect(self.tasks, self.store, stages)
        found.clips = [clip for clip in found.clips if not self._is_left_out(clip)]
        if not self.plan.first:
            found.failed |= {name: why for name, (_, why, _) in self.left_out.items() if why}
        return found

    def _is_left_out(self, clip: Mapping[str, Any]) -> bool:
        spans, why, _ = self.left_out.get(clip["file"], NotSeen([]))
        start, stop = clip["start"], clip["stop"]
        inside = sum(max(0, min(stop, b) - max(start, a)) for a, b in spans)
        return bool(why) or inside > MOST_LEFT_OUT * (stop - start)

    def of_stages(self, names: Collection[str] | None) -> list[CurationTask]:
        """The tasks of these stages, None for all. ValueError for one that the plan lacks."""
        known = [stage.name for stage in self.plan.stages]
        if unknown := sorted(set(names or ()) - set(known)):
            raise ValueError(f"no stage {unknown[0]!r} in the plan; it has {', '.join(known)}")
        return [task for task in self.tasks if names is None or task.stage.name in names]


def opened(folder: str | Path, plan: str | None = None) -> Curated:
    """A run that `curate` has begun, with its own plan or another."""
    folder = Path(folder)
    if not (folder / RUN_FILE).is_file():
        raise ValueError(f"no file {folder / RUN_FILE}: avatar-v-data curate begins a run")
    return planned(folder, footage_of(folder), plan or str(read_json(folder / RUN_FILE)["plan"]))


def footage_of(folder: Path) -> Path:
    """Of a run."""
    return Path(str(read_json(folder / RUN_FILE).get("footage")))


def planned(folder: Path, footage: Path, plan: str) -> Curated:
    """The run of a plan on footage: its folder need not be there yet. ValueError for a plan without
    a stage that choosing reads, and for footage without recordings."""
    known = read_plan(plan)
    stages = [stage.name for stage in known.stages]
    if lacking := [name for name in ASKED if name not in stages]:
        raise ValueError(f"plan {plan}: no stage {lacking[0]!r}, which choosing clips needs")
    sources, _ = find_sources(footage, None, "file")
    recordings = [
        FootageRecording.of(Path(source.path), source.name, heard=source.heard)
        for source in sources
        if not source.name.lower().endswith(NO_FOOTAGE)
    ]
    if not recordings:
        raise ValueError(f"{footage}: holds no videos, only pictures and sound")
    gone = withdrawn(folder)
    if left := [one.name for one in recordings if one.name in gone]:
        recordings = [one for one in recordings if one.name not in gone]
        words = f"left out, since a person in them withdrew: {listed(left)}; delete these files, or"
        words += f" take what is another film now out of {folder / WITHDRAWN_FILE}"
        warnings.warn(words, stacklevel=3)
    if not recordings:
        raise ValueError(f"{footage}: no recording is left")
    tasks = tuple(desired(known, recordings))
    run = Curated(folder, footage, known, tasks, found_again(plan))
    if known.prints is None or not (folder / RUN_FILE).is_file():
        return run
    keys = {
        task.key: task.recording.name for task in run.tasks if isinstance(task.stage, PrintStage)
    }
    if not run.store.finished().issuperset(keys):
        return run
    prints = run.store.results(PrintStage.name)
    (clips,) = (stage for stage in known.stages if isinstance(stage, ClipStage))
    limits = known.grouping.same_motion, clips.min_s
    whole = {name: prints[key] for key, name in keys.items() if FAILED not in prints[key]}
    out = _compared(folder, whole, sorted(keys.items()), limits)
    run = replace(run, left_out=out)
    if not known.first:
        return run
    for number, one in enumerate(recordings):
        spans, why, _ = out.get(one.name, NotSeen([]))
        recordings[number] = replace(one, left_out=tuple((a, b) for a, b in spans), why=why)
    return replace(run, tasks=tuple(desired(known, recordings)))


def _compared(
    folder: Path,
    prints: Mapping[str, Result],
    named: Sequence[tuple[str, str]],
    limits: tuple[float, float],
) -> LeftOut:
    """`left_out` of these prints; kept in the run's folder, since all pairs take minutes, and every
    look at the run asks. ``named``: keys of the results, which say all that they hold, and the
    recordings' names."""
    asked = json.dumps([COMPARED_VERSION, limits, named])
    digest, file = hashlib.sha256(asked.encode()).hexdigest(), folder / COMPARED_FILE
    with contextlib.suppress(ValueError, OSError):
        known = read_json(file)
        if known.get("of") == digest:
            return {name: NotSeen(*own) for name, own in known["left_out"].items()}
    found = left_out(prints, *limits)
    write_text_atomically(file, json.dumps({"of": digest, "left_out": found}))
    return found


def copies_known(folder: Path) -> dict[str, list[str]]:
    """Of each recording that shows what others show, which these are, as far as a run has compared
    them."""
    with contextlib.suppress(ValueError, OSError, TypeError, AttributeError):
        known = read_json(folder / COMPARED_FILE)["left_out"].items()
        return {name: list(NotSeen(*own).originals) for name, own in known}
    return {}


def found_again(plan: str) -> str:
    """A plan's name as it is, its file by its whole path."""
    return str(Path(plan).resolve()) if Path(plan).suffix else plan
