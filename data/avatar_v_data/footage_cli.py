"""The commands of the data engine: `curate`, `status`, `deploy` and `select`; and `footage`, which
draws some."""

import argparse
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from avatar_v.base.options import at_once, parsed
from avatar_v.base.progress import progress_bar, results_console
from avatar_v.base.video_format import VideoFormat
from avatar_v.base.words import counted

if TYPE_CHECKING:
    from avatar_v_data.curation.curated import Curated
    from avatar_v_data.curation.select import Selection
    from avatar_v_data.curation.table import CurationResults


RECIPES = {"t2v": "recipes/1_t2v.yaml", "a2v": "recipes/2_a2v.yaml", "sft": "recipes/3_sft.yaml"}
"""Tier of the plans that ship → what trains on it."""


def add_curate(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("footage", help="folder of recordings, subfolders too")
    parser.add_argument(
        "--out", required=True, help="folder for the results; the same command goes on there"
    )
    parser.add_argument(
        "--plan", default="people", help="people, world or a .yaml (default: people)"
    )
    parser.add_argument(
        "--workers", type=int, default=1, help="processes, or workers of the cluster (default: 1)"
    )
    parser.add_argument(
        "--stages",
        nargs="+",
        metavar="STAGE",
        help="only these, and the others another time",
    )
    parser.add_argument(
        "--ray",
        metavar="ADDRESS",
        help="of a Ray cluster whose machines do the work, or auto, or local (default: processes "
        "of this machine)",
    )
    parser.add_argument("--retry", action="store_true", help="try again what failed before")


def add_select(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("curated", help="the --out of curate")
    parser.add_argument("--out", required=True, help="folder for shards, manifests and the report")
    parser.add_argument("--plan", help="with other limits (default: that of curate)")
    parser.add_argument("--tiers", nargs="+", metavar="TIER", help="only these (default: all)")
    parser.add_argument(
        "--drop", metavar="FILE", help=".csv of ranges with faults (avatar-v-eval votes drop)"
    )
    parser.add_argument(
        "--validation",
        type=float,
        default=0.0,
        metavar="SHARE",
        help="of the persons, into TIER/validation, the others into TIER/train (default: no split)",
    )
    parser.add_argument("--seed", type=int, default=0, help="of that draw (default: 0)")
    parser.add_argument("--licence", default="unknown", help="of the videos, as shards say it")
    parser.add_argument("--consent", default="unknown", help="how the persons shown agreed")


def add_status(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("curated", help="the --out of curate")


def add_deploy(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("plan", help="people, world or a .yaml")
    parser.add_argument("--name", default="curate", help="of the job (default: curate)")
    parser.add_argument("--image", required=True, help="with avatar_v[data,faces,ray]")
    parser.add_argument("--claim", required=True, help="PersistentVolumeClaim, ReadWriteMany")
    parser.add_argument("--footage", required=True, help="folder of that volume")
    parser.add_argument("--out", required=True, help="folder of that volume")
    parser.add_argument("--workers", type=int, required=True, help="of each kind of the plan")
    parser.add_argument("--per-pod", type=int, default=1, help="workers (default: 1)")
    parser.add_argument("--queue", default="data", help="Kueue's LocalQueue (default: data)")
    parser.add_argument(
        "--priority", default="data", help="Kueue's WorkloadPriorityClass (default: data)"
    )
    parser.add_argument("--namespace", default="avatar-v", help="default: avatar-v")
    parser.add_argument("--team", default="", help="who pays: the label avatar-v/team")


def add_footage(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--out", required=True, help="folder for the videos and their truth")
    parser.add_argument("--recordings", type=int, required=True, help="number of videos")
    parser.add_argument(
        "--seconds",
        type=float,
        default=40.0,
        help="of each, and on to the end of a shot (default: 40)",
    )
    parser.add_argument("--persons", type=int, default=8, help="hosts and guests (default: 8)")
    parser.add_argument("--copies", type=int, default=0, help="videos uploaded twice (default: 0)")
    parser.add_argument(
        "--faults",
        type=float,
        default=0.0,
        metavar="SHARE",
        help="of the talking shots: a camera that shakes or stutters, light that changes or "
        "flickers (default: 0)",
    )
    parser.add_argument(
        "--planted",
        type=int,
        default=0,
        help="videos besides that hold each further fault once (subtitles, hands, music …), and "
        "for each three altered copies and four broken files (default: 0)",
    )
    parser.add_argument("--size", type=int, default=96, help="height in pixels (default: 96)")
    parser.add_argument("--split", default="train", choices=["train", "validation", "test"])
    parser.add_argument("--first", type=int, default=0, help="number of the first person")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=at_once, default=1, help="processes (default: 1)")


def add_plant(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("films", help="folder of films in which one person speaks, 5 s or longer")
    parser.add_argument("--out", required=True, help="folder for the videos and their truth")
    parser.add_argument("--recordings", type=int, required=True, help="number of videos")
    parser.add_argument("--height", type=int, default=256, help="in pixels (default: 256)")
    parser.add_argument("--seed", type=int, default=0)


def curate(args: argparse.Namespace) -> int:
    from avatar_v_data.curation.run import curate

    with progress_bar() as progress:
        task = progress.add_task("curate", total=None)
        run = curate(
            args.footage,
            args.out,
            args.plan,
            num_workers=args.workers,
            ray=args.ray,
            stages=args.stages,
            retry=args.retry,
            on_progress=lambda done, total: progress.update(task, completed=done, total=total),
        )
    found = run.found(("probe", "shots", "clips"))
    whole = found.footage_s
    _print_left_out(run, found)
    length = sum(clip["seconds"] for clip in found.clips)
    print(
        f"{counted(len(found.clips), 'clip')}, "
        + (
            f"{length / 60:.1f} of {whole / 60:.1f} minutes: "
            if whole > 300
            else f"{length:.0f} of {whole:.0f} s: "
        )
        + shlex.join(["avatar-v-data", "select", args.out, "--out", f"{args.out}/selected"])
    )
    return 0 if found.clips or found.unfinished else 1


def select(args: argparse.Namespace) -> int:
    from rich.table import Table

    from avatar_v_data.curation.curated import opened
    from avatar_v_data.curation.run import choose

    run = opened(args.curated, args.plan)
    found, selections = choose(
        run,
        args.out,
        args.tiers,
        licence=args.licence,
        consent=args.consent,
        drop=args.drop,
        validation=args.validation,
        seed=args.seed,
    )
    console = results_console()
    for selection in selections:
        table = Table("after", "clips", "minutes", title=f"tier {selection.tier}")
        for step in selection.steps:
            table.add_row(step.what, str(step.clips or ""), f"{step.seconds / 60:.1f}")
        console.print(table)
        if not selection.clips:
            console.print(f"no clip is left: change the limits of tier {selection.tier} in a plan")
            continue
        persons = {clip["person"] for clip in selection.clips}
        scenes = {clip["scene"] for clip in selection.clips}
        console.print(
            f"{counted(len(persons), 'person')} in {counted(len(scenes), 'scene')}: "
            + (
                f"{counted(len(selection.clips), 'clip')} gave "
                f"{counted(selection.num_samples, 'sample')}, {len(selection.dropped)} dropped "
                f"(report.json says why): shards in {args.out}/{selection.tier}"
                if run.plan.samples
                else f"{counted(len(selection.clips), 'clip')}"
            ),
            soft_wrap=True,
        )
        what = "sample" if run.plan.samples else "clip"
        for split, (persons, num) in selection.shares.items():
            console.print(f"{split}: {counted(persons, 'person')}, {counted(num, what)}")
        for command in _next(run, Path(args.out), selection):
            console.print(f"next: {command}", soft_wrap=True, markup=False, highlight=False)
    console.print(f"clips to watch: {args.out}/report.html", soft_wrap=True)
    _print_left_out(run, found)
    made = [s.num_samples if run.plan.samples else len(s.clips) for s in selections]
    return 0 if any(made) else 1


def _next(run: "Curated", out: Path, selection: "Selection") -> list[str]:
    """Commands that take a tier further; words in capitals are the user's."""
    tier = out / selection.tier
    if not run.plan.samples:
        manifest = shlex.join([str(run.footage), "--manifest", f"{tier}.jsonl"])
        return [f"avatar-v-data import {manifest} --out SHARDS"]
    if not tier.is_dir():  # of its clips none gave a sample
        return []
    from avatar_v_data.import_plan import SPLITS

    parts = [split for split in SPLITS if (tier / split).is_dir()]
    from avatar_v.weights.card import ASSETS

    is_small = run.plan.samples.video == VideoFormat.of("64")
    shipped = ASSETS / "small"
    if shipped.is_relative_to(Path.cwd()):
        shipped = shipped.relative_to(Path.cwd())
    vae = str(shipped / "vae") if is_small else "VAE"
    latents, commands = Path("LATENTS"), []
    for part in parts or [""]:
        words = ["avatar-v", "shards", "encode", "--shards", str(tier / part), "--out"]
        words += [str(latents / part), "--vae", vae, "--drop-video"]
        commands.append(words + ["--stills"] * (selection.tier == "sft"))
    if selection.tier in RECIPES:
        words = ["avatar-v", "run", RECIPES[selection.tier]]
        if is_small:
            words += ["recipes/small.yaml", "--model.init_args.models.init_from", str(shipped)]
        places = [str(latents / part) for part in parts] or [str(latents), "null"]
        for name, place in zip(SPLITS, places, strict=True):
            words += [f"--data.init_args.{name}", place]
        words += ["--trainer.default_root_dir", "RUN"]
        commands.append(words)
    return list(map(shlex.join, commands))


def status(args: argparse.Namespace) -> int:
    from avatar_v_data.curation.curated import opened
    from avatar_v_data.curation.status import print_status

    print_status(opened(args.curated))
    return 0


def deploy(args: argparse.Namespace) -> int:
    import yaml

    from avatar_v_data.curation.deploy import Cluster, manifests

    documents = manifests(args.plan, parsed(args, Cluster))
    print(yaml.safe_dump_all(documents, sort_keys=False), end="")
    return 0


def _print_left_out(run: "Curated", found: "CurationResults") -> None:
    """Recordings of which nothing is taken, a part, or less than their header says."""
    from avatar_v.types import FRAME_RATE_HZ

    _print_failed(found.failed)
    spans = {name: own for name, (own, why, _) in run.left_out.items() if not why}
    parts = {name: sum(b - a for a, b in own) / FRAME_RATE_HZ for name, own in spans.items() if own}
    words = "s are shown by another recording, or stand still"
    _print_failed({name: f"{length:.1f} {words}" for name, length in parts.items()}, "in part")
    _print_failed(found.ends_early, "ends early")


def _print_failed(failed: dict[str, str], what: str = "left out") -> None:
    for name, reason in list(failed.items())[:10]:
        print(f"{what}: {name}: {reason}")
    if len(failed) > 10:
        print(f"{what}: {len(failed) - 10} more")


def footage(args: argparse.Namespace) -> int:
    from avatar_v.types import FRAME_RATE_HZ
    from avatar_v_data.footage_drawing import write_footage
    from avatar_v_data.world_footage import FootageSettings, plan_footage

    settings = FootageSettings(
        num_recordings=args.recordings,
        seconds=args.seconds,
        num_persons=args.persons,
        num_copies=args.copies,
        size=args.size,
        split=args.split,
        first=args.first,
        seed=args.seed,
        faults=args.faults,
        num_planted=args.planted,
    )
    with progress_bar() as progress:
        task = progress.add_task("footage", total=len(plan_footage(settings)))
        plans = write_footage(
            settings,
            args.out,
            num_workers=args.workers,
            on_file=lambda num_done: progress.update(task, completed=num_done),
        )
    length = sum(plan.shots[-1].stop for plan in plans) / FRAME_RATE_HZ / 60
    print(f"{counted(len(plans), 'recording')}, {length:.1f} minutes: {args.out}")
    return 0


def plant(args: argparse.Namespace) -> int:
    from avatar_v.types import FRAME_RATE_HZ
    from avatar_v_data.film_faults import plant

    with progress_bar() as progress:
        task = progress.add_task("plant", total=args.recordings)
        plans = plant(
            args.films,
            args.out,
            num_recordings=args.recordings,
            height=args.height,
            seed=args.seed,
            on_file=lambda num_done: progress.update(task, completed=num_done),
        )
    length = sum(plan.shots[-1].stop for plan in plans) / FRAME_RATE_HZ / 60
    print(f"{counted(len(plans), 'recording')}, {length:.1f} minutes: {args.out}")
    return 0
