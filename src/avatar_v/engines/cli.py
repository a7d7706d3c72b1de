"""`avatar-v speak`: a script to a sound file, by the engine that `generate --script` calls."""

import argparse
import os
from pathlib import Path

from avatar_v.engines.checks import check_script
from avatar_v.engines.voices import DRAWN


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Register `speak`."""
    parser = subparsers.add_parser(
        "speak",
        help="a script in, its speech as a .wav out",
        description="Writes OUT.wav (16 kHz, mono), the speech that `avatar-v generate` makes of "
        "the same script, voice and seed.",
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("--script", required=True, metavar="TEXT|FILE.txt", help="what is to be said")
    add("--out", required=True, metavar="OUT.wav", help="the sound file")
    add("--voice", default=DRAWN, metavar="NAME|DIR", help="drawn, drawn:N, or a folder with a "
        "text-to-speech model (%(default)s)")  # fmt: skip
    add("--seed", type=int, default=0, metavar="N", help="another seed gives another take")
    add("--overwrite", action="store_true", help="replace OUT.wav")


def run(args: argparse.Namespace) -> int:
    """Carry out the parsed command."""
    out = Path(args.out)
    if out.suffix.lower() != ".wav":
        raise ValueError(f"--out names a .wav file, got {args.out!r}")
    if not out.parent.is_dir():
        raise ValueError(f"{out}: the folder {out.parent} does not exist; create it first")
    if os.path.lexists(out) and not args.overwrite:
        raise ValueError(f"{out} exists; pass --overwrite to replace it")
    if not 0 <= args.seed < 2**63:
        raise ValueError(f"--seed is a whole number from 0 to {2**63 - 1}, got {args.seed}")
    check_script(args.script, args.voice)
    from avatar_v.engines.voice import speak_script
    from avatar_v.media.writer import write_wav
    from avatar_v.types import SAMPLE_RATE_HZ

    sound, said = speak_script(args.script, args.voice, seed=args.seed)
    write_wav(out, sound)
    print(f"{out}: {len(sound) / SAMPLE_RATE_HZ:.1f} s, voice {said.voice}, seed {said.seed}")
    return 0
