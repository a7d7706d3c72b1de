"""Shards of pairs: what is written comes back, what is broken is named, and batches of them."""

import dataclasses
import json
from pathlib import Path

import pytest
import torch

from avatar_v.media.reading import encode_video_bytes
from avatar_v.shards.arrays import encode_arrays
from avatar_v.shards.loader import read_folder
from avatar_v.shards.pair_data import PairData
from avatar_v.shards.pairs import (
    JUDGMENT,
    PORTRAIT,
    TRACKS,
    VIDEOS,
    WINNERS,
    Judgment,
    Pair,
    encode_pair,
    read_judgment,
    read_pair,
)
from avatar_v.shards.writer import RawClip, write_shard
from tiny_run import make_clip, make_pair, make_video_pair

NUM = 8


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("pairs")
    write_shard(path / "a.tar", [encode_pair(make_pair(i)) for i in range(NUM)])
    return path


def test_a_pair_comes_back_as_it_was(folder: Path) -> None:
    entry = read_folder(folder)[3]
    pair, back = make_pair(3), read_pair(entry)
    assert back.judgment == pair.judgment == read_judgment(entry)
    assert back.judgment.winner == "tie"
    for name in ("first", "second", "reference", "reference_valid"):
        assert torch.equal(getattr(back, name), getattr(pair, name)), name
    assert back.clip.meta == pair.clip.meta
    assert torch.equal(back.clip.audio, pair.clip.audio)


def damaged(tmp_path: Path, member: str, data: bytes) -> None:
    members = {**encode_pair(make_pair(0)).members, member: data}
    write_shard(tmp_path / "x.tar", [RawClip("clip0000", members)])
    (entry,) = read_folder(tmp_path)
    read_pair(entry)


def judgment(**changes) -> bytes:
    row = {"winner": "first", "rater": "r", "axis": "overall", "first": "", "second": ""}
    return json.dumps({**row, **changes}).encode()


def tracks(**changes) -> bytes:
    pair = make_pair(0)
    arrays = {name: getattr(pair, name) for name in ("first", "second", "reference")}
    arrays["reference_valid"] = pair.reference_valid
    arrays |= changes
    return encode_arrays({name: value.numpy() for name, value in arrays.items()})


@pytest.mark.parametrize(
    ("member", "data", "words"),
    [
        (JUDGMENT, b"", "not JSON"),
        (JUDGMENT, b"[" * 100_000, "not JSON"),
        (JUDGMENT, b"[1]", "is an object, got"),
        (JUDGMENT, judgment(winner="third"), "winner is one of"),
        (JUDGMENT, judgment(winner=0), "winner is one of"),
        (JUDGMENT, judgment(rater=""), "rater"),
        (JUDGMENT, judgment(rater="r" * 1000), "at most 200"),
        (JUDGMENT, judgment(mood="good"), "mood"),
        (TRACKS, b"nonsense" * 20, "damaged"),
        (TRACKS, encode_arrays({"first": torch.zeros(1).numpy()}), "second"),
        (TRACKS, tracks(first=torch.zeros(5, 16)), "first is"),
        (TRACKS, tracks(second=torch.zeros(33, 16, dtype=torch.float64)), "second is"),
        (TRACKS, tracks(second=torch.full((33, 16), torch.nan)), "no motion"),
        (TRACKS, tracks(reference=torch.full((33, 16), 1e30)), "no motion"),
        (TRACKS, tracks(reference=torch.zeros(3, 16)), "reference is"),
        (TRACKS, tracks(reference_valid=torch.ones(33)), "truth values"),
        (
            TRACKS,
            tracks(reference=torch.zeros(6, 16), reference_valid=torch.ones(6, dtype=torch.bool)),
            "4k",
        ),
    ],
)
def test_what_is_no_pair_is_named(tmp_path: Path, member: str, data: bytes, words: str) -> None:
    with pytest.raises(ValueError, match=r"x\.tar, clip clip0000.pair") as said:
        damaged(tmp_path, member, data)
    assert words in str(said.value)


def test_clips_that_are_no_pairs_are_refused_before_training(tmp_path: Path) -> None:
    write_shard(tmp_path / "clips.tar", [make_clip(0)])
    with pytest.raises(ValueError, match=r"no pair, without pair\.json, pair\.npz; make"):
        PairData(str(tmp_path), 1).setup()
    with pytest.raises(ValueError, match="second has numbers that are no motion"):
        encode_pair(dataclasses.replace(make_pair(0), second=torch.full((33, 16), torch.nan)))


def test_a_batch_has_both_samples_and_the_condition(folder: Path) -> None:
    data = PairData(str(folder), NUM, validation=str(folder))
    (batch,) = data.val_dataloader()
    assert batch.preferences is not None
    assert batch.reference is not None
    pairs = [make_pair(int(key[4:])) for key in batch.key]
    assert [WINNERS[i] for i in batch.preferences.winner] == [
        pair.judgment.winner for pair in pairs
    ]
    assert batch.preferences.axis == tuple(pair.judgment.axis for pair in pairs)
    for i, pair in enumerate(pairs):
        assert torch.equal(batch.preferences.first[i], pair.first)
        assert torch.equal(batch.preferences.second[i], pair.second)
        assert torch.equal(batch.reference.motion[i], pair.reference)
        assert torch.equal(batch.motion[i], pair.clip.motion)


def test_references_of_several_lengths_show_no_face_behind_their_end(tmp_path: Path) -> None:
    def shorter(pair: Pair) -> Pair:
        return dataclasses.replace(
            pair, reference=pair.reference[:9], reference_valid=pair.reference_valid[:9]
        )

    write_shard(tmp_path / "a.tar", [encode_pair(make_pair(0)), encode_pair(shorter(make_pair(1)))])
    (batch,) = PairData(str(tmp_path), 2, validation=str(tmp_path)).val_dataloader()
    assert batch.reference is not None
    assert batch.reference.valid.sum(1).tolist() == [33, 9]


def test_judged_videos_come_back_where_they_are_asked_for(folder: Path, tmp_path: Path) -> None:
    pair = make_video_pair(1)
    write_shard(tmp_path / "a.tar", [encode_pair(pair)])
    (entry,) = read_folder(tmp_path)
    back = read_pair(entry, pictures=True)
    assert pair.pictures is not None
    assert back.pictures is not None
    for name in ("first", "second"):
        error = getattr(back.pictures, name).float() - getattr(pair.pictures, name).float()
        assert float(error.abs().mean()) < 2  # of 255, which the codec loses
    assert torch.equal(back.pictures.portrait, pair.pictures.portrait)
    assert read_pair(entry).pictures is None
    (batch,) = PairData(str(tmp_path), 1, validation=str(tmp_path)).val_dataloader()
    assert batch.video is None
    assert batch.preferences is not None
    assert batch.preferences.videos is None
    with pytest.raises(ValueError, match=r"a pair of motion alone, without pair\.first\.mp4"):
        PairData(str(folder), 1, videos=True).setup()


def test_a_batch_has_the_pictures_of_its_pairs(tmp_path: Path) -> None:
    def with_portraits(pair: Pair, *shape: int) -> Pair:
        assert pair.pictures is not None
        pictures = torch.full(shape, 255, dtype=torch.uint8)
        return dataclasses.replace(
            pair, pictures=dataclasses.replace(pair.pictures, portrait=pictures)
        )

    for name, side in (("good", 32), ("other", 16)):
        pairs = [
            with_portraits(make_video_pair(0), 3, 3, 32, 32),
            with_portraits(make_video_pair(1), 1, 3, side, side),
        ]
        write_shard(tmp_path / name / "a.tar", map(encode_pair, pairs))
    folder = str(tmp_path / "good")
    (batch,) = PairData(folder, 2, validation=folder, videos=True).val_dataloader()
    assert batch.preferences is not None
    videos = batch.preferences.videos
    assert videos is not None
    assert videos.first.shape == videos.second.shape == (2, 33, 3, 32, 32)
    assert videos.first[0].mean() > videos.second[0].mean()  # the own one is bright
    assert videos.first[1].mean() < videos.second[1].mean()
    assert videos.portraits_valid.tolist() == [[True] * 3, [True, False, False]]
    assert bool((videos.portraits[videos.portraits_valid] == 1).all())
    other = PairData(str(tmp_path / "other"), 2, videos=True).train_dataloader()
    with pytest.raises(ValueError, match=r"portrait have .*16x16"):
        list(other)


@pytest.mark.parametrize(
    ("member", "data", "words"),
    [
        (VIDEOS[1], b"no video", "pair.second.mp4: not a readable video"),
        (VIDEOS[0], encode_video_bytes(torch.zeros(5, 3, 32, 32).byte()), "two of 33 frames"),
        (PORTRAIT, b"no arrays", "pair.portrait.npz: damaged"),
        (PORTRAIT, encode_arrays({"faces": torch.zeros(1).numpy()}), "pictures"),
        (PORTRAIT, encode_arrays({"pictures": torch.zeros(1, 3, 8, 8).numpy()}), "portrait are"),
    ],
)
def test_pictures_that_do_not_fit_are_named(
    member: str, data: bytes, words: str, tmp_path: Path
) -> None:
    members = {**encode_pair(make_video_pair(0)).members, member: data}
    write_shard(tmp_path / "x.tar", [RawClip("clip0000", members)])
    (entry,) = read_folder(tmp_path)
    with pytest.raises(ValueError, match=r"x\.tar, clip clip0000") as said:
        read_pair(entry, pictures=True)
    assert words in str(said.value)


def winners(data: PairData) -> dict[str, int]:
    found = {}
    for batch in data.train_dataloader():
        assert batch.preferences is not None
        found |= dict(zip(batch.key, batch.preferences.winner.tolist(), strict=True))
    return found


def test_ties_may_be_left_out_and_winners_dealt_anew(folder: Path, tmp_path: Path) -> None:
    true = winners(PairData(str(folder), 2))
    assert len(true) == NUM
    without = winners(PairData(str(folder), 2, ties=False))
    assert without == {key: winner for key, winner in true.items() if winner != 2}
    dealt = winners(PairData(str(folder), 2, shuffled=True))
    assert dealt != true
    assert sorted(dealt.values()) == sorted(true.values())
    assert dealt == winners(PairData(str(folder), 2, shuffled=True, cache=True))
    write_shard(tmp_path / "ties.tar", [encode_pair(make_pair(3))])
    with pytest.raises(ValueError, match="all pairs are ties"):
        PairData(str(tmp_path), 1, ties=False).setup()


def test_a_judgment_says_what_it_must() -> None:
    with pytest.raises(ValueError, match="rater and an axis"):
        Judgment("first", "")
