"""`avatar-v watermark read FILE`: whether a video carries a mark, and what its manifest says.

The exit status is 0 where there is a mark, 1 where none is found.
"""

import argparse
import json
import os

from avatar_v.safety.key import KEY, KEY_FILE, own_key
from avatar_v.words import counted

NO_MARK = 1


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Register `watermark` and its action."""
    parser = subparsers.add_parser(
        "watermark", help="read the mark that generated videos carry", allow_abbrev=False
    )
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    read = actions.add_parser(
        "read",
        help="the id in a video's frames, and its Content Credentials",
        description="Says which id the frames carry (it is in the .json of the video), and what "
        f"the C2PA manifest says. The key is that of {KEY} or {KEY_FILE}, else the public one. "
        "Exit status 1: no watermark found.",
        allow_abbrev=False,
    )
    read.add_argument("file", metavar="FILE", help="a video")


def run(args: argparse.Namespace) -> int:
    """Carry out the parsed command."""
    key = own_key()
    from avatar_v.media import containers

    os.close(containers.regular_file(args.file))
    from avatar_v.media.reading import iter_video
    from avatar_v.safety.detect import MOST_FALSE, detect

    found = detect(iter_video(args.file), key)
    frames = counted(found.num_frames, "frame")
    if found.id is None:
        print(f"{args.file}: no watermark found in {frames}")
    else:
        print(f"{args.file}: watermark {found.id}, confidence {found.confidence:.4f}, in {frames}")
    print(f"(a video without one is said to have one in at most {MOST_FALSE:g} of cases)")
    _print_manifest(args.file)
    return NO_MARK if found.id is None else 0


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
