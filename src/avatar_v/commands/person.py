"""`avatar-v person`: a person's clips in, a file out that `generate --reference` takes for them."""

import argparse
import json

from avatar_v.base.options import add_help_all, add_options, parsed
from avatar_v.base.words import counted, notice
from avatar_v.commands.engines import checked_places
from avatar_v.request.request import (
    LIVE,
    PERSON_FILE,
    PersonOptions,
    Request,
    SamplingOptions,
    Weights,
    is_person_file,
)

READ = ("reference", "also", "image", "reference_s", "face_crop", "motion", "consent")
"""Fields of `PersonOptions` that say how a person is read."""
SIZE, NETWORKS = ("size",), ("name", "refiner", "lora", "device")


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Register `person`."""
    parser = subparsers.add_parser(
        "person",
        help="clips of a person in, a file out that stands for them",
        description=f"Writes OUT{PERSON_FILE}: the clips as the weights read them, for `avatar-v "
        "generate --reference`, which then reads no video. It is for these weights alone, and "
        "holds vectors of the face, which are biometric data.",
        allow_abbrev=False,
    )
    left_out = {
        **add_options(parser, PersonOptions, "person", only=READ),
        **add_options(parser, SamplingOptions, "video", only=SIZE),
        **add_options(parser, Weights, "weights", only=NETWORKS),
    }
    parser.add_argument("--out", required=True, metavar=f"OUT{PERSON_FILE}", help="the file")
    parser.add_argument("--overwrite", action="store_true", help="replace OUT")
    add_help_all(parser, left_out)


def run(args: argparse.Namespace) -> int:
    """Carry out the parsed command."""
    (out,) = checked_places(args, PERSON_FILE)
    request = Request(
        parsed(args, PersonOptions, only=READ, audio=LIVE),
        parsed(args, SamplingOptions, only=SIZE),
    )
    if is_person_file(request.person.reference):
        raise ValueError(f"--reference {request.person.reference} is a person file already")
    from avatar_v.request.checks import check_request

    check_request(request)
    from avatar_v.generate.person_files import make_person
    from avatar_v.inputs.person_file import save_person

    person, notes = make_person(request, parsed(args, Weights, only=NETWORKS))
    save_person(out, person)
    for note in notes:
        notice(f"warning: {note}")
    of = {name: counted(r.latents.shape[1], "latent") for name, r in person.references.items()}
    print(f"{out}: {json.dumps(of)}, {out.stat().st_size:,} bytes, for {person.about.weights}")
    return 0
