"""avatar-v-data: the front end of the commands that make shards. Its imports are light.

`avatar-v-data import` turns a folder of videos into shards, `avatar-v-data world` draws them. Of
raw footage `curate` scores the clips and `select` makes shards; `footage` draws some. `revoke`
removes a person. The contract of a shard, and the tools for every shard, are in `avatar_v.shards`
(`avatar-v shards`).

A ValueError or OSError is a user's error: one line, exit status 2. ``--debug`` shows where.
"""

import argparse
import signal
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

from avatar_v.base.command_line import front_end
from avatar_v.base.interrupts import interrupted
from avatar_v.base.options import at_once, parsed
from avatar_v.base.progress import progress_bar, results_console
from avatar_v.base.words import counted, notice
from avatar_v.cli import guarded
from avatar_v_data import revoke_cli
from avatar_v_data.world_settings import WorldSettings

DEFAULT_NUM_FRAMES = 101  # 26 latents, 4.04 s
DEFAULT_SIZE = 64


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit status."""
    words = list(sys.argv[1:] if argv is None else argv)
    return guarded("avatar-v-data", words, _dispatch)


def build_parser() -> argparse.ArgumentParser:
    """The parser of all commands."""
    parser, commands = front_end("avatar-v-data", "Make the shards that models are trained on.")
    _add_import(commands.add_parser("import", help="turn a folder of videos into shards"))
    _add_world(commands.add_parser("world", help="draw clips of the embedded world"))
    _add_curate(commands.add_parser("curate", help="find and score the clips of raw footage"))
    _add_status(commands.add_parser("status", help="how far a run of curate has come"))
    _add_deploy(commands.add_parser("deploy", help="write a plan as a job of a cluster"))
    _add_select(commands.add_parser("select", help="shards of clips that curate found"))
    revoke_cli.add_options(commands.add_parser("revoke", help="remove a person who withdraws"))
    _add_footage(commands.add_parser("footage", help="draw raw footage of the embedded world"))
    return parser


def _dispatch(words: list[str]) -> int:
    if threading.current_thread() is threading.main_thread():
        # SIGTERM ends a command like Ctrl-C, so that a writer can clean up.
        signal.signal(signal.SIGTERM, interrupted)
    return run(build_parser().parse_args(words))


def run(args: argparse.Namespace) -> int:
    """Run the parsed command; returns the exit status. A user's error is a ValueError."""
    commands = {
        "import": _import,
        "world": _world,
        "curate": _curate,
        "status": _status,
        "deploy": _deploy,
        "select": _select,
        "revoke": revoke_cli.run,
        "footage": _footage,
    }
    return commands[args.command](args)


def _add_import(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", help="videos, subfolders too; a caption may lie in NAME.txt")
    parser.add_argument("--out", required=True, help="folder for the shards")
    parser.add_argument("--frames", type=int, default=DEFAULT_NUM_FRAMES, help="per clip, 4k + 1")
    parser.add_argument("--size", type=int, default=DEFAULT_SIZE, help="height and width, pixels")
    parser.add_argument(
        "--no-face-crop", action="store_true", help="take the picture's centre square, without dlib"
    )
    parser.add_argument(
        "--person",
        choices=["file", "folder", "face", "manifest"],
        help="who is one person: each file, all files of a folder, each face that dlib tells "
        "apart, or the manifest's column (default: the manifest's column, or each file)",
    )
    parser.add_argument(
        "--manifest",
        help="a .csv or .jsonl of file, person, scene, caption, split, licence, consent; its files "
        "alone",
    )
    parser.add_argument(
        "--validation",
        type=float,
        default=0.0,
        metavar="SHARE",
        help="of the persons, into OUT/validation, the others into OUT/train (default: no split)",
    )
    parser.add_argument("--seed", type=int, default=0, help="of that draw (default: 0)")
    parser.add_argument(
        "--workers", type=at_once, default=1, help="processes; the bytes do not change (default: 1)"
    )
    parser.add_argument("--licence", default="unknown", help="of the videos, e.g. CC-BY-4.0")
    parser.add_argument("--consent", default="unknown", help="how the person shown agreed")
    parser.add_argument("--clips-per-shard", type=int, default=64)


def _add_world(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--out", required=True, help="folder for the shards")
    parser.add_argument("--clips", type=int, required=True, help="number of clips")
    parser.add_argument("--split", default="train", choices=["train", "validation", "test"])
    parser.add_argument("--frames", type=int, default=DEFAULT_NUM_FRAMES, help="per clip, 4k + 1")
    parser.add_argument("--size", type=int, default=DEFAULT_SIZE, help="height and width, pixels")
    parser.add_argument("--clips-per-person", type=int, default=4, help="each in another scene")
    parser.add_argument("--clips-per-shard", type=int, default=64)
    parser.add_argument(
        "--close-ups",
        action="store_true",
        help="draw faces at a higher resolution too",
    )
    parser.add_argument(
        "--motion-only",
        action="store_true",
        help="draw nothing: motion and sound alone, in a tenth of the time",
    )
    parser.add_argument(
        "--raw",
        action="store_true",
        help="sound and video uncompressed: many times the bytes, quicker to write and to read",
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--workers", type=at_once, default=1, help="processes; the bytes do not change"
    )


def _add_curate(parser: argparse.ArgumentParser) -> None:
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


def _add_select(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("curated", help="the --out of curate")
    parser.add_argument("--out", required=True, help="folder for shards, manifests and the report")
    parser.add_argument("--plan", help="with other limits (default: that of curate)")
    parser.add_argument("--tiers", nargs="+", metavar="TIER", help="only these (default: all)")
    parser.add_argument(
        "--drop", metavar="FILE", help=".csv of ranges with faults (avatar-v-eval votes drop)"
    )
    parser.add_argument("--licence", default="unknown", help="of the videos, for the shards")
    parser.add_argument("--consent", default="unknown", help="how the persons shown agreed")


def _add_status(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("curated", help="the --out of curate")


def _add_deploy(parser: argparse.ArgumentParser) -> None:
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


def _add_footage(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--out", required=True, help="folder for the videos and their truth")
    parser.add_argument("--recordings", type=int, required=True, help="number of videos")
    parser.add_argument("--seconds", type=float, default=40.0, help="of each (default: 40)")
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
    parser.add_argument("--size", type=int, default=96, help="height in pixels (default: 96)")
    parser.add_argument("--split", default="train", choices=["train", "validation", "test"])
    parser.add_argument("--first", type=int, default=0, help="number of the first person")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=at_once, default=1, help="processes (default: 1)")


def _check_frames(num: int) -> None:
    """Before anything heavy is imported."""
    if num < 1 or num % 4 != 1:
        raise ValueError(f"--frames {num}: a clip has 4k + 1 frames (1, 5, 9, …)")


def _import(args: argparse.Namespace) -> int:
    _check_frames(args.frames)
    if not Path(args.folder).is_dir():
        raise ValueError(f"{args.folder}: no such folder; expected a folder of videos")
    from avatar_v_data.importer import ImportSettings, import_folder, print_report, work_folder

    settings = ImportSettings(
        num_frames=args.frames,
        size=args.size,
        face_crop=not args.no_face_crop,
        person=args.person,
        manifest=args.manifest,
        validation=args.validation,
        seed=args.seed,
        licence=args.licence,
        consent=args.consent,
        clips_per_shard=args.clips_per_shard,
    )
    try:
        with progress_bar() as progress:
            task = progress.add_task("import", total=None)
            report = import_folder(
                args.folder,
                args.out,
                settings,
                num_workers=args.workers,
                on_file=lambda done, total: progress.update(task, completed=done, total=total),
            )
    except KeyboardInterrupt:
        kept = work_folder(args.out)
        if kept.is_dir():
            notice(f"finished files are kept in {kept}; the same command goes on")
        raise
    print_report(report)
    return 0 if report.num_clips else 1


def _world(args: argparse.Namespace) -> int:
    settings = WorldSettings(
        num_clips=args.clips,
        split=args.split,
        num_frames=args.frames,
        size=args.size,
        clips_per_person=args.clips_per_person,
        clips_per_shard=args.clips_per_shard,
        seed=args.seed,
        close_ups=args.close_ups,
        raw=args.raw,
        pictures=not args.motion_only,
    )

    from avatar_v_data.world_set import is_whole, write_world

    was_whole = is_whole(settings, args.out)
    with progress_bar() as progress:
        task = progress.add_task(f"world {args.split}", total=args.clips)
        indexes = write_world(
            settings,
            args.out,
            num_workers=args.workers,
            on_clip=lambda num_done: progress.update(task, completed=num_done),
        )
    failures = [failure for index in indexes for failure in index.failures]
    console = results_console()
    num_clips, num_bytes = sum(len(i.clips) for i in indexes), sum(i.num_bytes for i in indexes)
    console.print(
        f"{counted(num_clips, 'clip')} in {counted(len(indexes), 'shard')}, "
        f"{num_bytes / 1e6:.1f} MB: {args.out}"
        + (" (all kept from before; others need another --out and --seed)" if was_whole else ""),
        soft_wrap=True,
    )
    for failure in failures[:10]:
        console.print(f"[red]failed[/red] {failure.key}: {failure.reason}", soft_wrap=True)
    if failures:
        num_failed = counted(len(failures), "clip")
        console.print(f"{num_failed} failed; the rows are in the shards' indexes")
    return 1 if failures else 0


def _curate(args: argparse.Namespace) -> int:
    from avatar_v_data.curation.run import curate
    from avatar_v_data.curation.table import collect

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
    found = collect(run.tasks, run.store, ("shots", "clips"))
    _print_failed(found.failed)
    length = sum(clip["seconds"] for clip in found.clips)
    print(
        f"{counted(len(found.clips), 'clip')}, {length / 60:.1f} of {found.footage_s / 60:.1f} "
        f"minutes: avatar-v-data select {args.out} --out {args.out}/selected"
    )
    return 0 if found.clips or found.unfinished else 1


def _select(args: argparse.Namespace) -> int:
    from rich.table import Table

    from avatar_v_data.curation.run import choose, opened

    run = opened(args.curated, args.plan)
    words = {"licence": args.licence, "consent": args.consent, "drop": args.drop}
    found, selections = choose(run, args.out, args.tiers, **words)
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
                else f"avatar-v-data import {run.footage} --manifest "
                f"{args.out}/{selection.tier}.jsonl --out SHARDS"
            ),
            soft_wrap=True,
        )
    console.print(f"clips to watch: {args.out}/report.html", soft_wrap=True)
    _print_failed(found.failed)
    made = [s.num_samples if run.plan.samples else len(s.clips) for s in selections]
    return 0 if any(made) else 1


def _status(args: argparse.Namespace) -> int:
    from avatar_v_data.curation.run import opened
    from avatar_v_data.curation.status import print_status

    print_status(opened(args.curated))
    return 0


def _deploy(args: argparse.Namespace) -> int:
    import yaml

    from avatar_v_data.curation.deploy import Cluster, manifests

    documents = manifests(args.plan, parsed(args, Cluster))
    print(yaml.safe_dump_all(documents, sort_keys=False), end="")
    return 0


def _print_failed(failed: dict[str, str]) -> None:
    for name, reason in list(failed.items())[:10]:
        print(f"left out: {name}: {reason}")
    if len(failed) > 10:
        print(f"left out: {len(failed) - 10} more")


def _footage(args: argparse.Namespace) -> int:
    from avatar_v.types import FRAME_RATE_HZ
    from avatar_v_data.world_footage import FootageSettings, write_footage

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
    )
    with progress_bar() as progress:
        task = progress.add_task("footage", total=args.recordings + args.copies)
        plans = write_footage(
            settings,
            args.out,
            num_workers=args.workers,
            on_file=lambda num_done: progress.update(task, completed=num_done),
        )
    length = sum(plan.shots[-1].stop for plan in plans) / FRAME_RATE_HZ / 60
    print(f"{counted(len(plans), 'recording')}, {length:.1f} minutes: {args.out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
