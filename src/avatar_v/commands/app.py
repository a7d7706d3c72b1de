"""`avatar-v app`: the page in the browser, on this machine alone unless told otherwise."""

import argparse

from avatar_v.engines.voices import DRAWN, drawn_number, is_drawn
from avatar_v.safety.consent import read_consents
from avatar_v.safety.policy import read_policy
from avatar_v.weights.card import DEFAULT_WEIGHTS, read_card, weights_folder


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Register `app`."""
    parser = subparsers.add_parser(
        "app",
        help="generate in the browser: upload or record, watch live, download",
        description="Serves a page until Ctrl-C. Everything sent to it and made by it lies in one "
        "private temporary folder, which goes when it ends; where it is killed, the next start "
        "removes it. Needs pip install 'avatar_v[app]'.",
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("--host", default="127.0.0.1", help="address to listen on; no password (%(default)s)")
    add("--port", type=int, default=7860, help="0: any free one (%(default)s)")
    add("--name", action="append", default=[], help="another name it is reached by; repeatable")
    add(
        "--weights",
        default=DEFAULT_WEIGHTS,
        metavar="NAME|DIR",
        help="shipped or own (%(default)s)",
    )
    add("--refiner", metavar="NAME|DIR", help="small_refiner or own: pictures twice as large")
    add("--device", default="auto", help="cpu, cuda, … (%(default)s)")
    add("--precision", default="auto", choices=("auto", "fp32", "bf16"), help="(%(default)s)")
    add("--max-upload", type=float, default=200.0, metavar="MIB", help="a file (%(default)s)")
    add("--max-total", type=float, default=4096.0, metavar="MIB", help="all files (%(default)s)")
    add("--max-speech", type=float, default=300.0, metavar="S", help="of a video (%(default)s)")
    add("--max-reference", type=float, default=600.0, metavar="S", help="of a clip (%(default)s)")
    add("--consent", metavar="DIR", help="refuse people other than those of its *.consent.json")
    add("--policy", metavar="FILE", help="refuse words and pictures that this .yaml names")
    add("--voice", default=DRAWN, metavar="NAME|DIR", help="of typed texts (%(default)s)")
    add("--keep", type=float, default=60.0, metavar="MIN", help="of files, unused (%(default)s)")


def run(args: argparse.Namespace) -> int:
    """Carry out the parsed command."""
    for name in (args.weights, args.refiner):
        if name is not None:
            read_card(weights_folder(name))
    if args.consent is not None:
        read_consents([args.consent])
    if args.policy is not None:
        read_policy(args.policy)
    if is_drawn(args.voice):
        drawn_number(args.voice)
    else:
        from avatar_v.engines.checks import check_folder

        check_folder(args.voice)
    from avatar_v.app.form import Limits
    from avatar_v.app.server import serve

    limits = Limits(
        upload_mib=args.max_upload,
        total_mib=args.max_total,
        speech_s=args.max_speech,
        reference_s=args.max_reference,
        keep_s=60 * args.keep,
    )
    serve(
        host=args.host,
        port=args.port,
        names=args.name,
        weights=args.weights,
        refiner=args.refiner,
        device=args.device,
        precision=args.precision,
        limits=limits,
        consent=args.consent,
        policy=args.policy,
        voice=args.voice,
    )
    return 0
