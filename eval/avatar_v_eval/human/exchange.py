"""Votes to and from CSV files, one vote a row, with every field: they read back equal.

Raters stand under their pseudonym, with how far they came, which decides whether they count; tokens
are never written.
"""

import csv
from collections.abc import Sequence
from dataclasses import asdict, fields
from pathlib import Path

from avatar_v.base.outside import read_table
from avatar_v_eval.human.votes import STATES, Rater, State, Vote

COLUMNS = tuple(field.name for field in fields(Vote))
STATE = "rater_state"


def write_votes(votes: Sequence[Vote], path: Path, raters: Sequence[Rater] = ()) -> None:
    """Writes a .csv; ValueError for another name. Who is not among ``raters`` counts as done."""
    _check_name(path)
    states = {rater.name: rater.standing for rater in raters}
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, (*COLUMNS, STATE))
        writer.writeheader()
        for vote in votes:
            writer.writerow(asdict(vote) | {STATE: states.get(vote.rater, "done")})


def read_votes(path: Path) -> list[Vote]:
    """Reads a file of ``write_votes``.

    A vote that is there twice counts once; ValueError for two different answers to one question
    and for what is no vote, with the file and the line.
    """
    _check_name(path)
    if not path.is_file():
        raise ValueError(f"no vote file at {path}")
    found: dict[tuple[str, ...], Vote] = {}
    for number, row in _rows(path):
        try:
            vote = _vote({name: row[name] for name in COLUMNS})
        except (ValueError, TypeError) as error:
            raise ValueError(f"{path}, line {number}: {error}") from error
        before = found.setdefault(vote.key, vote)
        if before.answer != vote.answer:
            raise ValueError(
                f"{path}, line {number}: {vote.rater} answered {vote.question} both "
                f"{before.answer!r} and {vote.answer!r}"
            )
    return list(found.values())


def read_states(path: Path) -> dict[str, State]:
    """How far the raters of a file of `write_votes` came. ValueError as there, and for one in two
    states."""
    found: dict[str, State] = {}
    for number, row in _rows(path):
        state = row[STATE]
        # who is invited has no votes
        if (
            state not in STATES
            or state == "invited"
            or found.setdefault(row["rater"], state) != state
        ):
            raise ValueError(f"{path}, line {number}: {STATE} {state!r} of {row['rater']}")
    return found


def _rows(path: Path) -> list[tuple[int, dict[str, str]]]:
    return read_table(path, (*COLUMNS, STATE))


def _vote(row: dict[str, str]) -> Vote:
    if row["second_on_left"] not in ("True", "False"):
        raise ValueError("second_on_left is True or False")
    known = {"second_on_left": row["second_on_left"] == "True"}
    return Vote(**{**row, **known, "duration_s": float(row["duration_s"])})  # pyright: ignore


def _check_name(path: Path) -> None:
    if path.suffix != ".csv":
        raise ValueError(f"files of votes are .csv, got {path}")
