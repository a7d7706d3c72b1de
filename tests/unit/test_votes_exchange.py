"""Votes from place to place: who counts there, under which name, what is a vote, what a label."""

from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import av
import pytest

from avatar_v.media.containers import open_media
from avatar_v_eval.cli import main
from avatar_v_eval.human import blind
from avatar_v_eval.human.blind import blinded_copies
from avatar_v_eval.human.exchange import read_states, write_votes
from avatar_v_eval.human.exclude import exclusions
from avatar_v_eval.human.items import all_items, item_votes
from avatar_v_eval.human.labels import study_labels
from avatar_v_eval.human.session import consent
from avatar_v_eval.human.store import StudyStore
from avatar_v_eval.human.study import Study
from avatar_v_eval.human.votes import ENDED, Rater, State, Vote
from human_study import make_study, study_yaml


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Study:
    raw = study_yaml(2, mos=2, pairs=2, turing=1)
    marks = {"systems": ["ours", "rival"], "raters_per_item": 1, "items_per_rater": 2}
    raw["tasks"].append({"kind": "ranges", **marks})
    known = {"role": "qualification", "expected": "teeth:0.10-0.40", "reference": "ref.mp4"}
    raw["checks"].append({"name": "q3", "kind": "ranges", "videos": ["checks/melted.mp4"], **known})
    return make_study(tmp_path_factory.mktemp("study"), raw)


@pytest.fixture
def store(tmp_path: Path, study: Study) -> Iterator[StudyStore]:
    with closing(StudyStore(tmp_path / "votes.sqlite", study.fingerprint)) as store:
        yield store


def votes_on(study: Study, item: str, rater: str, *answers: str) -> list[Vote]:
    """One vote, or one for each line of the scales: an answer for each, or one for all."""
    lines = [d.key for d in study.dimensions] if item.startswith("mos") else [""]
    if len(answers) == 1:
        answers *= len(lines)
    given = dict(zip(lines, answers, strict=True))
    more = {"second_on_left": False, "duration_s": 9.0, "time": "2026-01-01T00:00:00+00:00"}
    return item_votes(all_items(study)[item], rater, given, **more)


def run(study: Study, action: str, file: Path, store: StudyStore, *more: str) -> int:
    place = ["--votes", store.place]
    return main(["votes", action, str(study.root), str(file), *place, *more])


def test_who_is_left_out_is_left_out_elsewhere_too(
    study: Study, store: StudyStore, tmp_path: Path
) -> None:
    """Who takes more after a whole round and leaves counts; who fails in it does not."""
    rounds: list[tuple[State, bool]] = [
        ("done", True), ("rating", False), ("rating", True), ("recalibrating", True),
        ("failed", True),
    ]  # fmt: skip
    for rater, (state, has_ended) in zip(store.add_raters(5), rounds, strict=True):
        store.set_state(rater.name, state)
        if has_ended:
            store.mark_read(rater.name, ENDED)
        store.add_votes(votes_on(study, "pair/c00/ours/weak", rater.name, "first"))
    left_out = exclusions(store.raters(), store.votes(), study.rules)
    assert [one.rater for one in left_out] == ["r002", "r005"]
    assert run(study, "export", tmp_path / "v.csv", store) == 0
    with closing(StudyStore(tmp_path / "other.sqlite", study.fingerprint)) as other:
        assert run(study, "import", tmp_path / "v.csv", other) == 0
        assert other.votes() == store.votes()
        there = exclusions(other.raters(), other.votes(), study.rules)
    assert [one.rater for one in there] == ["r002", "r005"]
    assert there[0].reason == "unfinished"


def test_a_rater_is_in_one_state(study: Study, tmp_path: Path) -> None:
    votes = votes_on(study, "mos/c00/ours", "r1", "4")
    for states in (["done", "failed"], ["invited", "invited"], ["tired", "tired"]):
        file = tmp_path / "v.csv"
        write_votes(votes[:2], file)
        head, *lines = file.read_text().splitlines()
        lines = [line.removesuffix("done") + x for line, x in zip(lines, states, strict=True)]
        file.write_text("\n".join([head, *lines]))
        with pytest.raises(ValueError, match=f"line .: rater_state '{states[1]}' of r1"):
            read_states(file)


@pytest.mark.parametrize("has_begun", [False, True])
def test_a_name_of_another_place_is_another_person(
    study: Study, store: StudyStore, tmp_path: Path, capsys, has_begun: bool
) -> None:
    (own,) = store.add_raters(1)
    if has_begun:
        consent(study, store, own, 0.0)
    write_votes(votes_on(study, "turing/c00/ours/footage", own.name, "first"), tmp_path / "v.csv")
    assert run(study, "import", tmp_path / "v.csv", store) == 2
    assert "r001 rates here" in (error := capsys.readouterr().err)
    assert "--prefix" in error
    assert store.votes() == []
    assert run(study, "import", tmp_path / "v.csv", store, "--prefix", "lab-") == 0
    assert [vote.rater for vote in store.votes()] == ["lab-r001"]


def test_new_raters_have_names_that_nobody_has(study: Study, store: StudyStore) -> None:
    for name in ("r002", "v003"):
        store.add_votes(votes_on(study, "turing/c00/ours/footage", name, "first"))
    store.fill_raters(3)
    store.add_raters(1, tier=2)
    assert [rater.name for rater in store.raters()] == ["r002", "r003", "v003", "v004"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"first": "nobody"}, "that the study has not: mos c00 nobody identity"),
        ({"case": "c77"}, "that the study has not: mos c77 ours identity"),
        ({"dimension": "charm"}, "that the study has not: mos c00 ours charm"),
        ({"expected": "abc"}, "of mos c00 the study expects '', and the vote 'abc'"),
    ],
)
def test_what_the_study_does_not_ask_is_no_vote_of_it(
    study: Study, store: StudyStore, tmp_path: Path, capsys, change: dict, message: str
) -> None:
    votes = votes_on(study, "mos/c00/ours", "r1", "4")
    write_votes([*votes[1:], replace(votes[0], **change)], tmp_path / "v.csv")
    assert run(study, "import", tmp_path / "v.csv", store) == 2
    assert message in capsys.readouterr().err
    assert store.votes() == []


@pytest.mark.parametrize(
    ("answers", "label"),
    [
        (["first", "second", "tie"], ""),
        (["first", "second"], ""),
        (["first", "first", "second", "second", "tie"], ""),
        (["first", "tie", "first"], "first"),
        (["tie", "tie", "second"], "tie"),
    ],
)
def test_a_label_is_what_most_raters_say(study: Study, answers: list[str], label: str) -> None:
    """Raters who differ have not said that there is no difference."""
    votes, raters = [], []
    for i, answer in enumerate(answers):
        raters.append(Rater(f"r{i}", "", "done"))
        votes += votes_on(study, "pair/c00/ours/weak", f"r{i}", answer)
    assert [one.label for one in study_labels(study, votes, raters)] == [label]


def test_ranges_of_two_systems_are_no_footage(
    study: Study, store: StudyStore, tmp_path: Path, capsys
) -> None:
    """Their files have the same names, so one's faults would cost the other's clips."""
    file = tmp_path / "drop.csv"
    store.add_votes(votes_on(study, "ranges/c00/ours", "r1", "teeth:0.10-0.40"))
    assert run(study, "drop", file, store) == 0
    assert "c00.mp4,0.1,0.4,teeth" in file.read_text()
    store.add_votes(votes_on(study, "ranges/c00/rival", "r1", "none"))
    assert run(study, "drop", file, store) == 2
    assert "ranges are of several systems, ours, rival" in capsys.readouterr().err


def test_two_servers_copy_the_same_videos(
    study: Study, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other one begins and ends while this one is in the midst of a file."""
    files, folder = [study.root / "ref.mp4"], tmp_path / "copies"
    others: list[dict[Path, Path]] = []

    @contextmanager
    def opened(file: Path) -> Iterator[SimpleNamespace]:
        with open_media(file) as container:

            def demux(*streams: av.VideoStream) -> Iterator[av.Packet]:
                for number, packet in enumerate(container.demux(*streams)):
                    yield packet
                    if number == 3:
                        monkeypatch.undo()
                        others.append(blinded_copies(files, folder))

            yield SimpleNamespace(streams=container.streams, demux=demux)

    monkeypatch.setattr(blind, "open_media", opened)
    assert [blinded_copies(files, folder)] == others
    (copy,) = folder.iterdir()
    with open_media(copy) as container:
        assert sum(1 for _ in container.decode(video=0)) == 12
