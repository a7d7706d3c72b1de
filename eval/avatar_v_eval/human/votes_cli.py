"""`avatar-v-eval votes`: the votes of a study in and out, its tables, labels, and what learns."""

import argparse
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from avatar_v_eval.human.cli import VOTES_HELP

if TYPE_CHECKING:
    from avatar_v_eval.human.store import StudyStore
    from avatar_v_eval.human.study import Study
    from avatar_v_eval.human.votes import State


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Register `votes`."""
    parser = subparsers.add_parser(
        "votes",
        help="export, import or evaluate the votes of a study, or make labels to learn from",
        description="Files of votes are .csv, one vote a row.",
        allow_abbrev=False,
    )
    add = parser.add_argument
    add(
        "action",
        choices=(*_ACTIONS, "import", "pairs"),
        help="tables: write all results; people: agreement with reviewers, leaderboard and pay; "
        "labels: a row for each question with its label; drop: ranges that training leaves out, "
        "for avatar-v-data select --drop; pairs: write shards of judged pairs",
    )
    add("study", metavar="STUDY", type=Path, help="folder with study.yaml, or that file")
    words = ".csv; for tables .md, .html or .tex; for people these or .csv; none for pairs"
    add("file", metavar="FILE", type=Path, nargs="?", help=words)
    add("--votes", metavar="PLACE", help=VOTES_HELP)
    add("--prefix", default="", metavar="WORDS", help="of import: put before the raters' names, "
        "since r001 of another place is another person")  # fmt: skip
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
    from avatar_v_eval.human.store import store_of
    from avatar_v_eval.human.study_file import load_study

    study = load_study(args.study)
    with closing(store_of(study, args.votes)) as store:
        if args.action == "import":
            print(_import(study, store, args.file, args.prefix))
        else:
            print(_ACTIONS[args.action](study, store, args.file))
    return 0


def _export(study: "Study", store: "StudyStore", file: Path) -> str:
    from avatar_v_eval.human.exchange import write_votes

    votes = store.votes()
    write_votes(votes, file, store.raters())
    return f"{len(votes)} votes of {len({v.rater for v in votes})} raters: {file}"


def _import(study: "Study", store: "StudyStore", file: Path, prefix: str) -> str:
    from avatar_v_eval.human.exchange import read_states, read_votes
    from avatar_v_eval.human.items import check_votes

    votes = [replace(vote, rater=f"{prefix}{vote.rater}") for vote in read_votes(file)]
    check_votes(study, votes)
    states: dict[str, State] = {
        f"{prefix}{name}": state for name, state in read_states(file).items()
    }
    return f"{store.add_votes(votes, states)} of {len(votes)} votes were new"


def _tables(study: "Study", store: "StudyStore", file: Path) -> str:
    from avatar_v_eval.human.summary import summary
    from avatar_v_eval.table_view import render

    text = render(summary(study, store.votes(), store.raters()), file.suffix)
    file.write_text(text, encoding="utf-8")
    return f"tables: {file}"


def _people(study: "Study", store: "StudyStore", file: Path) -> str:
    from avatar_v_eval.human.quality import audit_table, leaderboard
    from avatar_v_eval.table_view import as_csv, render

    votes, raters = store.votes(), store.raters()
    board = leaderboard(study, votes, raters)
    is_csv = file.suffix == ".csv"
    text = as_csv(board) if is_csv else render([audit_table(votes), board], file.suffix)
    file.write_text(text, encoding="utf-8")
    return f"{len(board.rows)} raters: {file}"


def _labels(study: "Study", store: "StudyStore", file: Path) -> str:
    from avatar_v_eval.human.labels import study_labels, write_labels

    found = study_labels(study, store.votes(), store.raters())
    write_labels(found, file)
    return f"{len(found)} labels, {sum(x.num_audits > 0 for x in found)} by reviewers: {file}"


def _drop(study: "Study", store: "StudyStore", file: Path) -> str:
    from avatar_v_eval.human.labels import faulty_ranges, study_labels, write_drops

    found = faulty_ranges(study_labels(study, store.votes(), store.raters()))
    write_drops(found, file)
    return f"{len(found)} ranges of {len({row[0] for row in found})} files: {file}"


_ACTIONS: dict[str, Callable[["Study", "StudyStore", Path], str]] = {
    "export": _export,
    "tables": _tables,
    "people": _people,
    "labels": _labels,
    "drop": _drop,
}


def _pairs(args: argparse.Namespace) -> int:
    if args.out is None or args.file is not None:
        raise ValueError("votes pairs STUDY --out SHARDS: it takes a folder, and no FILE")
    from avatar_v.base.words import counted
    from avatar_v_eval.human.store import STORE_FILE, store_of
    from avatar_v_eval.human.study_file import load_study
    from avatar_v_eval.human.vote_pairs import VotePairSettings, write_vote_pairs

    settings = VotePairSettings(
        args.size, args.frames, not args.no_face_crop, args.motion, args.validation, args.seed
    )
    study = load_study(args.study)
    place = str(args.votes or study.root / STORE_FILE)
    if "://" not in place and not Path(place).is_file():
        raise ValueError(f"no votes at {place}: avatar-v-eval rate or votes import makes them")
    with closing(store_of(study, place)) as store:
        votes, raters = store.votes(), store.raters()
    answers, failures = write_vote_pairs(study, votes, raters, args.out, settings)
    for reason in dict.fromkeys(failure.reason for failure in failures):
        print(f"left out: {reason}")
    said = ", ".join(f"{answer} {num}" for answer, num in sorted(answers.items()))
    lost = f"; {counted(len(failures), 'vote')} without a pair" if failures else ""
    print(f"{counted(answers.total(), 'pair')} ({said}){lost}: {args.out}")
    return 0
