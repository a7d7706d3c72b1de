"""`avatar-v serve`: videos over HTTP, from a queue that workers share."""

import argparse
import sys
from pathlib import Path

from avatar_v.base import checks
from avatar_v.base.traces import start_traces
from avatar_v.commands.app import add_served, check_served, limits_of
from avatar_v.weights.card import names_of, read_card, weights_folder


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Register `serve`."""
    parser = subparsers.add_parser(
        "serve",
        help="an API over HTTP: a queue of videos, and workers that make them",
        description="Serves until SIGTERM or Ctrl-C; then videos at hand are finished and others "
        "wait for the next start. Copies on several machines share --queue (PostgreSQL) and "
        "--files. With --live it holds conversations. Needs pip install 'avatar_v[app]'.",
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("--files", default="served", metavar="DIR", help="of clients and videos (%(default)s)")
    add("--queue", metavar="FILE|URL", help="postgresql://… or a file (default: DIR/queue.db)")
    add("--workers", type=int, default=1, metavar="N", help="processes here (%(default)s)")
    add("--only", choices=("api", "worker"), help="no workers, or one and no API")
    add("--live", nargs="?", type=int, default=0, metavar="N", help="talks at once "
        "(%(default)s); without N as many as measured; wants --only api")  # fmt: skip
    add("--max-talk", type=float, default=600.0, metavar="S", help="of each (%(default)s)")
    add("--clients", metavar="FILE", help="who may ask, by tokens (.yaml); else this machine alone")
    add("--new-client", metavar="NAME", help="print a new token and its line of --clients; end")
    add_served(parser, port=7861, total_mib=16384.0)
    add("--max-jobs", type=int, default=1000, metavar="N", help="that wait or run (%(default)s)")
    add("--max-wait", type=float, default=3600.0, metavar="S", help="to be expected; what would "
        "wait longer is refused (%(default)s)")  # fmt: skip
    add("--traces", metavar="URL", help="OTLP collector over HTTP, as http://localhost:4318; needs "
        "pip install 'avatar_v[traces]'")  # fmt: skip
    add("--keep", type=float, default=24.0, metavar="H", help="of files and videos (%(default)s)")
    add("--grace", type=float, default=60.0, metavar="S", help="for what is at hand when it ends "
        "(%(default)s)")  # fmt: skip


def run(args: argparse.Namespace) -> int:
    """Carry out the parsed command."""
    from avatar_v.serving.clients import new_client, read_clients

    if args.new_client is not None:
        token, line = new_client(args.new_client)
        print(f"token, shown this once: {token}\nline of --clients: {line}")
        return 0
    _check(args)
    if args.traces is not None:
        start_traces(args.traces, "avatar-v worker" if args.only == "worker" else "avatar-v serve")
    clients = None if args.clients is None else read_clients(args.clients)
    from avatar_v.web.guard import is_loopback

    if clients is None and not is_loopback(args.host):
        raise ValueError(f"--host {args.host} is reached by others: say who may ask by --clients")
    from avatar_v.generate.pipeline import AvatarPipeline
    from avatar_v.generate.weight_sets import WeightSets
    from avatar_v.request.request import Weights
    from avatar_v.serving.admission import Admission
    from avatar_v.serving.job_store import JobStore
    from avatar_v.serving.server import (
        check_packages,
        listening,
        serve_api,
        work_until_stopped,
    )

    check_packages()
    names = names_of([args.weights, *args.more_weights])
    cards = {name: read_card(weights_folder(where)) for name, where in names.items()}
    root = Path(args.files).resolve()
    root.mkdir(mode=0o700, parents=True, exist_ok=True)
    store = JobStore(args.queue or root / "queue.db")

    how = {"device": args.device, "precision": args.precision, "refiner": args.refiner}

    def load() -> WeightSets:
        return WeightSets({name: Weights(where, **how) for name, where in names.items()})

    rules = {
        name: None if getattr(args, name) is None else str(Path(getattr(args, name)).resolve())
        for name in ("consent", "policy")
    }
    if args.only == "worker":
        work_until_stopped(store, root, load, **rules, grace_s=args.grace)
        return 0
    with listening(args.host, args.port) as listener:
        talks = args.live != 0
        pipeline = AvatarPipeline.from_pretrained(args.weights, **how) if talks else None
        print(f"avatar-v serve: http://{args.host}:{listener.getsockname()[1]}", flush=True)
        serve_api(
            listener,
            store,
            root,
            cards,
            clients,
            names=args.name,
            host=args.host,
            limits=limits_of(args, keep_s=3600 * args.keep, talk_s=args.max_talk),
            admission=Admission(most=args.max_jobs, wait_s=args.max_wait),
            workers=[] if args.only == "api" else [_worker(args)] * args.workers,
            grace_s=args.grace,
            pipeline=pipeline,
            most_live=args.live,
            **rules,
        )
    return 0


def _check(args: argparse.Namespace) -> None:
    """ValueError for a value out of its range, and for files that are not what they should be."""
    checks.count("--workers", args.workers)
    checks.count("--max-jobs", args.max_jobs)
    for name in ("max_upload", "max_total", "max_speech", "max_reference", "keep", "max_wait",
                 "max_talk"):  # fmt: skip
        checks.number("--" + name.replace("_", "-"), getattr(args, name), above=0, most=1e9)
    checks.number("--grace", args.grace, least=0, most=86_400)
    if args.live != 0 and args.only != "api":
        raise ValueError("--live needs the device for itself: add --only api, and run workers "
                         "beside it, on other devices")  # fmt: skip
    if args.live is not None:
        checks.count("--live", args.live, least=0)
    check_served(args)


def _worker(args: argparse.Namespace) -> list[str]:
    """The command of a worker of this server."""
    words = [sys.executable, "-m", "avatar_v.cli", "serve", "--only", "worker"]
    for name in ("files", "queue", "weights", "refiner", "device", "precision", "grace", "consent",
                 "policy", "traces"):  # fmt: skip
        value = getattr(args, name)
        words += [] if value is None else [f"--{name}", str(value)]
    for name in args.more_weights:
        words += ["--more-weights", name]
    return words
