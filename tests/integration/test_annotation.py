"""Annotation over HTTP in SQLite and in PostgreSQL: five kinds of questions, audits that disagree,
calibration, labels, and what follows from them. Scripted people know what each clip shows.
"""

import csv
import json
import random
from collections.abc import Callable, Iterator
from contextlib import closing, nullcontext
from pathlib import Path

import pytest
import yaml

from avatar_v_eval.cli import main
from avatar_v_eval.human.assign import rating_plan
from avatar_v_eval.human.exclude import exclusions
from avatar_v_eval.human.quality import agreement_with, audited, leaderboard
from avatar_v_eval.human.store import StudyStore
from avatar_v_eval.human.study_file import load_study
from human_study import (
    LINES,
    SYSTEMS,
    ScriptedRater,
    Shown,
    Site,
    annotation_yaml,
    make_study,
    serve,
    study_yaml,
)
from postgres import BINARIES, postgresql

Judge = Callable[[Shown], dict]
MOS = ("identity", "lip_sync", "motion_naturalness", "motion_consistency", "artifacts", "visual")


@pytest.fixture(params=["sqlite", "postgresql"], scope="module")
def server(request: pytest.FixtureRequest) -> Iterator[str | None]:
    """The address of a PostgreSQL, None for SQLite."""
    if request.param == "postgresql":
        pytest.importorskip("psycopg", reason="needs pip install 'avatar_v[postgres]'")
        if not BINARIES:
            pytest.skip("no PostgreSQL in /usr/lib/postgresql")
    with postgresql() if request.param == "postgresql" else nullcontext() as address:
        yield address


@pytest.fixture
def place(server: str | None, tmp_path: Path) -> str:
    """Where votes go; a schema of its own for each test."""
    if server is None:
        return str(tmp_path / "votes.sqlite")
    import psycopg

    schema = f"s{random.SystemRandom().randrange(10**9)}"
    with psycopg.connect(server) as db:
        db.execute(f"CREATE SCHEMA {schema}")
    return f"{server}&options=-csearch_path%3D{schema}"


def careful(shown: Shown) -> dict:
    """What is true of a clip: of the melted one, and of the cases by their number."""
    names = {side: file.stem for side, file in shown.files.items()}
    one = names.get("only", "")
    case = int(one[1:]) if one.startswith("c") else 0
    match shown.kind:
        case "mos":
            return dict.fromkeys(MOS, 1 if one == "melted" else 4)
        case "ranges" if one == "melted":
            return {"ranges": [{"fault": "teeth", "start": 0.12, "stop": 0.4}]}
        case "ranges":
            return {"ranges": [{"fault": "blink", "start": 0.1, "stop": 0.3}] * (case % 2)}
        case "attributes":
            where = "left" if one == "melted" or case % 2 else "camera"
            return {"gaze": where, "emotion": "sad", "gesture": "none", "style": "reading"}
    if "melted" in names.values():
        return {"choice": "left" if names["left"] == "intact" else "right"}
    if shown.kind == "turing":
        return {"choice": "left" if shown.files["left"].parent.name == "footage" else "right"}
    left, right = (SYSTEMS.index(shown.files[side].parent.name) for side in ("left", "right"))
    return {"choice": "left" if left < right else "right"}


def sloppy(shown: Shown) -> dict:
    """Careful with what is known, and marks the same thing in all else."""
    if "Practice" in shown.html or "melted" in {file.stem for file in shown.files.values()}:
        return careful(shown)
    if shown.kind == "ranges":
        return {"ranges": [{"fault": "hands", "start": 0, "stop": 0.48}]}
    if shown.kind == "attributes":
        return {"gaze": "up", "emotion": "angry", "gesture": "beat", "style": "excited"}
    return careful(shown)


def person(site: Site, judge: Judge = careful, *, tier: int = 1) -> tuple[str, ScriptedRater]:
    (rater,) = site.store.add_raters(1, tier=tier)
    return rater.name, ScriptedRater(site, rater.token, judge)


def decide_all(site: Site, reviewer: ScriptedRater) -> list[str]:
    """Audits to their end; at a dispute the own answer is kept. Returns the pages of disputes."""
    disputes = []
    while "Nothing to review" not in (html := reviewer.run(max_items=1, until="Others differ")):
        if "Others differ" in html:
            disputes.append(html)
            reviewer.run(max_items=1, decide=True)
    return disputes


def test_audits_find_the_sloppy_and_become_labels(place: str, tmp_path: Path) -> None:
    study = make_study(tmp_path, annotation_yaml(4))
    with serve(study, place) as site:
        name, good = person(site)
        bad_name, bad = person(site, sloppy)
        reviewer_name, reviewer = person(site, tier=2)
        assert "All done" in good.run()
        assert "Question" in bad.run(max_items=4 + 3 + 4 + 2 + 4 + 2)  # in the midst of attributes
        disputes = decide_all(site, reviewer)
        assert len(disputes) >= 4
        shown = disputes[0][: disputes[0].index("<dialog")]
        assert not [word for word in (name, bad_name, "ours") if word in shown]
        states = {rater.name: rater.state for rater in site.store.raters()}
        assert states == {name: "done", bad_name: "recalibrating", reviewer_name: "rating"}
        assert "with\n  explanations" in bad.run(max_items=0)
        bad.judge = careful
        assert "Question" in bad.run(max_items=2)
        assert site.store.named(bad_name).state == "rating"
        assert "All done" in bad.run()
        votes, raters = site.store.votes(), site.store.raters()
        left_out = {one.rater for one in exclusions(raters, votes, study.rules)}
        assert reviewer_name not in left_out
        of = {n: [p for p in audited(votes) if p[0].rater == n] for n in (name, bad_name)}
        assert agreement_with(of[name]).value == 1.0
        assert agreement_with(of[bad_name]).value < 0.85
        board = leaderboard(study, votes, raters)
        assert [row.label for row in board.rows] == [name, bad_name]
        pay = {row.label: row.values[-3:] for row in board.rows}
        assert pay[name] == pytest.approx((0.8, 0.4, 1.2))  # 8 items at 0.1, and half of it
        assert pay[bad_name] == pytest.approx((0.8, 0.0, 0.8))
    written(study.root, place, tmp_path)


def written(root: Path, place: str, folder: Path) -> None:
    """The commands give labels, ranges to leave out, and the tables of people."""
    for action, name in (("labels", "l.csv"), ("drop", "d.csv"), ("people", "p.csv"),
                         ("people", "p.html"), ("tables", "t.md")):  # fmt: skip
        assert main(["votes", action, str(root), str(folder / name), "--votes", place]) == 0
    rows = list(csv.DictReader((folder / "l.csv").open()))
    decided = [row for row in rows if row["kind"] == "attributes" and row["dimension"] == "gaze"]
    assert {row["file"]: row["label"] for row in decided} == {
        f"videos/ours/c{i:02d}.mp4": "left" if i % 2 else "camera" for i in range(4)
    }
    assert {row["num_audits"] for row in decided} == {"1"}
    drops = list(csv.DictReader((folder / "d.csv").open()))
    assert [(row["file"], row["fault"]) for row in drops] == [
        ("c01.mp4", "blink"),
        ("c03.mp4", "blink"),
    ]
    assert (float(drops[0]["start_s"]), float(drops[0]["stop_s"])) == (0.1, 0.3)
    board = list(csv.DictReader((folder / "p.csv").open()))
    assert [row["Rater"] for row in board] == ["r001", "r002"]
    assert float(board[0]["Agree with label"]) == 1.0
    assert "Agreement with reviewers" in (folder / "p.html").read_text()
    assert "| ranges |" in (folder / "t.md").read_text()


def test_who_stays_below_the_limit_ends(tmp_path: Path) -> None:
    """A round of calibration that is failed, and a second fall with nothing left to practise."""
    study = make_study(tmp_path, annotation_yaml(6, calibration_items=4))
    with serve(study, tmp_path / "votes.sqlite") as site:
        _, failing = person(site, sloppy)
        spent_name, spent = person(site, sloppy)
        for one in (failing, spent):
            one.run(max_items=4 + 3 + 4 + 2 + 6)
        _, reviewer = person(site, tier=2)
        decide_all(site, reviewer)
        failing.judge = lambda shown: sloppy(Shown(shown.public, shown.kind, {}, ""))
        assert "Thank you for trying" in failing.run()
        assert "Question" in spent.run(max_items=4)  # through the calibration
        spent.run(max_items=5)  # of six
        decide_all(site, reviewer)
        votes, raters = site.store.votes(), site.store.raters()
        assert {r.name: r.state for r in raters}[spent_name] == "failed"
        reasons = [one.reason for one in exclusions(raters, votes, study.rules)]
        assert "failed the calibration: wrong on k_attributes" in reasons[0]


def test_a_second_batch_and_trusted_work(tmp_path: Path) -> None:
    raw = annotation_yaml(4, batches=True)
    raw["tasks"] = [task for task in raw["tasks"] if task["kind"] in LINES]
    raw["tasks"][0] |= {"items_per_rater": 3}
    raw["tasks"][1] |= {"trusted": True, "pay": 0.5}
    raw["checks"] = [check for check in raw["checks"] if check["kind"] in LINES]
    study = make_study(tmp_path, raw)
    with serve(study, tmp_path / "votes.sqlite") as site:
        name, rater = person(site)
        first = rater.run()
        assert "Take another batch" in first
        assert {s.item.split("/")[0] for s in site.store.screens(name)} == {"check", "ranges"}
        _, reviewer = person(site, tier=2)
        assert decide_all(site, reviewer) == []
        assert site.request("POST", f"/r/{rater.token}/more")[0] == 303
        assert "Take another batch" not in rater.run()
        kinds = [s.item.split("/")[0] for s in site.store.screens(name) if s.role == "study"]
        assert kinds == ["ranges"] * 3 + ["attributes"] * 4 + ["ranges"]


def test_a_batch_that_is_left_costs_nothing_and_the_last_item_is_given_once(
    place: str, tmp_path: Path
) -> None:
    """Two raters see that there is one more item, and both ask for it."""
    raw = annotation_yaml(4, batches=True)
    task = {"kind": "ranges", "systems": ["ours"], "raters_per_item": 1, "items_per_rater": 1}
    raw |= {"tasks": [task], "checks": [one for one in raw["checks"] if one["kind"] == "ranges"]}
    study = make_study(tmp_path, raw)
    with serve(study, place) as site:
        (quick_name, quick), (slow_name, slow) = person(site), person(site)
        for one in (quick, slow):
            assert "Take another batch" in one.run()
        assert site.request("POST", f"/r/{quick.token}/more")[0] == 303
        assert "Question" in quick.run(max_items=0)  # and is left
        assert exclusions(site.store.raters(), site.store.votes(), study.rules) == ()
        load, before = site.store.load, site.store.load(site.clock.now_s)
        assert "Take another batch" in quick.run()
        assert site.request("POST", f"/r/{quick.token}/more")[0] == 303
        site.store.load = lambda now_s: before  # what the slow one was shown
        assert site.request("POST", f"/r/{slow.token}/more")[0] == 303
        site.store.load = load
        assert "All done" in slow.run(max_items=0)
        assert site.store.named(slow_name).state == "done"
        site.store.set_state(slow_name, "rating")  # also then it is no reviewer
        assert site.request("GET", f"/r/{slow.token}")[0] == 200
        assert {s.role for s in site.store.screens(slow_name)} == {"qualification", "study"}
        assert site.store.progress(quick_name, ["study"]) == (2, 3)


def test_decisions_are_the_reviewers_alone(place: str, tmp_path: Path) -> None:
    study = make_study(tmp_path, annotation_yaml(2))
    with serve(study, place) as site:
        _, rater = person(site)
        rater.run(max_items=5)
        _, reviewer = person(site, tier=2)
        reviewer.run(max_items=4)
        for one in (rater, reviewer):
            public = one.run(max_items=0).partition('data-item="')[2].partition('"')[0]
            sent = {"item": public, "answer": dict.fromkeys(MOS, 4), "decision": True}
            assert site.request("POST", f"/r/{one.token}/answer", sent)[0] == 422
        sent["decision"] = False
        for _ in range(2):  # sent again where the answer was lost: no decision
            assert site.request("POST", f"/r/{reviewer.token}/answer", sent)[0] == 200
        odd = ("\0", "%00", "x" * 99, "é", "%ED%A0%80", "' OR 1=1")
        for path in (f"/r/{x}" for x in odd[1:3]):
            assert site.request("GET", path)[0] == 404
            assert site.request("GET", f"/r/{rater.token}/m{path[2:]}")[0] == 404
        for text in odd:
            sent = {"item": text, "answer": {"choice": text}}
            assert site.request("POST", f"/r/{rater.token}/answer", sent)[0] == 404
        assert len([v for v in site.store.votes(role="label") if v.kind == "mos"]) == 6


def test_raters_who_start_together_share_the_items(place: str, tmp_path: Path) -> None:
    """Also where two servers write to one database: the load is read and added to by one at a
    time, so no item gets a third rater while another lacks its second."""
    from concurrent.futures import ThreadPoolExecutor

    study = make_study(tmp_path, study_yaml(3, mos=3, pairs=3, turing=1))
    with closing(StudyStore(place, study.fingerprint)) as one, closing(
        StudyStore(place, study.fingerprint)
    ) as other:  # fmt: skip
        raters = one.add_raters(6)

        def begin(number: int) -> None:
            store, name = (one, other)[number % 2], raters[number].name
            store.assign(name, lambda load: rating_plan(study, name, load), now_s=1e9)
            store.set_state(name, "rating")

        with ThreadPoolExecutor(6) as pool:
            list(pool.map(begin, range(6)))
        load = one.load(1e9)
        for kind in ("mos", "pair", "turing"):
            nums = [num for item, num in load.items() if item.startswith(kind)]
            assert max(nums) - min(nums) <= 1


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"faults": [{"key": "a b", "title": "", "hint": ""}]}, "a fault has a name of a-z"),
        ({"faults": []}, "expected 1 to 9, got 0"),
        ({"audits": {"share": 1.5}}, "share is a finite number from 0 to 1, got 1.5"),
        ({"audits": {"share": 0.1}, "checks": []}, "audits need checks of the role calibration"),
        ({"guidelines": {"ranges": "../secret.md"}}, "expected a path below"),
        ({"guidelines": {"paint": "own.md"}}, "guidelines"),
    ],
)
def test_bad_studies_of_annotation(tmp_path: Path, change: dict, message: str) -> None:
    make_study(tmp_path, annotation_yaml(1))
    raw = yaml.safe_load((tmp_path / "study.yaml").read_text())
    (tmp_path / "study.yaml").write_text(yaml.safe_dump({**raw, **change}))
    with pytest.raises(ValueError, match=message):
        load_study(tmp_path)


@pytest.mark.parametrize(
    ("kind", "expected", "message"),
    [
        ("ranges", "wings:0.10-0.40", r"unknown faults \['wings'\]"),
        ("ranges", "teeth:0.40-0.10", "expected ranges like"),
        ("attributes", "gaze=inward", "expects gaze=inward"),
        ("attributes", "sad", "expected ATTRIBUTE=VALUE"),
    ],
)
def test_bad_known_answers(tmp_path: Path, kind: str, expected: str, message: str) -> None:
    raw = annotation_yaml(1)
    for check in raw["checks"]:
        check |= {"expected": expected} if check["kind"] == kind else {}
    with pytest.raises(ValueError, match=message):
        make_study(tmp_path, raw)


def test_a_study_has_its_own_guidelines_and_lists(tmp_path: Path) -> None:
    raw = annotation_yaml(1)
    (tmp_path / "own.md").write_text("# Hands only\n\n<script>alert(1)</script>")
    raw |= {"guidelines": {"ranges": "own.md"}}
    raw["faults"] = [{"key": "teeth", "title": "<b>T</b>", "hint": ""}]
    study = make_study(tmp_path, raw)
    with serve(study, tmp_path / "v") as site:
        _, rater = person(site)
        rater.run()
        text = "".join(rater.pages)
    assert "<h1>Hands only</h1>" in text
    assert "&lt;b&gt;T" in text
    assert not [word for word in ("<b>T</b>", "<script>alert", "<h1>Marking") if word in text]
    assert json.dumps(raw["faults"]) not in text
