"""The commands of the engine: footage to results (`curate`), results to manifests (`choose`)."""

import dataclasses
import json
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from avatar_v.base import checks
from avatar_v.base.outside import read_json
from avatar_v.shards.writer import write_text_atomically
from avatar_v_data.curation.engine import Workers, lead
from avatar_v_data.curation.local import Here, Processes
from avatar_v_data.curation.plan import CurationPlan, read_plan
from avatar_v_data.curation.reconcile import CurationTask, desired, missing
from avatar_v_data.curation.samples import SampleStage, first_frame
from avatar_v_data.curation.select import (
    CLIPS_FILE,
    Selection,
    read_drops,
    select,
    write_clips,
    write_manifest,
)
from avatar_v_data.curation.shards import Named, samples_of, write_shards
from avatar_v_data.curation.stages import FootageRecording
from avatar_v_data.curation.store import CurationStore
from avatar_v_data.curation.table import CurationResults, collect, grouped
from avatar_v_data.import_plan import find_sources

RUN_FILE = "run.json"
REPORT_FILE = "report.json"
ASKED = ("shots", "speech", "clips", "looks", "person")
"""Stages that choosing reads."""


@dataclass(frozen=True)
class Curated:
    """A run: its footage, its plan and all its tasks."""

    folder: Path
    footage: Path
    plan: CurationPlan
    tasks: tuple[CurationTask, ...]

    @cached_property
    def store(self) -> CurationStore:
        return CurationStore(self.folder)

    def of_stages(self, names: Collection[str] | None) -> list[CurationTask]:
        """The tasks of these stages, None for all. ValueError for one that the plan lacks."""
        known = [stage.name for stage in self.plan.stages]
        if unknown := sorted(set(names or ()) - set(known)):
            raise ValueError(f"no stage {unknown[0]!r} in the plan; it has {', '.join(known)}")
        return [task for task in self.tasks if names is None or task.stage.name in names]


def curate(
    footage: str | Path,
    out: str | Path,
    plan: str,
    *,
    num_workers: int = 1,
    ray: str | None = None,
    stages: Collection[str] | None = None,
    retry: bool = False,
    on_progress: Callable[[int, int], None] = lambda num_done, num: None,
) -> Curated:
    """Bring all recordings in and below ``footage`` through the stages of a plan, in processes of
    this machine or on the Ray cluster at the address ``ray``.

    The same call goes on where one was stopped, and makes what a changed plan asks for anew. With
    ``retry`` what failed is tried again. ValueError or ImportError for what is missing, before
    work.
    """
    footage, out = Path(footage), Path(out)
    checks.at_once("workers", num_workers)
    if out.exists() and not out.is_dir():
        raise ValueError(f"{out} is a file; choose a folder")
    if out.resolve() == footage.resolve():
        raise ValueError(f"{out}: results do not go into the footage's own folder")
    if out.is_dir() and any(out.iterdir()) and not (out / RUN_FILE).is_file():
        raise ValueError(f"{out} holds something else; choose a new folder, or one of a run")
    run = _planned(out, footage, plan)
    tasks = run.of_stages(stages)
    out.mkdir(parents=True, exist_ok=True)
    words = {"footage": str(footage.resolve()), "plan": _found_again(plan)}
    write_text_atomically(out / RUN_FILE, json.dumps(words, indent=1))
    perform_all(run.plan, tasks, run.store, num_workers, ray, on_progress, retry=retry)
    return run


def perform_all(
    plan: CurationPlan,
    tasks: Sequence[CurationTask],
    store: CurationStore,
    num_workers: int,
    ray: str | None,
    on_progress: Callable[[int, int], None],
    *,
    retry: bool = False,
) -> None:
    """Make what is missing of ``tasks``, and nothing else."""
    with store.led():
        if retry:
            store.forget_failures()
        passes = list(missing(plan, tasks, store.finished()))
        if not passes:
            return
        workers: Workers
        if ray is not None:
            from avatar_v_data.curation.on_ray import Actors

            workers = Actors(plan.stages, store.files, ray)
        elif num_workers == 1:
            workers = Here(plan.stages, store.files)
        else:
            workers = Processes(plan.stages, store.files)
        lead(passes, store, workers, num_workers, on_progress)


def opened(folder: str | Path, plan: str | None = None) -> Curated:
    """A run that `curate` has begun, with its own plan or another."""
    folder = Path(folder)
    if not (folder / RUN_FILE).is_file():
        raise ValueError(f"no file {folder / RUN_FILE}: avatar-v-data curate begins a run")
    words = read_json(folder / RUN_FILE)
    return _planned(folder, Path(str(words.get("footage"))), plan or str(words.get("plan")))


def choose(
    run: Curated,
    out: str | Path,
    tiers: Sequence[str] | None = None,
    *,
    licence: str = "unknown",
    consent: str = "unknown",
    drop: str | Path | None = None,
) -> tuple[CurationResults, list[Selection]]:
    """Write `TIER.jsonl`, `clips.parquet`, `report.json` and the page `report.html` to ``out``,
    and, where the plan has the stage `samples`, each tier's shards to a folder of its name.

    ``drop`` is a file of ranges with faults (`select.read_drops`). ValueError where recordings are
    not finished, and for tiers that the plan has not.
    """
    from avatar_v_data.curation.report import write_report  # brings matplotlib

    known = run.plan.limits
    if unknown := [tier for tier in tiers or () if tier not in known]:
        raise ValueError(f"no tier {unknown[0]!r} in the plan; it has {', '.join(known)}")
    drops = None if drop is None else read_drops(drop)
    found = collect(run.tasks, run.store)
    if found.unfinished:
        raise ValueError(
            f"{len(found.unfinished)} recordings are not finished ({found.unfinished[0]} is the "
            f"first): avatar-v-data curate {run.footage} --out {run.folder} goes on"
        )
    grouped(found.clips, run.plan.grouping)
    selections = [select(found, tier, known[tier], drops) for tier in tiers or known]
    out = Path(out)
    if taken := [s.tier for s in selections if (out / s.tier).exists()]:
        raise ValueError(f"{out / taken[0]} is there already; choose another folder")
    out.mkdir(parents=True, exist_ok=True)
    for selection in selections:
        write_manifest(out / f"{selection.tier}.jsonl", selection)
        if any(isinstance(stage, SampleStage) for stage in run.plan.stages):
            _write_tier(run, out / selection.tier, selection, licence, consent)
    write_clips(out / CLIPS_FILE, found, selections)
    report = {
        "footage": str(run.footage),
        "footage_s": found.footage_s,
        "failed": found.failed,
        "shots": found.shots,
        "tiers": {s.tier: [dataclasses.asdict(step) for step in s.steps] for s in selections},
    }
    write_text_atomically(out / REPORT_FILE, json.dumps(report, indent=1))
    write_report(out, run.footage, found, selections, known)
    return found, selections


def _write_tier(run: Curated, out: Path, selection: Selection, licence: str, consent: str) -> None:
    """The samples of a tier's clips, each clip's with its person and scene."""
    named: list[Named] = []
    keys = {t.recording.name: t.key for t in run.tasks if isinstance(t.stage, SampleStage)}
    for clip in selection.clips:
        for sample in samples_of(run.store.files, keys[clip["file"]]):
            if clip["start"] <= first_frame(sample.key) < clip["stop"]:
                words = clip["person"], clip["scene"], clip.get("caption", "")
                named.append(Named(sample, *words, licence, consent))
    write_shards(out, named, per_shard=64)


def _planned(folder: Path, footage: Path, plan: str) -> Curated:
    known = read_plan(plan)
    stages = [stage.name for stage in known.stages]
    if lacking := [name for name in ASKED if name not in stages]:
        raise ValueError(f"plan {plan}: no stage {lacking[0]!r}, which choosing clips needs")
    sources, _ = find_sources(footage, None, "file")
    recordings = [FootageRecording.of(Path(source.path), source.name) for source in sources]
    return Curated(folder, footage, known, tuple(desired(known, recordings)))


def _found_again(plan: str) -> str:
    """A plan's name as it is, its file by its whole path."""
    return str(Path(plan).resolve()) if Path(plan).suffix else plan
