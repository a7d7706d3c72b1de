"""A small rating study with pairwise votes, and copies of it with one thing wrong each."""

import json
import os
import shutil
import sqlite3
from pathlib import Path
from typing import Any

import torch
import yaml

from avatar_v.media.writer import Mp4Writer
from avatar_v_eval.human.store import StudyStore
from avatar_v_eval.human.study_file import load_study
from avatar_v_eval.human.votes import Vote

VOTES = "votes.sqlite"
STUDY: dict[str, Any] = {
    "name": "study",
    "title": "Talking people",
    "seed": 1,
    "systems": {"ours": "ours", "rival": "rival"},
    "cases": [
        {"name": name, "condition": "cross", "reference": f"references/{name}.mp4"}
        for name in ("c1", "c2")
    ],
    "tasks": [
        {"kind": "pair", "pairs": [["ours", "rival"]], "raters_per_item": 1, "items_per_rater": 2}
    ],
    "rules": {
        "min_seconds": 0,
        "max_wrong_qualification": 0,
        "max_wrong_golds": 0,
        "max_wrong_traps": 0,
    },
}
OUTSIDE = {"name": "c1", "condition": "cross", "reference": "../../secret.wav"}
STUDIES: dict[str, dict[str, Any]] = {
    "reference_outside": {"cases": [OUTSIDE]},
    "reference_root": {"cases": [{**OUTSIDE, "reference": "/etc/passwd"}]},
    "reference_number": {"cases": [{**OUTSIDE, "reference": 7}]},
    "case_outside": {"cases": [{"name": "../ours/c1", "condition": "cross"}]},
    "case_nul": {"cases": [{"name": "a\0b", "condition": "cross"}]},
    "system_outside": {"systems": {"ours": "../../media", "rival": "rival"}},
    "system_list": {"systems": ["ours", "rival"]},
    "seed_text": {"seed": "many"},
    "no_tasks": {"tasks": []},
}
"""Keys of study.yaml."""
ROWS: dict[str, dict[str, Any]] = {
    "row_blob": {"rater": b"\xff\x00"},
    "row_number": {"rater": 7},
    "row_answer": {"answer": "neither"},
    "row_kind": {"kind": "paint"},
    "row_case": {"case": "../../secret"},
    "row_nan": {"duration_s": "nan"},
    "row_text": {"duration_s": "long"},
    "row_none": {"duration_s": None},
    "row_expected": {"role": "gold", "expected": "first"},
    "rater_path": {"rater": "../../r1"},
    "rater_nul": {"rater": "a\0b"},
    "rater_long": {"rater": "x" * 100_000},
    "rater_other": {"rater": "口 '; DROP TABLE votes; \u202e"},
}
"""Columns of the only row of votes."""


def make_rated_studies(folder: Path) -> None:
    """Fill ``folder``; ``good`` has a vote for a pair of each of two cases."""
    good = folder / "good"
    _study(good)
    for name, changes in STUDIES.items():
        shutil.copytree(good, folder / name)
        (folder / name / "study.yaml").write_text(yaml.safe_dump({**STUDY, **changes}))
    for name, changes in ROWS.items():
        shutil.copytree(good, folder / name)
        _row(folder / name / VOTES, changes)
    _texts(good, folder)
    _stores(good, folder)


def vote(rater: str, case: str, answer: str) -> Vote:
    return Vote(rater, "study", "pair", case, "cross", "ours", "rival", "", answer, duration_s=9.0)


def _study(folder: Path) -> None:
    hum = 0.3 * torch.sin(torch.arange(13 * 640) * 0.2)
    x = torch.arange(40)
    for place, grey in (("ours", 1), ("rival", 2), ("references", 3)):
        for case in ("c1", "c2"):
            (folder / place).mkdir(parents=True, exist_ok=True)
            frame = ((x[:, None] * grey + x[None]) % 64 * 3).to(torch.uint8)
            with Mp4Writer(folder / place / f"{case}.mp4", hum) as writer:
                writer.write(frame.expand(13, 3, 40, 40))
    (folder / "study.yaml").write_text(yaml.safe_dump(STUDY))
    store = StudyStore(folder / VOTES, load_study(folder).fingerprint)
    store.add_votes([vote("r1", "c1", "first"), vote("r1", "c2", "tie")])
    store.close()


def _row(path: Path, changes: dict[str, Any]) -> None:
    with sqlite3.connect(path) as db:
        db.execute("DELETE FROM votes WHERE \"case\" = 'c2'")
        for key, value in changes.items():
            db.execute(f'UPDATE votes SET "{key}" = ?', (value,))
    db.close()


def _texts(good: Path, folder: Path) -> None:
    bomb = "a0: &a0 {a: 1, b: 2}\n" + "".join(
        f"a{i}: &a{i} {{<<: [{', '.join([f'*a{i - 1}'] * 9)}]}}\n" for i in range(1, 12)
    )
    lists = "a0: &a0 [1, 1, 1, 1, 1, 1, 1, 1, 1]\n" + "".join(
        f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]\n" for i in range(1, 12)
    )
    for name, text in {
        "merges": bomb,
        "bomb": lists + "name: *a11\n",
        "deep": "[" * 100_000,
        "self": "name: &a [*a]\n",
        "large": "x: 1\n" * 400_000,
    }.items():
        shutil.copytree(good, folder / name)
        (folder / name / "study.yaml").write_text(text)
    shutil.copytree(good, folder / "latin")
    (folder / "latin" / "study.yaml").write_bytes("name: Grüße\n".encode("latin-1"))


def _stores(good: Path, folder: Path) -> None:
    """Files that are no file of votes in its place."""
    for name in ("no_votes", "votes_text", "votes_other", "votes_foreign", "votes_fifo",
                 "votes_circle", "votes_folder", "votes_cut", "votes_columns"):  # fmt: skip
        shutil.copytree(good, folder / name)
        if name != "votes_cut":
            (folder / name / VOTES).unlink()
    (folder / "votes_text" / VOTES).write_text("no database " * 100)
    with sqlite3.connect(folder / "votes_other" / VOTES) as db:
        db.execute("CREATE TABLE runs (name TEXT)")
    db.close()
    with sqlite3.connect(folder / "votes_foreign" / VOTES) as db:
        db.execute("CREATE TABLE votes (name TEXT)")
    db.close()
    with sqlite3.connect(folder / "votes_columns" / VOTES) as db:
        fingerprint = load_study(good).fingerprint
        db.execute("CREATE TABLE meta (fingerprint TEXT NOT NULL)")
        db.execute("INSERT INTO meta VALUES (?)", (fingerprint,))
        db.execute("CREATE TABLE votes (name TEXT)")
    db.close()
    os.mkfifo(folder / "votes_fifo" / VOTES)
    (folder / "votes_circle" / VOTES).symlink_to(VOTES)
    (folder / "votes_folder" / VOTES).mkdir()
    whole = (good / VOTES).read_bytes()
    (folder / "votes_cut" / VOTES).write_bytes(whole[: len(whole) // 2])


def _rater(path: str, **changes: Any) -> str:
    rater = {
        "name": "a", "axis": "overall", "noise": 0.5, "position_bias": 0.0, "ties": 1.5,
        "terms": [{"path": path, "weight": 1.0}], **changes,
    }  # fmt: skip
    return json.dumps({"raters": [rater]})


TERM = "avatar_v.rewards.likeness.own_sway"
RATERS = {
    "text": "no json",
    "list": "[]",
    "none": '{"raters": []}',
    "deep": "[" * 100_000,
    "unknown": _rater(TERM, surprise=1),
    "lacks": '{"raters": [{"name": "a"}]}',
    "not_there": _rater("is.not.there"),
    "relative": _rater(".os.system"),
    "dots": _rater("..."),
    "word": _rater("own_sway"),
    "class": _rater("pathlib.Path"),
    "constant": _rater("math.pi"),
    "noise": _rater(TERM, noise=float("nan")),
    "ties": _rater(TERM, ties=0.0),
    "bias": _rater(TERM, position_bias=1e30),
    "name": _rater(TERM, name=""),
    "no_terms": _rater(TERM, terms=[]),
    "twins": json.dumps({"raters": json.loads(_rater(TERM))["raters"] * 2}),
}
"""Files of --raters."""


def make_raters(folder: Path) -> None:
    folder.mkdir()
    for name, text in RATERS.items():
        (folder / f"{name}.json").write_text(text)
