"""study, assign, blind, addresses: bad studies, who sees what, and under which names."""

import os
import random
import shutil
from collections import Counter
from pathlib import Path

import pytest
import yaml

from avatar_v_eval.cli import main
from avatar_v_eval.human.assign import num_raters_needed, rating_plan
from avatar_v_eval.human.blind import blinded_copies
from avatar_v_eval.human.cli import reached_by
from avatar_v_eval.human.items import study_items
from avatar_v_eval.human.study import Study
from avatar_v_eval.human.study_file import load_study
from human_study import make_study, study_yaml

RULES = study_yaml()["rules"]
NUMBERS = {"raters_per_item": 1, "items_per_rater": 1}
BOMB: list = ["x"] * 9
for _ in range(9):
    BOMB = [BOMB] * 9  # in YAML a few lines of aliases, written out 3.5 thousand million words
MELTED = {"videos": ["checks/melted.mp4"]}
SCORED = {"kind": "score", "systems": ["ours"], **NUMBERS}


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Study:
    return make_study(tmp_path_factory.mktemp("study"), study_yaml(3, mos=5, pairs=5, turing=2))


def changed(study: Study, folder: Path, **change: object) -> Path:
    """A study.yaml beside the same videos with some keys replaced."""
    raw = yaml.safe_load((study.root / "study.yaml").read_text())
    file = study.root / f"{folder.name}.yaml"
    file.write_text(yaml.safe_dump({**raw, **change}))
    return file


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"systems": {"ours": "nowhere"}}, "unknown systems"),
        ({"name": ["x"]}, r"yaml: name is text, got \['x'\]"),
        ({"seed": "one"}, "seed is a whole number .*, got 'one'"),
        ({"cases": [{"name": 7, "condition": "same"}]}, r"cases\[0\]: name is text, got 7"),
        (
            {"rules": {**RULES, "min_seconds": float("nan")}},
            "rules: min_seconds is a finite number .*, got nan",
        ),
        (
            {"rules": {**RULES, "max_wrong_golds": -1}},
            "max_wrong_golds is a whole number from 0 .*, got -1",
        ),
        (
            {"rules": {**RULES, "count_unfinished": "no"}},
            "count_unfinished is true or false, got 'no'",
        ),
        ({"title": BOMB}, "aliases .* make more than"),
        ({"refused": {"ours": [BOMB]}}, "aliases .* make more than"),
        ({"tasks": [{"kind": BOMB, "systems": ["ours"], **NUMBERS}]}, "aliases .* make more than"),
        ({"colour": "red"}, r"unknown keys \['colour'\]"),
        ({"cases": [{"name": "c99", "condition": "same"}]}, r"c99\.mp4 is missing"),
        ({"cases": [{"name": "../../../x", "condition": "same"}]}, "expected a path below"),
        ({"cases": [{"name": "c00", "condition": ""}] * 2}, r"case named twice: \['c00'\]"),
        ({"cases": [{"name": "c00", "condition": ""}]}, r"needs a reference clip.*\['c00'\]"),
        (
            {"checks": [{"name": "g", "kind": "mos", "role": "gold", "expected": "1-2"} | MELTED]},
            "would know checks by their missing",
        ),
        ({"tasks": []}, "at least one task"),
        (
            {"tasks": [SCORED], "cases": [{"name": "c00", "condition": ""}], "checks": []},
            r"score needs a reference clip, none for \['c00'\]",
        ),
        (
            {
                "tasks": [SCORED],
                "checks": [
                    {"name": "g", "kind": "score", "role": "gold", "expected": "40-101"} | MELTED
                ],
            },
            "check 'g' expects '40-101': score takes low-high of its scale",
        ),
        ({"refused": {"ours": ["c00", "c01", "c02"]}}, "no case with all its videos"),
        (
            {"tasks": [{"kind": "pair", "pairs": [["ours", "weak"]] * 2, **NUMBERS}]},
            "task pair compares the same twice",
        ),
    ],
)
def test_bad_studies(study: Study, tmp_path: Path, change: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        load_study(changed(study, tmp_path, **change))


def said(words: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """The one line with which a command is refused."""
    assert main(words) == 2
    line = capsys.readouterr().err
    assert line.count("\n") == 1
    return line


def test_a_missing_or_broken_video_is_one_line_before_the_server(
    study: Study, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = changed(study, tmp_path, cases=[{"name": "gone", "condition": "same"}])
    assert "videos/ours/gone.mp4 is missing" in said(["rate", str(file), "--check"], capsys)
    video = study.root / "videos/ours/c00.mp4"
    good = video.read_bytes()
    video.write_bytes(b"no video at all")
    try:
        line = said(["rate", str(study.root), "--check"], capsys)
    finally:
        video.write_bytes(good)
    assert "c00.mp4: not a readable media file" in line


def test_refused_videos_make_no_items(study: Study, tmp_path: Path) -> None:
    less = load_study(changed(study, tmp_path, refused={"rival": ["c01"]}))
    assert len(study_items(study, "pair")) == 9
    assert len(study_items(less, "pair")) == 7


def test_every_video_gets_its_raters_and_every_rater_as_many(study: Study) -> None:
    load: Counter[str] = Counter()
    for i in range(num_raters_needed(study)):
        plan = rating_plan(study, f"r{i}", load)
        kinds = Counter(item.kind for item, _ in plan if item.role == "study")
        assert kinds == {"mos": 5, "pair": 5, "turing": 2}
        load.update(item.name for item, _ in plan)
    for task in study.tasks:
        given = [load[item.name] for item in study_items(study, task.kind)]
        assert min(given) >= task.raters_per_item
        assert max(given) - min(given) <= 1


def test_order_and_sides_come_from_the_seed(study: Study) -> None:
    plans = [rating_plan(study, name, Counter()) for name in ("r1", "r1", "r2")]
    assert plans[0] == plans[1] != plans[2]
    sides = [side for item, side in plans[0] if item.kind == "pair"]
    assert 3 <= sum(sides) <= 4  # half of 7
    firsts = [next(i for i, _ in plans[0] if i.kind == kind) for kind in ("mos", "pair", "turing")]
    assert all(item.role == "study" for item in firsts)


def test_a_video_that_was_made_anew_is_copied_anew(study: Study, tmp_path: Path) -> None:
    """Also if it has as many bytes as the one before, which is the case for silence or noise."""
    video, copies = tmp_path / "a.mp4", tmp_path / "copies"
    shutil.copyfile(study.root / "ref.mp4", video)
    (before,) = blinded_copies([video], copies).values()
    assert blinded_copies([video], copies) == {video: before}
    state = video.stat()
    os.utime(video, ns=(state.st_atime_ns, state.st_mtime_ns + 1))
    assert blinded_copies([video], copies) != {video: before}


@pytest.mark.parametrize(
    ("host", "public", "hosts", "origins"),
    [
        ("127.0.0.1", None, {"127.0.0.1", "localhost", "::1"}, ()),
        ("10.0.0.7", None, {"10.0.0.7"}, ()),
        ("0.0.0.0", "http://lab:8000", {"lab", "0.0.0.0"}, ("http://lab:8000",)),
        ("127.0.0.1", "https://a.example/", {"a.example", "127.0.0.1"}, ("https://a.example",)),
    ],
)
def test_by_which_names_raters_come(host: str, public, hosts: set[str], origins) -> None:
    names, own = reached_by(host, public)
    assert hosts <= set(names)
    assert own == origins


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--host", "0.0.0.0"], "--public"),
        (["--host", "::"], "--public"),
        (["--public", "a.example"], "without a path; got 'a.example'"),
        (["--public", "https://a.example/study"], "without a path"),
        (["--public", "ftp://a.example"], "without a path"),
        (["--port", "70000"], "--port is from 0 to 65535, got 70000"),
        (["--host", "192.0.2.1"], "cannot listen on 192.0.2.1:8000"),
    ],
)
def test_bad_addresses_leave_nothing_behind(
    study: Study, tmp_path: Path, capsys: pytest.CaptureFixture[str], words, message: str
) -> None:
    file = tmp_path / "v.sqlite"
    assert message in said(["rate", str(study.root), "--votes", str(file), *words], capsys)
    assert not file.exists()


def test_ties_between_loads_are_broken_at_random(study: Study) -> None:
    names = {
        tuple(item.name for item, _ in rating_plan(study, str(random.random()), Counter()))
        for _ in range(5)
    }
    assert len(names) == 5
