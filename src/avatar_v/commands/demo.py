"""`avatar-v demo`: a person the model never saw speaks a sentence it never heard, and is scored."""

import argparse
from pathlib import Path

from avatar_v.request.request import Request
from avatar_v.weights.card import DEFAULT_WEIGHTS, read_card, weights_folder


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Register `demo`."""
    parser = subparsers.add_parser(
        "demo",
        help="make a held-out person of the embedded world speak",
        description="Leaves side_by_side.mp4, out.mp4, sheet.png and more in DIR, within a minute "
        "on 2 cores.",
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("--out", default="demo", metavar="DIR", help="folder (%(default)s)")
    add("--person", type=int, default=7, help="which test person, from 0 (%(default)s)")
    add("--scene", type=int, default=7, help="which test scene (%(default)s)")
    add("--speech", type=int, default=7, help="which test sentence (%(default)s)")
    add("--frames", type=int, default=213, help="length, 25 a second (%(default)s)")
    add("--steps", type=int, help="denoising steps (default: as `avatar-v generate`)")
    add("--seed", type=int, default=0, help="of the noise (%(default)s)")
    add("--precision", default="auto", choices=("auto", "fp32", "bf16"), help="(%(default)s)")
    add(
        "--weights",
        default=DEFAULT_WEIGHTS,
        metavar="NAME|DIR",
        help="shipped or own (%(default)s)",
    )


def run(args: argparse.Namespace) -> int:
    """Carry out the parsed command and print what it measured."""
    if not args.out:
        raise ValueError("--out names a folder, got ''")
    from avatar_v.request.checks import check_settings

    read_card(weights_folder(args.weights))
    check_settings(Request.of(reference="", audio="", num_steps=args.steps, seed=args.seed))
    from avatar_v.demo.showcase import Cast, showcase

    folder = Path(args.out)
    record, sync = showcase(
        folder,
        Cast(person=args.person, scene=args.scene, speech=args.speech, num_frames=args.frames),
        num_steps=args.steps,
        seed=args.seed,
        weights=args.weights,
        precision=args.precision,
    )
    timing = record.timing
    beside = "the rows of the sheet side by side, with sound"
    print(
        f"{folder / 'out.mp4'}: {record.num_frames / 25:.1f} s in {timing.total_s:.1f} s "
        f"({timing.frames_per_s:.1f} frames/s, first frame after {timing.first_frame_s:.1f} s)\n"
        f"{folder / 'side_by_side.mp4'}: {beside}\n"
        f"{folder / 'sheet.png'}: reference, true and generated frames, mouth curves\n"
        "lip-sync, correlation of the mouth's opening with the driving speech's:\n"
        f"  generated video       {sync.generated:5.2f}\n"
        f"  shuffled speech       {sync.shuffled_mean:z5.2f} ± {sync.shuffled_std:.2f}\n"
        f"  true video            {sync.true_video:5.2f}  (what the meter can see at most)"
    )
    return 0
