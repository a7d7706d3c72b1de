"""`avatar-v shards encode | faces | stills | stats | pairs | show`: look at shards and add to them.

Only parsing happens at import; each command imports what it needs when it runs.
"""

import argparse
from pathlib import Path

from avatar_v.base.options import at_once
from avatar_v.base.progress import progress_bar, results_console
from avatar_v.base.trust import trust
from avatar_v.base.video_format import VideoFormat
from avatar_v.base.words import counted
from avatar_v.shards.store import is_url


def add_parser(subparsers) -> None:
    """Hang `shards` and its commands onto the front end's sub-parsers."""
    shards = subparsers.add_parser("shards", help="prepare shards and look at them")
    commands = shards.add_subparsers(dest="shards_command", required=True, metavar="COMMAND")
    _add_encode(commands.add_parser("encode", help="add VAE latents to shards"))
    _add_pictures(commands.add_parser("faces", help="add close-ups of the face"))
    _add_pictures(commands.add_parser("stills", help="add whole frames, encoded alone"))
    _add_stats(commands.add_parser("stats", help="compute the statistics that motion is read in"))
    _add_pairs(commands.add_parser("pairs", help="make pairs of samples, ranked by critics"))
    _add_show(commands.add_parser("show", help="print and picture a few clips"))


def run(args: argparse.Namespace) -> int:
    """Run the parsed command; returns the exit status. User errors are ValueErrors."""
    commands = {
        "encode": _encode,
        "faces": _pictures,
        "stills": _pictures,
        "stats": _stats,
        "pairs": _pairs,
        "show": _show,
    }
    return commands[args.shards_command](args)


def _add_encode(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--shards", required=True, help="folder of shards with video, or s3://…")
    parser.add_argument("--out", required=True, help="another folder, for the shards with latents")
    parser.add_argument("--vae", required=True, help="folder of a VideoVAE, e.g. assets/small/vae")
    parser.add_argument("--drop-video", action="store_true", help="write the latents alone")
    parser.add_argument("--faces", action="store_true", help="add close-ups of the face too")
    parser.add_argument("--stills", action="store_true", help="add whole frames, encoded alone")
    parser.add_argument("--low", nargs="?", type=float, const=2.0, metavar="FACTOR",
        help="add what the refiner starts from: FACTOR times smaller (2), enlarged")  # fmt: skip
    parser.add_argument("--text", metavar="NAME|DIR",
        help="encode the captions too, by these weights or UMT5's folder")  # fmt: skip
    parser.add_argument("--bf16", action="store_true", help="in bf16 autocast")
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--threads", type=at_once, default=2)
    parser.add_argument("--device", default="cpu")


def _add_pictures(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--shards", required=True, help="folder of shards with latents, changed")
    parser.add_argument("--vae", required=True, help="folder of the VideoVAE of the latents")
    parser.add_argument("--threads", type=at_once, default=2)
    parser.add_argument("--device", default="cpu")


def _add_stats(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", help="folder of training shards, of two people or more")
    parser.add_argument("--out", required=True, help="motion.json, or a folder of weights for it")


def _add_pairs(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--shards", required=True, help="folder of clips, several of each person")
    add("--out", required=True, help="folder for the shards of pairs")
    add("--pairs", type=int, required=True, help="number of pairs")
    add("--weights", help="what makes the samples (default: small)")
    add("--against", metavar="WEIGHTS", help="what makes one of the two (default: the same)")
    add("--video", action="store_true", help="make and judge videos (default: motion alone)")
    add("--videos", nargs=2, metavar=("A", "B"), help="folders of videos that two systems made "
        "elsewhere, CLIP.mp4 by the keys of --shards: judge these, and make none")  # fmt: skip
    add("--size", default="64", metavar="WxH", help="pixels (%(default)s), of --videos")
    add("--motion", default="auto", help="auto, meter, landmarks, reader, none or "
        "package.module:function (%(default)s), of --videos")  # fmt: skip
    add("--no-face-crop", action="store_true", help="take the centre square of --videos; "
        "--motion auto is the meter then")  # fmt: skip
    add("--frames", type=int, default=137, help="of a sample, 4k + 1 (default: 137, 5.5 s)")
    add("--raters", metavar="FILE", help="JSON of who judges (default: the person's own habits; of "
        "videos the person's own face, lips and sharpness)")  # fmt: skip
    add("--trust", action="append", default=[], metavar="MODULE", help="--raters may name terms of "
        "this module of yours; may be repeated")  # fmt: skip
    add("--batch-size", type=int, default=64)
    add("--seed", type=int, default=0)


def _add_show(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", help="folder of shards")
    parser.add_argument("--out", help="picture to write; without it the clips are only printed")
    parser.add_argument("-n", type=int, default=4, help="number of clips, spread over the set")


def _require_shards(folder: str) -> None:
    """ValueError for a local folder without finished shards, before anything heavy is imported."""
    if not is_url(folder) and next(Path(folder).rglob("*.index.json"), None) is None:
        raise ValueError(f"{folder}: no finished shards (NAME.tar with NAME.index.json) in it")


def _require_vae(folder: str) -> None:
    if not (Path(folder) / "config.json").is_file():
        raise ValueError(f"--vae {folder}: no VAE is there; expected a folder with its config.json")


def _encode(args: argparse.Namespace) -> int:
    _require_shards(args.shards)
    _require_vae(args.vae)

    from avatar_v.shards.encode import encode_folder

    with progress_bar() as progress:
        task = progress.add_task("encode", total=None)
        num_clips, vae_hash = encode_folder(
            args.shards,
            args.out,
            args.vae,
            drop_video=args.drop_video,
            faces=args.faces,
            stills=args.stills,
            low=args.low,
            text=args.text,
            bf16=args.bf16,
            batch_size=args.batch_size,
            num_threads=args.threads,
            device=args.device,
            on_clip=lambda done, total: progress.update(task, completed=done, total=total),
        )
    clips = counted(num_clips, "clip")
    results_console().print(f"{clips} with latents of VAE {vae_hash}: {args.out}", soft_wrap=True)
    return 0


def _pictures(args: argparse.Namespace) -> int:
    _require_shards(args.shards)
    _require_vae(args.vae)

    from avatar_v.shards.pictures import FACE_CROPS, REF_FRAMES, add_pictures

    name = args.shards_command
    with progress_bar() as progress:
        task = progress.add_task(name, total=None)
        num_clips, num_empty = add_pictures(
            FACE_CROPS if name == "faces" else REF_FRAMES,
            args.shards,
            args.vae,
            num_threads=args.threads,
            device=args.device,
            on_clip=lambda done, total: progress.update(task, completed=done, total=total),
        )
    empty = f", {num_empty} of them show no face" if num_empty else ""
    results_console().print(
        f"{counted(num_clips, 'clip')} with {name}{empty}: {args.shards}", soft_wrap=True
    )
    return 0


def _stats(args: argparse.Namespace) -> int:
    _require_shards(args.folder)
    from avatar_v.motion.stats import stats_path, write_stats
    from avatar_v.shards.motion_stats import stats_of_folder

    path = stats_path(args.out)
    if not path.parent.is_dir():
        raise ValueError(f"--out {args.out}: there is no folder {path.parent}")
    with progress_bar() as progress:
        task = progress.add_task("stats", total=None)
        stats = stats_of_folder(
            args.folder,
            on_clip=lambda done, total: progress.update(task, completed=done, total=total),
        )
    write_stats(path, stats)
    print(f"motion statistics of {stats.num_clips} clips of {stats.num_people} people: {path}")
    return 0


def _pairs(args: argparse.Namespace) -> int:
    _require_shards(args.shards)

    from avatar_v.pairs.made_videos import MadeVideos
    from avatar_v.pairs.making import MotionSystem, PairSettings, make_pairs
    from avatar_v.pairs.video_systems import VideoSystem
    from avatar_v.rewards.raters import OWN_HABITS, OWN_LOOKS, Panel, read_panel

    if args.videos and (args.video or args.weights or args.against):
        raise ValueError("--videos are there already: drop --video, --weights and --against")
    settings = PairSettings(args.pairs, args.frames, args.batch_size, seed=args.seed)
    panel = Panel(OWN_LOOKS if args.video or args.videos else OWN_HABITS)
    if args.raters is not None:
        trust(args.trust)
        panel = read_panel(args.raters)
    keys = None
    if args.videos:
        first, second = (
            MadeVideos.load(
                folder,
                video=VideoFormat.of(args.size),
                face_crop=not args.no_face_crop,
                motion=args.motion,
            )
            for folder in args.videos
        )
        keys = first.files.keys() & second.files.keys()
    else:
        load = VideoSystem.load if args.video else MotionSystem.load
        first = load(args.weights or "small")
        second = first if args.against is None else load(args.against)
    with progress_bar() as progress:
        task = progress.add_task("pairs", total=args.pairs)
        num_failed, winners = make_pairs(
            args.shards,
            args.out,
            (first, second),
            panel,
            settings,
            keys=keys,
            on_pair=lambda done: progress.update(task, completed=done),
        )
    said = ", ".join(f"{winner} {num}" for winner, num in winners.items())
    failed = f"; {num_failed} without a judgment" if num_failed else ""
    pairs = counted(sum(winners.values()), "pair")
    results_console().print(f"{pairs} ({said}){failed}: {args.out}", soft_wrap=True)
    return 0


def _show(args: argparse.Namespace) -> int:
    if args.out and Path(args.out).suffix.lower() not in (".png", ".jpg", ".pdf"):
        raise ValueError(f"--out {args.out}: expected a .png, .jpg or .pdf file")
    _require_shards(args.folder)
    from avatar_v.shards.show import pick, print_clips, save_sheet

    samples = pick(args.folder, args.n)
    print_clips(samples)
    if args.out:
        save_sheet(samples, args.out)
        print(args.out)
    return 0
