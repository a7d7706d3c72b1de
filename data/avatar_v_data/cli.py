"""avatar-v-data: the front end of the commands that make shards. Its imports are light.

`avatar-v-data import` turns a folder of videos into shards, `avatar-v-data world` draws them. Of
raw footage `curate` scores the clips and `select` makes shards; `footage` draws some, and `plant`
puts faults in films. `revoke` removes a person. The contract of a shard, and the tools for every
shard, are in `avatar_v.shards` (`avatar-v shards`).

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
from avatar_v.base.options import at_once
from avatar_v.base.progress import progress_bar, results_console
from avatar_v.base.video_format import FRAME_RATES_HZ, VideoFormat
from avatar_v.base.words import counted, notice
from avatar_v.cli import guarded
from avatar_v_data import footage_cli, revoke_cli, voices_cli
from avatar_v_data.world_settings import WorldSettings

DEFAULT_NUM_FRAMES = 101  # 26 latents, 4.04 s
DEFAULT_SIZE = "64"
SIZE = "of the pictures, as 832x480, or 64 for a square (default: 64)"
RATE = "frames a second (default: 25)"


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit status."""
    words = list(sys.argv[1:] if argv is None else argv)
    return guarded("avatar-v-data", words, _dispatch)


def build_parser() -> argparse.ArgumentParser:
    """The parser of all commands."""
    parser, commands = front_end("avatar-v-data", "Make the shards that models are trained on.")
    _add_import(commands.add_parser("import", help="turn a folder of videos into shards"))
    _add_world(commands.add_parser("world", help="draw clips of the embedded world"))
    footage_cli.add_curate(
        commands.add_parser("curate", help="find and score the clips of raw footage")
    )
    footage_cli.add_status(commands.add_parser("status", help="how far a run of curate has come"))
    footage_cli.add_deploy(commands.add_parser("deploy", help="write a plan as a job of a cluster"))
    footage_cli.add_select(commands.add_parser("select", help="shards of clips that curate found"))
    voices_cli.add_options(commands.add_parser("voices", help="speech of many voices, synthetic"))
    revoke_cli.add_options(commands.add_parser("revoke", help="remove a person who withdraws"))
    footage_cli.add_footage(
        commands.add_parser("footage", help="draw raw footage of the embedded world")
    )
    footage_cli.add_plant(
        commands.add_parser("plant", help="plant faults in films, to measure a plan by")
    )
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
        "curate": footage_cli.curate,
        "status": footage_cli.status,
        "deploy": footage_cli.deploy,
        "select": footage_cli.select,
        "revoke": revoke_cli.run,
        "footage": footage_cli.footage,
        "plant": footage_cli.plant,
        "voices": voices_cli.run,
    }
    return commands[args.command](args)


def _add_import(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "folder",
        help="videos, subfolders too; a caption may lie in NAME.txt, the voice that the person "
        "listens to in NAME.heard.wav",
    )
    parser.add_argument("--out", required=True, help="folder for the shards")
    parser.add_argument("--frames", type=int, default=DEFAULT_NUM_FRAMES, help="per clip, 4k + 1")
    parser.add_argument("--size", default=DEFAULT_SIZE, metavar="WxH", help=SIZE)
    parser.add_argument("--rate", type=int, default=25, choices=FRAME_RATES_HZ, help=RATE)
    parser.add_argument(
        "--no-face-crop", action="store_true", help="take the picture's centre, without dlib"
    )
    parser.add_argument(
        "--framing", default="face", choices=["face", "body"], help="head and shoulders, or to the "
        "hips (default: face)"
    )  # fmt: skip
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
    parser.add_argument("--size", default=DEFAULT_SIZE, metavar="WxH", help=SIZE)
    parser.add_argument("--rate", type=int, default=25, choices=FRAME_RATES_HZ, help=RATE)
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
        "--dialogues",
        action="store_true",
        help="each person talks with another, and listens",
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
        framing=args.framing,
        frame_rate_hz=args.rate,
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
    video = VideoFormat.of(args.size)
    settings = WorldSettings(
        num_clips=args.clips,
        split=args.split,
        num_frames=args.frames,
        size=video.height if video.aspect == 1 else video.size,
        clips_per_person=args.clips_per_person,
        clips_per_shard=args.clips_per_shard,
        seed=args.seed,
        close_ups=args.close_ups,
        raw=args.raw,
        pictures=not args.motion_only,
        frame_rate_hz=args.rate,
        dialogues=args.dialogues,
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


if __name__ == "__main__":
    sys.exit(main())
