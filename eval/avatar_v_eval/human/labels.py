"""What a study says of its clips: one label a question, of reviewers where they decided, else of
all raters who count.

Labels are a table to train critics on, ranges to leave out of training data, and (`vote_pairs`)
pairs. A clip is told by its file, relative to the study's folder.
"""

import csv
import os
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from avatar_v_eval.human.exclude import counted, exclusions
from avatar_v_eval.human.ranges import majority as majority_of_ranges
from avatar_v_eval.human.ranges import read_ranges
from avatar_v_eval.human.study import Study
from avatar_v_eval.human.votes import SCALES, Rater, Vote


@dataclass(frozen=True)
class Label:
    """Of one question. ``label`` is "" where raters have no majority; of scores it is their mean.
    ``agreeing``: the share of votes that agree with it."""

    file: str
    second_file: str  # of a pair
    kind: str
    case: str
    first: str
    second: str
    dimension: str
    label: str
    num_votes: int
    num_audits: int  # reviewers who decided
    agreeing: float | None


def study_labels(study: Study, votes: Sequence[Vote], raters: Sequence[Rater]) -> list[Label]:
    """In the order of the questions' names. Raters who are left out have no say."""
    asked: dict[tuple[str, ...], list[Vote]] = defaultdict(list)
    decided = {vote.asked: vote for vote in votes if vote.role == "label"}
    for vote in counted(votes, exclusions(raters, votes, study.rules)):
        asked[vote.asked].append(vote)
    return [_label(study, asked[key], decided.get(key)) for key in sorted({*asked, *decided})]


def with_decisions(votes: Iterable[Vote], chosen: Iterable[Vote]) -> list[Vote]:
    """``chosen``, where the votes on a question that reviewers decided give way to their label."""
    decided = {vote.asked: vote for vote in votes if vote.role == "label"}
    kept = [vote for vote in chosen if vote.asked not in decided]
    return kept + [replace(vote, role="study") for vote in decided.values()]


def write_labels(labels: Sequence[Label], path: Path) -> None:
    """A .csv, one row a question."""
    names = [field.name for field in fields(Label)]
    _write(path, names, [[getattr(label, name) for name in names] for label in labels])


def faulty_ranges(labels: Iterable[Label]) -> list[tuple[str, float, float, str]]:
    """(file, start, stop, fault) of every marked range. The file is relative to its system's
    folder, as footage is to the folder that was curated: ValueError for ranges of two systems,
    whose files have the same names."""
    marked = [label for label in labels if label.kind == "ranges"]
    if len(names := sorted({label.first for label in marked})) > 1:
        raise ValueError(f"ranges are of several systems, {', '.join(names)}: footage is one")
    return [
        (f"{label.case}.mp4", found.start, found.stop, found.fault)
        for label in marked
        for found in read_ranges(label.label)
    ]


def write_drops(ranges: Sequence[tuple[str, float, float, str]], path: Path) -> None:
    """A .csv for ``avatar-v-data select --drop``, times in seconds."""
    _write(path, ("file", "start_s", "stop_s", "fault"), ranges)


def _label(study: Study, votes: Sequence[Vote], decided: Vote | None) -> Label:
    vote = decided or votes[0]
    label = decided.answer if decided else _said(votes)
    files = [os.path.relpath(study.video(s, vote.case), study.root) for s in _systems(vote)]
    agreeing = None
    if votes and label:
        whole = label if vote.kind not in SCALES else str(round(float(label)))
        agreeing = sum(v.agrees(whole) for v in votes) / len(votes)
    return Label(
        files[0], files[1] if len(files) == 2 else "", vote.kind, vote.case, vote.first,
        vote.second, vote.dimension, label, len(votes), int(decided is not None), agreeing,
    )  # fmt: skip


def _systems(vote: Vote) -> list[str]:
    return [vote.first, vote.second] if vote.second else [vote.first]


def _said(votes: Sequence[Vote]) -> str:
    """What most of the raters said."""
    answers = [vote.answer for vote in votes]
    if votes[0].kind in SCALES:
        return f"{sum(map(int, answers)) / len(answers):.3f}"
    if votes[0].kind == "ranges":
        return majority_of_ranges(answers)
    answer, num = Counter(answers).most_common(1)[0]
    return answer if 2 * num > len(answers) else ""


def _write(path: Path, names: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    if path.suffix != ".csv":
        raise ValueError(f"labels are written as .csv, got {path}")
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(names)
        writer.writerows(rows)
