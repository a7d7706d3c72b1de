"""`avatar-v-eval rate`: check a study, print one link per rater, serve the rating page."""

import argparse
import socket
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from urllib.parse import urlsplit

from avatar_v.web.guard import LOOPBACK, is_loopback, parse_host

LAST_WORDS_S = 2  # for open connections, when the server ends
VOTES_HELP = "a file, or postgresql://USER@HOST/DATABASE (STUDY/votes.sqlite)"


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Register `rate`."""
    parser = subparsers.add_parser(
        "rate",
        help="serve the rating page of a study",
        description="Serves STUDY to raters until interrupted. Votes go to one SQLite file or to "
        "PostgreSQL at once; start again with the same place and every session goes on.",
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("study", metavar="STUDY", type=Path, help="folder with study.yaml, or that file")
    add("--port", type=int, default=8000, help="0 takes a free one (%(default)s)")
    add("--host", default="127.0.0.1", help="address to listen on; %(default)s: this machine alone")
    add(
        "--public",
        metavar="URL",
        help="what raters open, such as https://study.example: needed behind a proxy, and where "
        "--host is every address of this machine",
    )
    add("--votes", metavar="PLACE", help=VOTES_HELP)
    add("--raters", type=int, help="links in all (as many as the study needs)")
    add("--reviewers", type=int, default=0, help="links of reviewers, who audit answers (0)")
    add("--check", action="store_true", help="check the study and all its videos, serve nothing")


def run(args: argparse.Namespace) -> int:
    """Carry out the parsed command."""
    from avatar_v_eval.human.assign import num_raters_needed
    from avatar_v_eval.human.blind import blinded_copies
    from avatar_v_eval.human.items import all_items
    from avatar_v_eval.human.store import store_of
    from avatar_v_eval.human.study_file import load_study

    study = load_study(args.study)
    needed = num_raters_needed(study)
    items = all_items(study)
    print(f"{study.name}: {len(items)} items, {needed} raters needed")
    files = [file for item in items.values() for file in item.files]
    copies = blinded_copies(files, study.root / ".blinded")
    if args.check:
        print(f"{len(copies)} videos can be shown")
        return 0
    try:
        import uvicorn

        from avatar_v.web.connections import server_config
        from avatar_v_eval.human.server import create_app
    except ImportError as error:
        raise ValueError(f"the rating page needs pip install 'avatar_v[eval]': {error}") from error
    hosts, origins = reached_by(args.host, args.public)
    with (
        _listening(args.host, args.port) as listener,
        closing(store_of(study, args.votes)) as store,
    ):
        store.fill_raters(args.raters or needed)
        store.fill_raters(args.reviewers, tier=2)
        base = origins[0] if origins else f"http://{_shown(args.host)}:{listener.getsockname()[1]}"
        for rater in store.raters():
            progress = f"{rater.state}, {rater.num_answered} of {rater.num_assigned}"
            print(f"{rater.name}  {base}/r/{rater.token}  {progress}")
        print(f"votes go to {store.place}; Ctrl-C stops, the same command goes on", flush=True)
        app = create_app(study, store, copies, hosts=hosts, origins=origins)
        uvicorn.Server(server_config(app, last_words_s=LAST_WORDS_S)).run(sockets=[listener])
    return 0


def reached_by(host: str, public: str | None) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The names of the server in a Host header, and the origin that a proxy gives it.

    ValueError for a ``public`` that is no web address, and for every address of the machine
    without one: nobody knows then by which name raters come.
    """
    if public is None:
        if host in ("", "0.0.0.0", "::"):
            raise ValueError(
                f"--host {host} is every address of this machine; --public http://NAME:PORT says "
                "which one raters open"
            )
        return (*(LOOPBACK if is_loopback(host) else ()), host), ()
    parts = urlsplit(public)
    name = parse_host(parts.netloc)
    if parts.scheme not in ("http", "https") or not name or parts.path.strip("/") or parts.query:
        raise ValueError(f"--public is like https://study.example, without a path; got {public!r}")
    return (*LOOPBACK, host, name), (f"{parts.scheme}://{parts.netloc}",)


@contextmanager
def _listening(host: str, port: int) -> Iterator[socket.socket]:
    """A listening socket, before anything is written or printed; OSError for a taken port."""
    if not 0 <= port < 65536:
        raise ValueError(f"--port is from 0 to 65535, got {port}")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listener = socket.create_server((host, port), family=family)
    except OSError as error:
        raise OSError(f"cannot listen on {host}:{port} ({error.strerror or error})") from error
    with listener:
        yield listener


def _shown(host: str) -> str:
    return f"[{host}]" if ":" in host else host
