"""Votes to and from files: CSV (one vote a row) and Label Studio's JSON of annotated tasks.

Both hold every field of a vote and read back equal. Raters stand under their pseudonym; tokens are
never written. In Label Studio's format (labelstud.io/guide/task_format) a task is one item, an
annotation one rater's answer, and a result one dimension as `rating`, or one `choices`.
"""

import csv
import json
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import asdict, fields
from pathlib import Path

from avatar_v.base.outside import parse_json, read_bytes, read_table
from avatar_v_eval.human.votes import Vote

COLUMNS = tuple(field.name for field in fields(Vote))
_TASK = ("role", "kind", "case", "condition", "first", "second", "expected")


def write_votes(votes: Sequence[Vote], path: Path | str) -> None:
    """Writes .csv or .json, by the name."""
    path = Path(path)
    match path.suffix:
        case ".csv":
            with path.open("w", newline="", encoding="utf-8") as file:
                writer = csv.DictWriter(file, COLUMNS)
                writer.writeheader()
                writer.writerows(asdict(vote) for vote in votes)
        case ".json":
            text = json.dumps(to_label_studio(votes), indent=1, ensure_ascii=False)
            path.write_text(text + "\n", encoding="utf-8")
        case suffix:
            raise ValueError(f"votes are written to .csv or .json, got {suffix!r} in {path}")


def read_votes(path: Path | str) -> list[Vote]:
    """Reads a file of ``write_votes``, or a Label Studio export of the same fields.

    A vote that is there twice counts once; ValueError for two different answers to one question
    and for what is no vote, with the file and the place in it.
    """
    path = Path(path)
    if not path.is_file():
        raise ValueError(f"no vote file at {path}")
    if path.suffix not in (".csv", ".json"):
        raise ValueError(f"votes are read from .csv or .json, got {path}")
    rows = _csv_rows(path) if path.suffix == ".csv" else _json_rows(path)
    found: dict[tuple[str, ...], Vote] = {}
    for where, row in rows:
        try:
            vote = _vote(row)
        except (ValueError, TypeError, KeyError) as error:
            raise ValueError(f"{path}, {where}: {error}") from error
        before = found.setdefault(vote.key, vote)
        if before.answer != vote.answer:
            raise ValueError(
                f"{path}, {where}: {vote.rater} answered {vote.question} both "
                f"{before.answer!r} and {vote.answer!r}"
            )
    return list(found.values())


def to_label_studio(votes: Sequence[Vote]) -> list[dict]:
    """Tasks with their annotations, in the order of the votes."""
    people = {name: i for i, name in enumerate(dict.fromkeys(vote.rater for vote in votes), 1)}
    tasks: dict[tuple[str, ...], dict[str, list[Vote]]] = defaultdict(lambda: defaultdict(list))
    for vote in votes:
        item = tuple(str(asdict(vote)[name]) for name in _TASK)
        tasks[item][vote.rater].append(vote)
    return [
        {
            "id": number,
            "data": dict(zip(_TASK, item, strict=True)),
            "annotations": [_annotation(people[name], own) for name, own in answers.items()],
        }
        for number, (item, answers) in enumerate(tasks.items(), 1)
    ]


def _annotation(person: int, votes: Sequence[Vote]) -> dict:
    first = votes[0]
    return {
        "completed_by": person,
        "created_at": first.time,
        "lead_time": first.duration_s,
        "was_cancelled": False,
        "ground_truth": False,
        "result": [_result(vote) for vote in votes],
    }


def _result(vote: Vote) -> dict:
    meta = {"rater": vote.rater, "second_on_left": vote.second_on_left}
    if vote.kind == "mos":
        value, kind, name = {"rating": vote.score}, "rating", vote.dimension
    else:
        value, kind, name = {"choices": [vote.answer]}, "choices", "choice"
    return {"from_name": name, "to_name": "video", "type": kind, "value": value, "meta": meta}


def _csv_rows(path: Path) -> Iterable[tuple[str, dict]]:
    for number, row in read_table(path, COLUMNS):
        if row["second_on_left"] not in ("True", "False"):
            raise ValueError(f"{path}, line {number}: second_on_left is True or False")
        yield f"line {number}", {**row, "second_on_left": row["second_on_left"] == "True"}


def _json_rows(path: Path) -> Iterable[tuple[str, dict]]:
    try:
        tasks = parse_json(read_bytes(path, what="Label Studio export"), where=path)
        for task in tasks:
            for annotation in task["annotations"]:
                if annotation["was_cancelled"]:
                    continue
                for result in annotation["result"]:
                    yield f"task {task['id']}", _json_row(task, annotation, result)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise ValueError(f"{path} is no Label Studio export of votes: {error!r}") from error


def _json_row(task: dict, annotation: dict, result: dict) -> dict:
    rating = result["type"] == "rating"
    meta = result.get("meta", {})
    return {
        **{name: task["data"][name] for name in _TASK},
        "rater": meta.get("rater") or f"person{annotation['completed_by']}",
        "dimension": result["from_name"] if rating else "",
        "answer": str(result["value"]["rating"]) if rating else result["value"]["choices"][0],
        "second_on_left": meta.get("second_on_left", False),
        "duration_s": annotation["lead_time"],
        "time": annotation["created_at"],
    }


def _vote(row: dict) -> Vote:
    return Vote(**{**row, "duration_s": float(row["duration_s"])})
