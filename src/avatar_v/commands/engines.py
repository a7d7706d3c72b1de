"""`avatar-v speak` and `avatar-v scene`: the engines alone, as `avatar-v generate` calls them."""

import argparse
import os
from pathlib import Path

from avatar_v.engines.voices import DRAWN
from avatar_v.weights.card import DEFAULT_WEIGHTS


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Register `speak` and `scene`."""
    _add_speak(subparsers)
    _add_scene(subparsers)


def run(args: argparse.Namespace) -> int:
    """Carry out the parsed command."""
    return _speak(args) if args.command == "speak" else _scene(args)


def _add_speak(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = subparsers.add_parser(
        "speak",
        help="a script in, its speech as a .wav out",
        description="Writes OUT.wav (16 kHz, mono), the speech that `avatar-v generate` makes of "
        "the same script, voice and seed.",
        allow_abbrev=False,
    )
    voices = "drawn, drawn:N, or a folder with a text-to-speech model (%(default)s)"
    add = parser.add_argument
    add("--script", required=True, metavar="TEXT|FILE.txt", help="what is to be said")
    add("--out", required=True, metavar="OUT.wav", help="the sound file")
    add("--voice", default=DRAWN, metavar="NAME|DIR", help=voices)
    add("--seed", type=int, default=0, metavar="N", help="another seed gives another take")
    add("--overwrite", action="store_true", help="replace OUT.wav")


def _add_scene(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = subparsers.add_parser(
        "scene",
        help="a person and a scene in words in, pictures of the person there out",
        description="Writes OUT.png, the best of the candidates, for `avatar-v generate --image`; "
        "and all of them side by side, the best on the left, in OUT.candidates.png.",
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("--reference", required=True, metavar="FILE", help="video or picture of the person")
    add("--prompt", required=True, metavar="TEXT", help="the scene in words")
    add("--out", required=True, metavar="OUT.png", help="the picture")
    add("--candidates", type=int, default=8, metavar="N", help="how many are made (%(default)s)")
    add("--seed", type=int, default=0, metavar="N", help="another seed gives other candidates")
    add("--no-face-crop", action="store_true", help="take the picture's centre square, for a "
        "picture in which no face is found")  # fmt: skip
    add("--weights", default=DEFAULT_WEIGHTS, metavar="NAME|DIR", help="shipped or own")
    add("--device", default="auto", metavar="NAME", help="cpu, cuda, … (%(default)s)")
    add("--precision", default="auto", choices=("auto", "fp32", "bf16"), help="(%(default)s)")
    add("--overwrite", action="store_true", help="replace OUT.png and OUT.candidates.png")


def _speak(args: argparse.Namespace) -> int:
    (out,) = _checked_places(args, ".wav")
    if not 0 <= args.seed < 2**63:
        raise ValueError(f"--seed is a whole number from 0 to {2**63 - 1}, got {args.seed}")
    from avatar_v.engines.checks import check_script

    check_script(args.script, args.voice)
    from avatar_v.engines.voice import speak_script
    from avatar_v.media.writer import write_wav
    from avatar_v.types import SAMPLE_RATE_HZ

    sound, said = speak_script(args.script, args.voice, seed=args.seed)
    write_wav(out, sound)
    print(f"{out}: {len(sound) / SAMPLE_RATE_HZ:.1f} s, voice {said.voice}, seed {said.seed}")
    return 0


def _scene(args: argparse.Namespace) -> int:
    out, sheet = _checked_places(args, ".png", ".candidates.png")
    from avatar_v.request.checks import check_request
    from avatar_v.request.request import LIVE, Request, Weights

    request = Request.of(
        reference=args.reference, audio=LIVE, scene=args.prompt, num_candidates=args.candidates,
        seed=args.seed, face_crop=not args.no_face_crop,
    )  # fmt: skip
    check_request(request)
    from avatar_v.generate.scene import make_candidates, save_picture, side_by_side

    scene = make_candidates(
        request, Weights(args.weights, device=args.device, precision=args.precision)
    )
    save_picture(out, scene.pictures[0])
    save_picture(sheet, side_by_side(scene.pictures))
    likeness = ", ".join(f"{one.likeness:.3f}" for one in scene.candidates)
    print(f"{out}: the best of {len(scene.candidates)} (likeness {likeness}); all: {sheet}")
    return 0


def _checked_places(args: argparse.Namespace, suffix: str, *more: str) -> list[Path]:
    """--out, and the files beside it that have other suffixes. ValueError unless they can be
    written."""
    out = Path(args.out)
    if out.suffix.lower() != suffix:
        raise ValueError(f"--out names a {suffix} file, got {args.out!r}")
    if not out.parent.is_dir():
        raise ValueError(f"{out}: the folder {out.parent} does not exist; create it first")
    places = [out, *(out.with_suffix(other) for other in more)]
    for place in places:
        if place.is_dir():
            raise ValueError(f"{place} is a folder; --out names a file")
        if os.path.lexists(place) and not args.overwrite:
            raise ValueError(f"{place} exists; pass --overwrite to replace it")
    return places
