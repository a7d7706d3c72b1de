"""The commands of the engine: footage to results (`curate`), results to shards (`choose`)."""

import json
import shlex
import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import asdict, replace
from itertools import groupby
from pathlib import Path
from typing import Any

from avatar_v.base import checks
from avatar_v.base.paths import whole_folder
from avatar_v.base.words import counted
from avatar_v.shards.writer import index_path, write_text_atomically
from avatar_v_data.curation.curated import RUN_FILE, Curated, found_again, planned
from avatar_v_data.curation.engine import Workers, run_passes
from avatar_v_data.curation.graph import GRAPH_FILE, grouped
from avatar_v_data.curation.local import Here, Processes
from avatar_v_data.curation.plan import CurationPlan
from avatar_v_data.curation.reconcile import CurationTask, lacking, missing
from avatar_v_data.curation.samples import SampleStage, first_frame
from avatar_v_data.curation.select import (
    CLIPS_FILE,
    Selection,
    read_drops,
    select,
    shares_of,
    split_tiers,
    write_clips,
    write_manifest,
)
from avatar_v_data.curation.shards import Named, samples_of, write_shards
from avatar_v_data.curation.stages import seconds
from avatar_v_data.curation.store import CurationStore
from avatar_v_data.curation.sync import SyncStage, sound_late
from avatar_v_data.curation.table import CurationResults
from avatar_v_data.curation.words import said_between
from avatar_v_data.import_plan import groups_of

REPORT_FILE = "report.json"


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
    ``retry`` what failed is tried again. ValueError for what is missing, before work.
    """
    footage, out = Path(footage), Path(out)
    check = checks.at_once if ray is None else checks.count
    check("--workers", num_workers)
    if out.exists() and not out.is_dir():
        raise ValueError(f"{out} is a file; choose a folder")
    _check_beside(out, footage)
    if out.is_dir() and any(out.iterdir()) and not (out / RUN_FILE).is_file():
        raise ValueError(f"{out} holds something else; choose a new folder, or one of a run")
    run = planned(out, footage, plan)
    tasks = run.of_stages(stages)
    out.mkdir(parents=True, exist_ok=True)
    words = {"footage": str(footage.resolve()), "plan": found_again(plan)}
    with run.store.locked() if (out / RUN_FILE).is_file() else nullcontext():  # another's stays
        write_text_atomically(out / RUN_FILE, json.dumps(words, indent=1))
    if first := [task for task in tasks if task.stage.name in run.plan.first]:
        perform_all(run.plan, first, run.store, num_workers, ray, on_progress, retry=retry)
        run = planned(out, footage, plan)
        tasks = run.of_stages(stages)
    again = retry and not first  # what has just failed is not tried a third time
    perform_all(run.plan, tasks, run.store, num_workers, ray, on_progress, retry=again)
    return planned(out, footage, plan) if run.plan.prints and not run.plan.first else run


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
    if ray is None and plan.resources:
        words = "resources: without --ray cpus, gpus and memory_gb have no effect, and no kind of "
        warnings.warn(f"{words}worker is more than --workers {num_workers}", stacklevel=2)
        own = {
            stage: replace(kind, workers=min(kind.workers, num_workers))
            for stage, kind in plan.resources.items()
        }
        plan = replace(plan, resources=own)
    with store.locked():
        if retry:
            store.forget_failures()
        finished = store.finished() - _lost(tasks, store)
        passes = list(missing(plan, tasks, finished))
        if not passes:
            return
        if name := lacking(passes, finished):
            raise ValueError(f"--stages lacks {name}, whose result is not there: add it")
        workers: Workers
        if ray is not None:
            from avatar_v_data.curation.on_ray import Actors

            workers = Actors(plan.stages, store.files, ray)
        elif num_workers == 1:
            workers = Here(plan.stages, store.files)
        else:
            workers = Processes(plan.stages, store.files)
        run_passes(passes, store, workers, num_workers, on_progress)


def choose(
    run: Curated,
    out: str | Path,
    tiers: Sequence[str] | None = None,
    *,
    licence: str = "unknown",
    consent: str = "unknown",
    drop: str | Path | None = None,
    validation: float = 0.0,
    seed: int = 0,
) -> tuple[CurationResults, list[Selection]]:
    """Write `TIER.jsonl`, `clips.parquet` and the page `report.html` to ``out``, where the plan has
    the stage `samples` each tier's shards to a folder of its name, and last `report.json`.

    ``drop`` is a file of ranges with faults (`select.read_drops`). ``validation``: the share of the
    persons, drawn by ``seed``, whose shards go to `TIER/validation` and the others' to
    `TIER/train`; a person is in the same split in all tiers, and so are all who share a recording.
    ValueError where recordings are
    not finished, for tiers that the plan has not, and where ``out`` holds a selection.
    """
    known, out = run.plan.limits, Path(out)
    _check_beside(out, run.footage)
    if (out / REPORT_FILE).exists():
        raise ValueError(f"{out} holds a selection already ({REPORT_FILE}); choose another folder")
    if unknown := [tier for tier in tiers or () if tier not in known]:
        raise ValueError(f"no tier {unknown[0]!r} in the plan; it has {', '.join(known)}")
    if not 0 <= validation < 1:
        raise ValueError(f"--validation is a share from 0 to below 1, got {validation}")
    drops = None if drop is None else read_drops(drop)
    found, lost = run.found(), _lost(run.tasks, run.store)
    if unfinished := found.unfinished + [t.recording.name for t in run.tasks if t.key in lost]:
        words = [str(run.footage), "--out", str(run.folder), "--plan", run.plan_name]
        raise ValueError(
            f"{counted(len(unfinished), 'recording')} not finished, {unfinished[0]} first: "
            f"avatar-v-data curate {shlex.join(words)} goes on"
        )
    grouped(found.clips, run.plan.grouping, run.folder / GRAPH_FILE)
    balance = run.plan.balance
    selections = [
        select(found, tier, known[tier], balance.get(tier), drops) for tier in tiers or known
    ]
    if taken := [s.tier for s in selections if (out / s.tier).exists()]:
        raise ValueError(f"{out / taken[0]} is there already; choose another folder")
    named: list[list[Named]] = [[] for _ in selections]
    if run.plan.samples:
        for number, selection in enumerate(selections):
            own, dropped = _samples(run, selection, licence, consent)
            named[number] = own
            selections[number] = replace(selection, num_samples=len(own), dropped=tuple(dropped))
    persons = {
        s.tier: [one.person for one in own] if run.plan.samples else [c["person"] for c in s.clips]
        for s, own in zip(selections, named, strict=True)
    }
    groups = groups_of((clip["file"], clip["person"]) for s in selections for clip in s.clips)
    splits = split_tiers(persons, validation, seed, groups) if validation else {}
    for number, selection in enumerate(selections):
        shares = shares_of(persons[selection.tier], splits)
        selections[number] = replace(selection, shares=shares)
    _warn_of_sync(run.plan, selections)
    out.mkdir(parents=True, exist_ok=True)
    said = {"licence": licence, "consent": consent}
    about = {name: words for name, words in said.items() if words != "unknown"}
    report = _write_pages(run, out, found, selections, splits, about)
    with ExitStack() as folders:  # all tiers, or none where this is interrupted
        for selection, own in zip(selections, named, strict=True):
            if not own:
                continue
            folder = folders.enter_context(whole_folder(out / selection.tier))
            for split in sorted({splits.get(one.person, "") for one in own}):
                part = [one for one in own if splits.get(one.person, "") == split]
                write_shards(folder / split, selection.tier, part, per_shard=64)
    write_text_atomically(out / REPORT_FILE, json.dumps(report, indent=1))
    return found, selections


def _check_beside(out: Path, footage: Path) -> None:
    """All files below the footage's folder are recordings, and a run's own must be none."""
    if out.resolve().is_relative_to(footage.resolve()):
        raise ValueError(
            f"--out {out} lies in the footage, where each file is taken for a recording: choose a "
            f"folder beside {footage}"
        )


def _warn_of_sync(plan: CurationPlan, selections: Sequence[Selection]) -> None:
    if all(stage.name != SyncStage.name for stage in plan.stages):
        tiers = ", ".join(selection.tier for selection in selections)
        warnings.warn(f"the plan has no stage sync: late sound stays late in {tiers}", stacklevel=3)


def _write_pages(
    run: Curated,
    out: Path,
    found: CurationResults,
    selections: Sequence[Selection],
    splits: Mapping[str, str],
    about: Mapping[str, str],
) -> dict[str, Any]:
    """What people read of a selection; returns what `report.json` says of it."""
    from avatar_v_data.curation.report import write_report  # brings matplotlib

    paths = {task.recording.name: Path(task.recording.path) for task in run.tasks}
    sizes = {name: path.stat().st_size for name, path in paths.items() if path.is_file()}
    for selection in selections:
        sure = run.plan.sure(selection.tier)
        write_manifest(out / f"{selection.tier}.jsonl", selection, sure, splits, sizes, about)
    write_clips(out / CLIPS_FILE, found, selections)
    write_report(out, paths, found, selections, run.plan.limits, run.plan.grouping.same_person)
    return {
        "footage": str(run.footage),
        "footage_s": found.footage_s,
        "failed": found.failed,
        "ends_early": found.ends_early,
        "shots": found.shots,
        "left_out": {name: own.spans for name, own in run.left_out.items()},
        "tiers": {s.tier: [asdict(step) for step in s.steps] for s in selections},
        "dropped": {s.tier: s.dropped for s in selections},
        "splits": splits,
    }


def _samples(
    run: Curated, selection: Selection, licence: str, consent: str
) -> tuple[list[Named], list[dict[str, str]]]:
    """The samples of a tier's clips, each with its clip's person and scene, and what of the clips
    gave none, with the reason."""
    named, dropped = [], []
    keys = {t.recording.name: t.key for t in run.tasks if isinstance(t.stage, SampleStage)}
    stage = run.plan.samples
    assert stage is not None
    for file, clips in groupby(selection.clips, key=lambda clip: clip["file"]):
        samples = samples_of(run.store.files, keys[file])
        rows = [r for r in run.store.result(keys[file])["rows"] if r["what"] == "dropped"]
        for clip in clips:
            words = clip["person"], clip["scene"], clip.get("caption", "")
            own = range(clip["start"], clip["stop"])
            for one in samples:
                if (start := first_frame(one.key)) in own:
                    start += sound_late(clip, stage.sure)
                    stop = start + stage.num_frames
                    said = said_between(clip.get("words", ()), seconds(start), seconds(stop))
                    named.append(Named(one, *words, said, licence, consent))
            dropped += [
                {"file": file, "frames": row["frames"], "reason": row["reason"]}
                for row in rows
                if int(row["frames"].partition("-")[0]) in own
            ]
    return named, dropped


def _lost(tasks: Sequence[CurationTask], store: CurationStore) -> set[str]:
    """Results of the stage `samples` whose files are gone."""
    keys = {task.key for task in tasks if isinstance(task.stage, SampleStage)}
    tars = {key: store.files / f"{key}.tar" for key in keys & store.finished()}
    gone = {k for k, tar in tars.items() if not (tar.is_file() and index_path(tar).is_file())}
    return gone - set(store.failures(SampleStage.name)) if gone else gone
