"""`avatar-v shards world | import | encode | faces | stills | show`: make shards and look at them.

Only parsing happens at import; each command imports what it needs when it runs.
"""

import argparse
from pathlib import Path

DEFAULT_NUM_FRAMES = 101  # 26 latents, 4.04 s
DEFAULT_SIZE = 64


def add_parser(subparsers) -> None:
    """Hang `shards` and its commands onto the front end's sub-parsers."""
    shards = subparsers.add_parser("shards", help="make shards and look at them")
    commands = shards.add_subparsers(dest="shards_command", required=True, metavar="COMMAND")
    _add_world(commands.add_parser("world", help="render clips of the embedded world"))
    _add_import(commands.add_parser("import", help="turn a folder of videos into shards"))
    _add_encode(commands.add_parser("encode", help="add VAE latents to shards"))
    _add_pictures(commands.add_parser("faces", help="add close-ups of the face"))
    _add_pictures(commands.add_parser("stills", help="add whole frames, encoded alone"))
    _add_show(commands.add_parser("show", help="print and picture a few clips"))


def run(args: argparse.Namespace) -> int:
    """Run the parsed command; returns the exit status. User errors are ValueErrors."""
    commands = {
        "world": _world,
        "import": _import,
        "encode": _encode,
        "faces": _pictures,
        "stills": _pictures,
        "show": _show,
    }
    return commands[args.shards_command](args)


def _add_world(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--out", required=True, help="folder for the shards")
    parser.add_argument("--clips", type=int, required=True, help="number of clips")
    parser.add_argument("--split", default="train", choices=["train", "validation", "test"])
    parser.add_argument("--frames", type=int, default=DEFAULT_NUM_FRAMES, help="per clip, 4k + 1")
    parser.add_argument("--size", type=int, default=DEFAULT_SIZE, help="height and width, pixels")
    parser.add_argument("--clips-per-person", type=int, default=4, help="each in another scene")
    parser.add_argument("--clips-per-shard", type=int, default=64)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=1, help="processes; the bytes do not change")


def _add_import(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", help="videos, subfolders too; a caption may lie in NAME.txt")
    parser.add_argument("--out", required=True, help="folder for the shards")
    parser.add_argument("--frames", type=int, default=DEFAULT_NUM_FRAMES, help="per clip, 4k + 1")
    parser.add_argument("--size", type=int, default=DEFAULT_SIZE, help="height and width, pixels")
    parser.add_argument("--no-face-crop", action="store_true", help="take the centre square")
    parser.add_argument(
        "--person",
        choices=["folder", "file"],
        default="folder",
        help="who is one person: all files of a folder, or each file",
    )
    parser.add_argument("--licence", default="unknown", help="of the videos, e.g. CC-BY-4.0")
    parser.add_argument("--consent", default="unknown", help="how the person shown agreed")
    parser.add_argument("--clips-per-shard", type=int, default=64)


def _add_encode(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--shards", required=True, help="folder of shards with video")
    parser.add_argument("--out", required=True, help="another folder, for the shards with latents")
    parser.add_argument("--vae", required=True, help="folder of a VideoVAE, e.g. assets/small/vae")
    parser.add_argument("--drop-video", action="store_true", help="write the latents alone")
    parser.add_argument("--faces", action="store_true", help="add close-ups of the face too")
    parser.add_argument("--stills", action="store_true", help="add whole frames, encoded alone")
    parser.add_argument("--low", action="store_true", help="add what the refiner starts from")
    parser.add_argument("--bf16", action="store_true", help="in bf16 autocast")
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--device", default="cpu")


def _add_pictures(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--shards", required=True, help="folder of shards with latents, changed")
    parser.add_argument("--vae", required=True, help="folder of the VideoVAE of the latents")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--device", default="cpu")


def _add_show(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", help="folder of shards")
    parser.add_argument("--out", help="picture to write; without it the clips are only printed")
    parser.add_argument("-n", type=int, default=4, help="number of clips, spread over the set")


def _check_frames(num: int) -> None:
    """Before anything heavy is imported."""
    if num < 1 or num % 4 != 1:
        raise ValueError(f"--frames {num}: a clip has 4k + 1 frames (1, 5, 9, …)")


def _world(args: argparse.Namespace) -> int:
    _check_frames(args.frames)
    from rich.console import Console

    from avatar_v.shards.world_set import WorldSettings, write_world

    settings = WorldSettings(
        num_clips=args.clips,
        split=args.split,
        num_frames=args.frames,
        size=args.size,
        clips_per_person=args.clips_per_person,
        clips_per_shard=args.clips_per_shard,
        seed=args.seed,
    )
    with _progress() as progress:
        task = progress.add_task(f"world {args.split}", total=args.clips)
        indexes = write_world(
            settings,
            args.out,
            num_workers=args.workers,
            on_clip=lambda num_done: progress.update(task, completed=num_done),
        )
    failures = [failure for index in indexes for failure in index.failures]
    console = Console()
    num_clips, num_bytes = sum(len(i.clips) for i in indexes), sum(i.num_bytes for i in indexes)
    console.print(
        f"{num_clips} clips in {len(indexes)} shards, {num_bytes / 1e6:.1f} MB: {args.out}",
        soft_wrap=True,
    )
    for failure in failures[:10]:
        console.print(f"[red]failed[/red] {failure.key}: {failure.reason}", soft_wrap=True)
    if failures:
        console.print(f"{len(failures)} clips failed; the rows are in the shards' indexes")
    return 1 if failures else 0


def _import(args: argparse.Namespace) -> int:
    _check_frames(args.frames)
    from avatar_v.shards.importer import ImportSettings, import_folder, print_report

    settings = ImportSettings(
        num_frames=args.frames,
        size=args.size,
        face_crop=not args.no_face_crop,
        person_is_folder=args.person == "folder",
        licence=args.licence,
        consent=args.consent,
        clips_per_shard=args.clips_per_shard,
    )
    with _progress() as progress:
        task = progress.add_task("import", total=None)
        report = import_folder(
            args.folder,
            args.out,
            settings,
            on_file=lambda done, total: progress.update(task, completed=done, total=total),
        )
    print_report(report)
    return 0 if report.num_clips else 1


def _encode(args: argparse.Namespace) -> int:
    from rich.console import Console

    from avatar_v.shards.encode import encode_folder

    with _progress() as progress:
        task = progress.add_task("encode", total=None)
        num_clips, vae_hash = encode_folder(
            args.shards,
            args.out,
            args.vae,
            drop_video=args.drop_video,
            faces=args.faces,
            stills=args.stills,
            low=args.low,
            bf16=args.bf16,
            batch_size=args.batch_size,
            num_threads=args.threads,
            device=args.device,
            on_clip=lambda done, total: progress.update(task, completed=done, total=total),
        )
    Console().print(f"{num_clips} clips with latents of VAE {vae_hash}: {args.out}", soft_wrap=True)
    return 0


def _pictures(args: argparse.Namespace) -> int:
    from rich.console import Console

    from avatar_v.shards.pictures import CLOSE_UPS, WHOLE_FRAMES, add_pictures

    name = args.shards_command
    with _progress() as progress:
        task = progress.add_task(name, total=None)
        num_clips, num_empty = add_pictures(
            CLOSE_UPS if name == "faces" else WHOLE_FRAMES,
            args.shards,
            args.vae,
            num_threads=args.threads,
            device=args.device,
            on_clip=lambda done, total: progress.update(task, completed=done, total=total),
        )
    empty = f", {num_empty} of them show no face" if num_empty else ""
    Console().print(f"{num_clips} clips with {name}{empty}: {args.shards}", soft_wrap=True)
    return 0


def _show(args: argparse.Namespace) -> int:
    from avatar_v.shards.show import pick, print_clips, save_sheet

    if args.out and Path(args.out).suffix.lower() not in (".png", ".jpg", ".pdf"):
        raise ValueError(f"--out {args.out}: expected a .png, .jpg or .pdf file")
    samples = pick(args.folder, args.n)
    print_clips(samples)
    if args.out:
        save_sheet(samples, args.out)
        print(args.out)
    return 0


def _progress():
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
    from rich.progress import TimeElapsedColumn as Elapsed
    from rich.progress import TimeRemainingColumn as Remaining

    text = TextColumn("{task.description}")
    return Progress(text, BarColumn(), MofNCompleteColumn(), Elapsed(), Remaining())
