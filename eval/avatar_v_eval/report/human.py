"""Tables 2 to 4 from wherever votes lie: a study, a file of votes, or published counts."""

import hashlib
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from avatar_v_eval.files import file_hash
from avatar_v_eval.human.counts import (
    judgments_as_votes,
    pairs_as_votes,
    read_means,
    scores_as_votes,
)
from avatar_v_eval.human.exchange import read_votes
from avatar_v_eval.human.questions import SIX_DIMENSIONS, Dimension
from avatar_v_eval.human.report_tables import mos_table, objective_table, turing_table, win_table
from avatar_v_eval.human.store import STORE_FILE, store_of
from avatar_v_eval.human.study_file import load_study
from avatar_v_eval.human.summary import agreement_table, preference_table, result_tables, summary
from avatar_v_eval.human.votes import Vote
from avatar_v_eval.table_view import Table


@dataclass(frozen=True)
class Human:
    """Tables of one source, and in words what it was."""

    tables: tuple[Table, ...]
    source: str
    name: str
    hash: str  # of the study, or of the files


def read_human(path: Path) -> Human:
    """STUDY (a folder with study.yaml and votes.sqlite), votes in .csv, or a folder of
    counts as ``eval/benchmarks/avatar_v_report``. ValueError for anything else, and for no votes.
    """
    if path.suffix == ".csv":
        return _of_file(path)
    if path.is_dir() and not (path / "study.yaml").is_file():
        return _of_counts(path)
    return _of_study(path)


def _of_study(path: Path) -> Human:
    study = load_study(path)
    file = study.root / STORE_FILE
    if not file.is_file():
        raise ValueError(f"{study.root} has no {STORE_FILE}: nobody has voted yet")
    with closing(store_of(study, file)) as store:
        tables = summary(study, store.votes(), store.raters())
    return Human(tuple(tables), "study", study.name, study.fingerprint)


def _of_file(path: Path) -> Human:
    """Raters are not known here, so nobody is left out."""
    votes = [vote for vote in read_votes(path) if vote.role == "study"]
    if not votes:
        raise ValueError(f"{path} holds no votes of a study")
    tables = []
    for condition in ("", *dict.fromkeys(vote.condition for vote in votes if vote.condition)):
        some = [vote for vote in votes if condition in ("", vote.condition)]
        tables += result_tables(some, _dimensions(votes), condition=condition)
    if any(vote.kind == "pair" for vote in votes):
        tables.append(preference_table(votes))
    people = {vote.rater for vote in votes}
    tables.append(agreement_table(votes, f"{len(votes)} votes of {len(people)} raters."))
    source = "file of votes, nobody left out"
    return Human(tuple(tables), source, path.name, file_hash(path)[:16])


def _of_counts(folder: Path) -> Human:
    """A published study. Its scores' spread is not known, so they have no intervals."""

    def objective(file: Path) -> Table:
        means, num_cases = read_means(file)
        return objective_table(means, num_cases=num_cases)

    readers: dict[str, Callable[[Path], Table]] = {
        "table1_means.csv": objective,
        "table2_scores.csv": lambda file: mos_table(scores_as_votes(file)),
        "table3_pairs.csv": lambda file: win_table(pairs_as_votes(file), intervals=True),
        "table4_judgments.csv": lambda file: turing_table(judgments_as_votes(file), intervals=True),
    }
    found = {name: folder / name for name in readers if (folder / name).is_file()}
    if not found:
        raise ValueError(
            f"{folder} is no source of votes: expected study.yaml, or counts in "
            f"{', '.join(readers)}"
        )
    tables = tuple(readers[name](file) for name, file in found.items())
    hashes = " ".join(map(file_hash, found.values()))
    mark = hashlib.sha256(hashes.encode()).hexdigest()[:16]
    return Human(tables, "published counts", folder.resolve().name, mark)


def _dimensions(votes: list[Vote]) -> tuple[Dimension, ...]:
    """Those of the report in its order, then others in the order of votes."""
    known = {dimension.key: dimension for dimension in SIX_DIMENSIONS}
    asked = dict.fromkeys(vote.dimension for vote in votes if vote.kind == "mos")
    others = [Dimension(key, key, "") for key in asked if key not in known]
    return (*(dimension for key, dimension in known.items() if key in asked), *others)
