"""`avatar-v app`: the page in the browser, on this machine alone unless told otherwise."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from avatar_v.engines.voices import DRAWN
from avatar_v.safety.consent import read_consents
from avatar_v.safety.policy import read_policy
from avatar_v.weights.card import DEFAULT_WEIGHTS, names_of, read_card, weights_folder

if TYPE_CHECKING:
    from avatar_v.serving.limits import Limits


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Register `app`."""
    parser = subparsers.add_parser(
        "app",
        help="generate in the browser: upload or record, watch live, download",
        description="Serves a page until Ctrl-C. Everything sent to it and made by it lies in one "
        "private temporary folder, which goes when it ends; where it is killed, the next start "
        "removes it. There is no password. Needs pip install 'avatar_v[app]'.",
        allow_abbrev=False,
    )
    add = parser.add_argument
    add_served(parser, port=7860, total_mib=4096.0)
    add("--voice", default=DRAWN, metavar="NAME|FILE|DIR", help="of typed texts (%(default)s)")
    add("--live", type=int, metavar="N", help="conversations at once (default: as measured)")
    add("--max-talk", type=float, default=600.0, metavar="S", help="of each (%(default)s)")
    add("--drain", type=float, default=30.0, metavar="S", help="for them, on SIGTERM (%(default)s)")
    add("--files", metavar="DIR", help="of an avatar-v serve, whose workers make the videos, under "
        "its rules; give its --weights (default: made here)")  # fmt: skip
    add("--queue", metavar="FILE|URL", help="of that server (default: DIR/queue.db)")
    add("--keep", type=float, default=60.0, metavar="MIN", help="of files, unused (%(default)s)")


def add_served(parser: argparse.ArgumentParser, *, port: int, total_mib: float) -> None:
    """The options of whatever serves videos: `app`, and serve.py's."""
    add = parser.add_argument
    add("--host", default="127.0.0.1", help="address to listen on (%(default)s)")
    add("--port", type=int, default=port, help="0: any free one (%(default)s)")
    add("--name", action="append", default=[], help="another name it is reached by; repeatable")
    add("--weights", default=DEFAULT_WEIGHTS, metavar="NAME|DIR", help="(%(default)s)")
    add("--more-weights", action="append", default=[], metavar="NAME|[NAME=]DIR", help="another "
        "set, to choose among; what sets share is kept once; repeatable")  # fmt: skip
    add("--refiner", metavar="NAME|DIR", help="small_refiner or own: larger pictures")
    add("--device", default="auto", help="cpu, cuda, … (%(default)s)")
    add("--precision", default="auto", choices=("auto", "fp32", "bf16"), help="(%(default)s)")
    add("--max-upload", type=float, default=200.0, metavar="MIB", help="a file (%(default)s)")
    add("--max-total", type=float, default=total_mib, metavar="MIB", help="all (%(default)s)")
    add("--max-speech", type=float, default=300.0, metavar="S", help="of a video (%(default)s)")
    add("--max-reference", type=float, default=600.0, metavar="S", help="of a clip (%(default)s)")
    add("--consent", metavar="DIR", help="refuse people other than those of its *.consent.json")
    add("--policy", metavar="FILE", help="refuse words and pictures that this .yaml names")


def check_served(args: argparse.Namespace) -> None:
    """ValueError for weights, records of consent and rules that are not what they should be."""
    for name in (*names_of([args.weights, *args.more_weights]).values(), args.refiner):
        if name is not None:
            read_card(weights_folder(name))
    if args.consent is not None:
        read_consents([args.consent])
    if args.policy is not None:
        read_policy(args.policy)


def limits_of(args: argparse.Namespace, *, keep_s: float, talk_s: float = 600.0) -> "Limits":
    """The limits that `add_served` asks for."""
    from avatar_v.serving.limits import Limits

    return Limits(
        upload_mib=args.max_upload,
        total_mib=args.max_total,
        speech_s=args.max_speech,
        reference_s=args.max_reference,
        keep_s=keep_s,
        talk_s=talk_s,
    )


def run(args: argparse.Namespace) -> int:
    """Carry out the parsed command."""
    check_served(args)
    if args.files is not None and not Path(args.files).is_dir():
        raise ValueError(f"--files {args.files} is no folder: start `avatar-v serve` first")
    if args.queue is not None and args.files is None:
        raise ValueError("--queue wants --files, the folder of the server that has this queue")
    from avatar_v.engines.checks import check_voice

    check_voice(args.voice)
    from avatar_v.app.server import serve

    serve(
        host=args.host,
        port=args.port,
        names=args.name,
        weights=names_of([args.weights, *args.more_weights]),
        refiner=args.refiner,
        device=args.device,
        precision=args.precision,
        limits=limits_of(args, keep_s=60 * args.keep, talk_s=args.max_talk),
        consent=args.consent,
        policy=args.policy,
        voice=args.voice,
        live=args.live,
        drain_s=args.drain,
        files=args.files,
        queue=args.queue,
    )
    return 0
