"""`avatar-v-eval rate`: check a study, print one link per rater, serve the rating page."""

import argparse
from pathlib import Path


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Register `rate`."""
    parser = subparsers.add_parser(
        "rate",
        help="serve the rating page of a study",
        description="Serves STUDY to raters until interrupted. Votes go to one SQLite file at "
        "once; start again with the same file and every session goes on.",
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("study", metavar="STUDY", type=Path, help="folder with study.yaml, or that file")
    add("--port", type=int, default=8000, help="(%(default)s)")
    add("--host", default="127.0.0.1", help="this machine alone, if not given")
    add("--votes", metavar="FILE", type=Path, help="(STUDY/votes.sqlite)")
    add("--raters", type=int, help="links in all (as many as the study needs)")
    add("--check", action="store_true", help="check the study and all its videos, serve nothing")


def run(args: argparse.Namespace) -> int:
    """Carry out the parsed command."""
    from avatar_v_eval.human.assign import num_raters_needed
    from avatar_v_eval.human.blind import blinded_copies
    from avatar_v_eval.human.items import all_items
    from avatar_v_eval.human.store import Store
    from avatar_v_eval.human.study import load_study

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

        from avatar_v_eval.human.server import create_app
    except ImportError as error:
        raise ValueError(f"the rating page needs pip install 'avatar_v[eval]': {error}") from error
    store = Store(args.votes or study.root / "votes.sqlite", study.fingerprint)
    store.add_raters(max(0, (args.raters or needed) - len(store.raters())))
    for rater in store.raters():
        progress = f"{rater.state}, {rater.num_answered} of {rater.num_assigned}"
        print(f"{rater.name}  http://{args.host}:{args.port}/r/{rater.token}  {progress}")
    print(f"votes go to {store.path}; Ctrl-C stops, the same command goes on", flush=True)
    app = create_app(study, store, copies)
    # The access log would hold the tokens.
    uvicorn.run(app, host=args.host, port=args.port, access_log=False, log_level="warning")
    store.close()
    return 0
