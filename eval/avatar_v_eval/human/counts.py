"""The report's human evaluation as counts, and counts as votes.

``eval/benchmarks/avatar_v_report`` holds small CSV files from which tables 1 to 4 follow to the
printed digit; its README says which counts the report fixes and which are only one possibility.
Counts become ordinary votes, so that the tables pass through the code that real votes take.
"""

from pathlib import Path

from avatar_v.base.outside import read_table
from avatar_v_eval.human.votes import Kind, Vote


def scores_as_votes(path: Path | str) -> list[Vote]:
    """Rows (system, dimension, score, count), count times each, two raters a case."""
    votes = []
    num: dict[tuple[str, str], int] = {}
    for row in _rows(path, ("system", "dimension", "score", "count")):
        key = (row["system"], row["dimension"])
        for _ in range(int(row["count"])):
            i = num[key] = num.get(key, -1) + 1
            names = {"first": row["system"], "dimension": row["dimension"]}
            votes.append(_vote("mos", i // 2, i % 2, row["score"], **names))
    return votes


def pairs_as_votes(path: Path | str) -> list[Vote]:
    """Rows (first, second, votes_first, votes_second, votes_tie, cases): a pattern, how often."""
    columns = ("first", "second", "votes_first", "votes_second", "votes_tie", "cases")
    votes = []
    num: dict[tuple[str, str], int] = {}
    for row in _rows(path, columns):
        key = (row["first"], row["second"])
        answers = [a for a in ("first", "second", "tie") for _ in range(int(row[f"votes_{a}"]))]
        for _ in range(int(row["cases"])):
            case = num[key] = num.get(key, -1) + 1
            for rater, answer in enumerate(answers):
                votes.append(_vote("pair", case, rater, answer, first=key[0], second=key[1]))
    return votes


def judgments_as_votes(path: Path | str) -> list[Vote]:
    """Rows (system, fooled, right, cases): raters fooled and not, and in how many cases so."""
    votes, case = [], 0
    for row in _rows(path, ("system", "fooled", "right", "cases")):
        answers = ["first"] * int(row["fooled"]) + ["second"] * int(row["right"])
        for _ in range(int(row["cases"])):
            for rater, answer in enumerate(answers):
                names = {"first": row["system"], "second": "real"}
                votes.append(_vote("turing", case, rater, answer, **names))
            case += 1
    return votes


def read_means(path: Path | str) -> tuple[dict[str, tuple[float, ...]], int]:
    """(system → sync_c, sync_d, face_sim, q_align; number of cases) of table 1."""
    metrics = ("sync_c", "sync_d", "face_sim", "q_align")
    rows = _rows(path, ("system", *metrics, "cases"))
    nums = {int(row["cases"]) for row in rows}
    if len(nums) != 1:
        raise ValueError(f"{path}: means are compared on the same cases, got {sorted(nums)}")
    return {row["system"]: tuple(float(row[m]) for m in metrics) for row in rows}, nums.pop()


def _rows(path: Path | str, columns: tuple[str, ...]) -> list[dict[str, str]]:
    return [row for _, row in read_table(path, columns)]


def _vote(
    kind: Kind,
    case: int,
    rater: int,
    answer: str,
    *,
    first: str,
    second: str = "",
    dimension: str = "",
) -> Vote:
    return Vote(
        rater=f"rater{rater + 1}",
        role="study",
        kind=kind,
        case=f"case{case + 1:02d}",
        condition="",
        first=first,
        second=second,
        dimension=dimension,
        answer=answer,
    )
