"""`avatar-v-eval votes`: export, import and evaluate the votes of a study."""

import argparse
from pathlib import Path


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Register `votes`."""
    parser = subparsers.add_parser(
        "votes",
        help="export, import or evaluate the votes of a study",
        description="Files that end in .csv hold one vote a row, in .json Label Studio's tasks.",
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("action", choices=("export", "import", "tables"), help="tables: write all results")
    add("study", metavar="STUDY", type=Path, help="folder with study.yaml, or that file")
    add("file", metavar="FILE", type=Path, help=".csv or .json; for tables .md, .html or .tex")
    add("--votes", metavar="FILE", type=Path, help="(STUDY/votes.sqlite)")


def run(args: argparse.Namespace) -> int:
    """Carry out the parsed command."""
    from avatar_v_eval.human.exchange import read_votes, write_votes
    from avatar_v_eval.human.store import Store
    from avatar_v_eval.human.study import load_study

    study = load_study(args.study)
    store = Store(args.votes or study.root / "votes.sqlite", study.fingerprint)
    try:
        match args.action:
            case "export":
                votes = store.votes()
                write_votes(votes, args.file)
                print(f"{len(votes)} votes of {len({v.rater for v in votes})} raters: {args.file}")
            case "import":
                votes = read_votes(args.file)
                print(f"{store.add_votes(votes)} of {len(votes)} votes were new")
            case "tables":
                from avatar_v_eval.human.summary import summary
                from avatar_v_eval.table_view import render

                text = render(summary(study, store.votes(), store.raters()), args.file.suffix)
                args.file.write_text(text, encoding="utf-8")
                print(f"tables: {args.file}")
    finally:
        store.close()
    return 0
