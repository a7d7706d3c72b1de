"""`avatar-v-eval votes`: export, import and evaluate the votes of a study, and learn from them."""

import argparse
from pathlib import Path


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Register `votes`."""
    parser = subparsers.add_parser(
        "votes",
        help="export, import or evaluate the votes of a study, or make pairs to learn from",
        description="Files of votes are .csv, one vote a row.",
        allow_abbrev=False,
    )
    add = parser.add_argument
    add(
        "action",
        choices=("export", "import", "tables", "pairs"),
        help="tables: write all results; pairs: write shards of judged pairs",
    )
    add("study", metavar="STUDY", type=Path, help="folder with study.yaml, or that file")
    words = ".csv; for tables .md, .html or .tex; none for pairs"
    add("file", metavar="FILE", type=Path, nargs="?", help=words)
    add("--votes", metavar="FILE", type=Path, help="(STUDY/votes.sqlite)")
    pairs = parser.add_argument_group("pairs")
    add = pairs.add_argument
    add("--out", metavar="SHARDS", type=Path, help="folder for the shards")
    add("--validation", type=float, default=0.0, help="share of persons that is held out (0)")
    add("--size", type=int, default=64, help="pixels a side of the pictures (%(default)s)")
    add("--frames", type=int, default=1501, help="at most so many, 4k + 1 (%(default)s)")
    add("--motion", default="auto", help="auto, meter, landmarks, reader, none or a.b:function")
    add("--no-face-crop", action="store_true", help="take the videos' centre square; --motion auto "
        "is the meter then")  # fmt: skip
    add("--seed", type=int, default=0, help="which persons are held out")


def run(args: argparse.Namespace) -> int:
    """Carry out the parsed command."""
    if args.action == "pairs":
        return _pairs(args)
    if args.file is None:
        raise ValueError(f"votes {args.action} STUDY FILE: FILE is missing")
    from avatar_v_eval.human.exchange import read_votes, write_votes
    from avatar_v_eval.human.store import StudyStore
    from avatar_v_eval.human.study import load_study

    study = load_study(args.study)
    store = StudyStore(args.votes or study.root / "votes.sqlite", study.fingerprint)
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


def _pairs(args: argparse.Namespace) -> int:
    if args.out is None or args.file is not None:
        raise ValueError("votes pairs STUDY --out SHARDS: it takes a folder, and no FILE")
    from avatar_v.base.words import counted
    from avatar_v_eval.human.store import StudyStore
    from avatar_v_eval.human.study import load_study
    from avatar_v_eval.human.vote_pairs import VotePairSettings, write_vote_pairs

    settings = VotePairSettings(
        args.size, args.frames, not args.no_face_crop, args.motion, args.validation, args.seed
    )
    study = load_study(args.study)
    path = args.votes or study.root / "votes.sqlite"
    if not path.is_file():
        raise ValueError(f"no votes at {path}: avatar-v-eval rate or votes import makes them")
    store = StudyStore(path, study.fingerprint)
    try:
        votes, raters = store.votes(), store.raters()
    finally:
        store.close()
    answers, failures = write_vote_pairs(study, votes, raters, args.out, settings)
    for reason in dict.fromkeys(failure.reason for failure in failures):
        print(f"left out: {reason}")
    said = ", ".join(f"{answer} {num}" for answer, num in sorted(answers.items()))
    lost = f"; {counted(len(failures), 'vote')} without a pair" if failures else ""
    print(f"{counted(answers.total(), 'pair')} ({said}){lost}: {args.out}")
    return 0
