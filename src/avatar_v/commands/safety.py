"""`avatar-v consent` records that a person agreed, `avatar-v watermark read FILE` says whether a
video or its sound carries a mark and what its manifest says; then exit status 1 is: no mark.
"""

import argparse
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING

from avatar_v.base.words import counted
from avatar_v.safety.consent import SUFFIX, save_consent
from avatar_v.safety.key import KEY, KEY_FILE, own_key

if TYPE_CHECKING:
    from avatar_v.safety.detect import DetectedMark

NO_MARK = 1


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Register `consent`, and `watermark` with its action."""
    _add_consent(subparsers)
    parser = subparsers.add_parser(
        "watermark", help="read the mark that generated videos and speech carry", allow_abbrev=False
    )
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    read = actions.add_parser(
        "read",
        help="the id in a file's frames and sound, and its Content Credentials",
        description="Says which id frames and sound carry (it is in the .json of the video), and "
        f"what the C2PA manifest says. The key is that of {KEY} or {KEY_FILE}, else the public "
        "one. Exit status 1: no watermark found.",
        allow_abbrev=False,
    )
    read.add_argument("file", metavar="FILE", help="a video or a sound")


def run(args: argparse.Namespace) -> int:
    """Carry out the parsed command."""
    return _consent(args) if args.command == "consent" else _watermark(args)


def _add_consent(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = subparsers.add_parser(
        "consent",
        help="a video in which a person agrees in, a record for generate --consent out",
        description="Finds the one person who speaks in a statement of 2 to 30 s and writes who "
        "agreed, to what, until when, and the vector of the face, which is biometric data. The "
        f"record is sealed with the key of {KEY} or {KEY_FILE}, else the public one.",
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("--video", required=True, metavar="FILE", help="the person says that they agree")
    add("--person", required=True, metavar="NAME", help="who that is")
    add("--expires", required=True, metavar="DAY", help="the last day, as 2027-12-31")
    add("--uses", default="", metavar="TEXT", help="what the person agrees to")
    add("--statement", default="", metavar="TEXT", help="the words that the person is to say")
    add("--speech-model", metavar="DIR", help="a speech recogniser: are those words said?")
    add("--drawn", action="store_true", help="a drawn person, framed on the face")
    add("--out", required=True, metavar=f"OUT{SUFFIX}", help="the record")
    add("--overwrite", action="store_true", help="replace OUT")


def _consent(args: argparse.Namespace) -> int:
    out = Path(args.out)
    if not out.name.endswith(SUFFIX):
        raise ValueError(f"--out names a file that ends in {SUFFIX}, got {args.out!r}")
    if not out.parent.is_dir():
        raise ValueError(f"{out}: the folder {out.parent} does not exist; create it first")
    if os.path.lexists(out) and not args.overwrite:
        raise ValueError(f"{out} exists; pass --overwrite to replace it")
    own_key()
    from avatar_v.safety.statement import consent_from_video

    consent = consent_from_video(
        args.video,
        person=args.person,
        expires=args.expires,
        uses=args.uses,
        statement=args.statement,
        speech_model=args.speech_model,
        drawn=args.drawn,
    )
    save_consent(out, consent)
    words = "its words were not checked" if consent.heard is None else "its words are as asked"
    print(f"{out}: {consent.person} agrees until {consent.expires}; {words}")
    return 0


def _watermark(args: argparse.Namespace) -> int:
    key = own_key()
    from avatar_v.media import containers

    os.close(containers.regular_file(args.file))
    from avatar_v.media.reading import iter_audio, iter_video, probe
    from avatar_v.safety.detect import MOST_FALSE, TooFewFramesError, detect
    from avatar_v.safety.sound_detect import detect_sound
    from avatar_v.types import FRAME_RATE_HZ

    info, is_marked = probe(args.file), False
    if info.has_video:
        try:
            found = detect(iter_video(args.file), key)
        except TooFewFramesError as error:
            if not info.has_audio:
                raise
            print(f"{args.file}: {error}")  # a sound with a picture before it is read all the same
        else:
            print(f"{args.file}: {_described(found, counted(found.num_frames, 'frame'))}")
            is_marked = found.is_marked
    if info.has_audio:
        heard = detect_sound(iter_audio(args.file), key)
        if heard is None:
            print(f"{args.file}: too little sound to look for a watermark in it")
        else:
            length = f"{heard.num_frames / FRAME_RATE_HZ:.1f} s of sound"
            print(f"{args.file}: {_described(heard, length)}")
            is_marked = is_marked or heard.is_marked
    print(f"(what has none is said to have one in at most {MOST_FALSE:g} of cases)")
    _print_manifest(args.file)
    return 0 if is_marked else NO_MARK


def _described(found: "DetectedMark", read: str) -> str:
    """What was found in so much that was read."""
    if not found.is_marked:
        return f"no watermark found in {read}"
    if found.id is None:
        return (
            f"a watermark in {read}, but too weak for its id, which is {found.best} with "
            f"confidence {found.confidence:.2f}"
        )
    return f"watermark {found.id}, confidence {found.confidence:.4f}, in {read}"


def _print_manifest(file: str) -> None:
    from avatar_v.safety.provenance import NO_PACKAGE, is_installed, read_manifest

    if not is_installed():
        print(f"Content Credentials not looked for. {NO_PACKAGE}")
        return
    manifest = read_manifest(file)
    if manifest is None:
        print("no Content Credentials in the file")
        return
    state = "not valid: " + "; ".join(manifest.faults) if manifest.faults else "valid"
    print(f"Content Credentials, {state}; made by {manifest.made_by}, signed by {manifest.signer}")
    print(json.dumps(manifest.origin, indent=2))
