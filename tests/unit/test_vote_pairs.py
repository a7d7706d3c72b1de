"""`avatar-v-eval votes pairs`: votes of a study become pairs that preferences are learned from."""

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
import yaml

from avatar_v.media.writer import Mp4Writer
from avatar_v.shards.loader import read_folder
from avatar_v.shards.pair_data import PairData
from avatar_v.shards.pairs import WINNERS, Pair, read_pair
from avatar_v.types import SAMPLES_PER_FRAME
from avatar_v_eval.cli import main
from avatar_v_eval.human.store import StudyStore
from avatar_v_eval.human.study import Study
from avatar_v_eval.human.study_file import load_study
from avatar_v_eval.human.votes import Vote
from human_study import study_yaml, write_video

SIDE = 64
CASES = ("c1", "c2", "c3")


def write_clip(path: Path, grey: int, num_frames: int = 13) -> None:
    """One grey, with a sound of its own."""
    path.parent.mkdir(parents=True, exist_ok=True)
    audio = torch.sin(torch.arange(num_frames * SAMPLES_PER_FRAME) * (0.01 + grey / 1000)) / 2
    video = torch.full((num_frames, 3, SIDE, SIDE), grey, dtype=torch.uint8)
    with Mp4Writer(path, audio) as writer:
        writer.write(video)


def make(folder: Path, **changes) -> Study:
    """Three cases of three persons; ours is 100 bright, the rival 200, the references 50."""
    raw = {
        "name": "my study",
        "title": "Talking people",
        "seed": 1,
        "systems": {"ours": "ours", "rival": "rival"},
        "cases": [
            {"name": name, "condition": "cross", "reference": f"references/{name}.mp4"}
            for name in CASES
        ],
        "tasks": [
            {"kind": "pair", "pairs": [["ours", "rival"]], "raters_per_item": 2}
            | {"items_per_rater": 3}
        ],
        "rules": {"min_seconds": 0, "max_wrong_qualification": 0}
        | {"max_wrong_golds": 0, "max_wrong_traps": 0},
        **changes,
    }
    for name in CASES:
        write_clip(folder / "ours" / f"{name}.mp4", 100)
        write_clip(folder / "rival" / f"{name}.mp4", 200, num_frames=17 if name == "c2" else 13)
        write_clip(folder / "references" / f"{name}.mp4", 50)
    (folder / "study.yaml").write_text(yaml.safe_dump(raw))
    return load_study(folder)


def vote(rater: str, case: str, answer: str, *, left: bool = False, **changes) -> Vote:
    known = {"role": "study", "kind": "pair", "first": "ours", "second": "rival", **changes}
    return Vote(
        rater, case=case, condition="cross", dimension="", answer=answer, second_on_left=left,
        duration_s=9.0, **known,
    )  # fmt: skip


VOTES = (
    vote("r1", "c1", "first"),
    vote("r1", "c2", "second", left=True),
    vote("r2", "c1", "first", left=True),
    vote("r2", "c3", "tie"),
)


def keep(study: Study, votes: Sequence[Vote]) -> None:
    store = StudyStore(study.root / "votes.sqlite", study.fingerprint)
    store.add_votes(votes)
    store.close()


def run(folder: Path, out: Path, *words: str) -> int:
    command = ["votes", "pairs", str(folder), "--out", str(out), "--no-face-crop", *words]
    return main(command)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("study")
    keep(make(path), VOTES)
    return path


def test_every_vote_is_a_pair_as_its_rater_saw_it(folder: Path, tmp_path: Path, capsys) -> None:
    assert run(folder, tmp_path / "out") == 0
    assert "4 pairs (first 2, second 1, tie 1)" in capsys.readouterr().out
    pairs = [read_pair(entry, pictures=True) for entry in read_folder(tmp_path / "out")]
    said = {(p.judgment.rater, p.clip.meta.scene): p for p in pairs}
    assert len(said) == 4
    shown(said["r1", "c1"], ("ours", "rival"), "first")
    shown(said["r1", "c2"], ("rival", "ours"), "first")  # the rival was on the left, and preferred
    shown(said["r2", "c1"], ("rival", "ours"), "second")
    shown(said["r2", "c3"], ("ours", "rival"), "tie")
    assert {p.clip.meta.person for p in pairs} == {f"references/{name}.mp4" for name in CASES}


def shown(pair: Pair, systems: tuple[str, str], winner: str) -> None:
    """Pictures, motion and sound are those of the systems, in this order."""
    assert (pair.judgment.first, pair.judgment.second) == systems
    assert (pair.judgment.winner, pair.judgment.axis) == (winner, "overall")
    assert pair.pictures is not None
    bright = {"ours": 100, "rival": 200}
    for system, video in zip(systems, (pair.pictures.first, pair.pictures.second), strict=True):
        assert video.shape == (13, 3, SIDE, SIDE)  # where one has 17 frames it is cut
        assert float(video.float().mean()) == pytest.approx(bright[system], abs=3)  # two codecs
    assert float(pair.pictures.portrait.float().mean()) == pytest.approx(50, abs=3)
    assert not torch.equal(pair.first, pair.second)  # what the meter reads of either
    assert torch.equal(pair.first, pair.clip.motion)
    assert len(pair.clip.audio) == 13 * SAMPLES_PER_FRAME


def test_preferences_are_trained_on_them_with_persons_held_out(
    folder: Path, tmp_path: Path
) -> None:
    assert run(folder, tmp_path, "--validation", "0.4", "--frames", "9") == 0
    data = PairData(
        str(tmp_path / "train"), 1, validation=str(tmp_path / "validation"), videos=True
    )
    persons, winners = {}, []
    for name, loader in (("train", data.train_dataloader()), ("held", data.val_dataloader())):
        batches = list(loader)
        persons[name] = {person for batch in batches for person in batch.person}
        for batch in batches:
            assert batch.preferences is not None
            assert batch.preferences.first.shape[1] == 9
            assert batch.preferences.videos is not None
            assert batch.preferences.videos.second.shape == (1, 9, 3, SIDE, SIDE)
            winners.append(WINNERS[int(batch.preferences.winner[0])])
    assert not persons["train"] & persons["held"]
    assert sorted(winners) == ["first", "first", "second", "tie"]


def test_what_makes_no_pair_is_said(folder: Path, tmp_path: Path, capsys) -> None:
    study = make(tmp_path / "unequal")
    write_clip(study.root / "rival" / "c1.mp4", 200, num_frames=25)
    write_video(study.root / "ours" / "c3.mp4", 1, size=SIDE)
    write_video(study.root / "rival" / "c3.mp4", 2, size=SIDE)
    keep(study, VOTES)
    assert run(study.root, tmp_path / "out") == 0
    said = capsys.readouterr().out
    assert "case c1: its videos have 13 and 25 frames" in said
    assert "case c3: neither of its videos has sound" in said
    assert "1 pair (second 1); 3 votes without a pair" in said


@pytest.mark.parametrize(
    ("changes", "votes", "words"),
    [
        (
            {"cases": [{"name": "c1", "condition": "x"}]},
            [vote("r1", "c1", "tie")],
            "reference clip",
        ),
        ({}, [vote("r1", "c1", "tie", role="gold", expected="tie")], "none of 0 pairwise votes"),
        (
            {"rules": {**study_yaml()["rules"], "min_seconds": 60.0}},
            [vote("r1", "c1", "tie")],
            "none of 1 pairwise votes counts; r1: too fast",
        ),
        (
            {"tasks": [{**study_yaml()["tasks"][0], "systems": ["ours"]}]},
            [],
            "asks no pairwise question (it asks mos)",
        ),
    ],
)
def test_a_study_without_pairs_is_one_error(
    changes: dict, votes: list[Vote], words: str, tmp_path: Path, capsys
) -> None:
    keep(make(tmp_path, **changes), votes)
    assert run(tmp_path, tmp_path / "out") == 2
    assert words in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_the_command_says_what_is_missing(folder: Path, tmp_path: Path, capsys) -> None:
    study = make(tmp_path)
    for words, said in (
        (["votes", "pairs", str(folder)], "--out SHARDS"),
        (["votes", "export", str(folder)], "FILE is missing"),
        (["votes", "pairs", str(tmp_path), "--out", str(tmp_path / "o")], "no votes at"),
        (["votes", "pairs", str(folder), "--out", "o", "--frames", "12"], "4k + 1"),
    ):
        assert main(words) == 2
        assert said in capsys.readouterr().err
    keep(study, VOTES)
    (study.root / "rival" / "c2.mp4").unlink()
    assert run(tmp_path, tmp_path / "o") == 2
    assert "rival/c2.mp4 is missing" in capsys.readouterr().err
