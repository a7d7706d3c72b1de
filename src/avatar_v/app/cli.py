"""`avatar-v app`: the page in the browser, on this machine alone unless told otherwise."""

import argparse


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Register `app`."""
    parser = subparsers.add_parser(
        "app",
        help="generate in the browser: upload or record, watch live, download",
        description="Serves a page until Ctrl-C. Everything sent to it and made by it lies in one "
        "temporary folder, which goes when it ends. Needs pip install 'avatar_v[app]'.",
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("--host", default="127.0.0.1", help="address to listen on; no password (%(default)s)")
    add("--port", type=int, default=7860, help="0: any free one (%(default)s)")
    add("--weights", default="small", metavar="NAME|DIR", help="shipped or own (%(default)s)")
    add("--refiner", metavar="NAME|DIR", help="small_refiner or own: pictures twice as large")
    add("--device", default="auto", help="cpu, cuda, … (%(default)s)")
    add("--precision", default="auto", choices=("auto", "fp32", "bf16"), help="(%(default)s)")
    add("--max-upload", type=float, default=200.0, metavar="MIB", help="a file (%(default)s)")
    add("--max-speech", type=float, default=300.0, metavar="S", help="of a video (%(default)s)")
    add("--max-reference", type=float, default=600.0, metavar="S", help="of a clip (%(default)s)")
    add("--keep", type=float, default=60.0, metavar="MIN", help="of files, unused (%(default)s)")


def run(args: argparse.Namespace) -> int:
    """Carry out the parsed command."""
    from avatar_v.app.ask import Limits
    from avatar_v.app.server import serve

    limits = Limits(
        upload_mib=args.max_upload,
        speech_s=args.max_speech,
        reference_s=args.max_reference,
        keep_s=60 * args.keep,
    )
    serve(
        host=args.host,
        port=args.port,
        weights=args.weights,
        refiner=args.refiner,
        device=args.device,
        precision=args.precision,
        limits=limits,
    )
    return 0
