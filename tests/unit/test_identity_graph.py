"""Who is who, where, and what is there twice: from vectors to the graph."""

import itertools
import sys
from argparse import Namespace
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import polars
import pytest
from scipy.cluster.hierarchy import fcluster, linkage

from avatar_v_data.curation import index
from avatar_v_data.curation.copies import SILENT, best_fits, copies, same_sound
from avatar_v_data.curation.graph import grouped
from avatar_v_data.curation.index import Pairs, near_pairs
from avatar_v_data.curation.people import background_distances, backgrounds, group_persons
from avatar_v_data.curation.plan import Grouping, Limit
from avatar_v_data.curation.select import select
from avatar_v_data.curation.table import CurationResults, clip_name
from avatar_v_eval.studies import identity_graph

LEVEL = 5


def rows(rng: np.random.Generator, num: int, width: int = 8) -> np.ndarray:
    found = rng.standard_normal((num, width))
    return (found / np.linalg.norm(found, axis=1, keepdims=True)).astype(np.float32)


def crowd(seed: int, num: int, spread: float = 0.25) -> np.ndarray:
    """Unit vectors of many persons, some of them look-alikes."""
    rng = np.random.default_rng(seed)
    found = rows(rng, num // 4)[rng.integers(0, num // 4, num)]
    found = found + spread * rows(rng, num) * rng.random((num, 1))
    return (found / np.linalg.norm(found, axis=1, keepdims=True)).astype(np.float32)


def of(vectors: np.ndarray, most: float, new: np.ndarray | None = None) -> Pairs:
    is_new = np.ones(len(vectors), bool) if new is None else new
    return near_pairs(vectors, most, is_new, Pairs.none())


def as_set(pairs: Pairs) -> set[tuple[int, int]]:
    return set(zip(pairs.left.tolist(), pairs.right.tolist(), strict=True))


def partition(labels: Any) -> list[int]:
    numbers: dict[int, int] = {}
    return [numbers.setdefault(label, len(numbers)) for label in np.asarray(labels).tolist()]


def test_every_near_pair_is_found_once_and_new_ones_alone_are_looked_for() -> None:
    vectors = crowd(0, 1500)
    apart = np.linalg.norm(vectors[:, None].astype(float) - vectors, axis=2)
    wanted = {(i, j) for i, j in np.argwhere(apart <= 0.3).tolist() if i < j}
    pairs = of(vectors, 0.3)
    assert as_set(pairs) == wanted
    assert len(pairs) == len(wanted) > 1500
    assert pairs.distance == pytest.approx(apart[pairs.left, pairs.right], abs=1e-6)
    new = np.arange(1500) % 7 == 3
    assert as_set(of(vectors, 0.3, new)) == {(i, j) for i, j in wanted if new[i] or new[j]}
    assert not len(of(vectors[:1], 0.3))


def test_faiss_finds_what_comparing_all_does(monkeypatch: pytest.MonkeyPatch) -> None:
    vectors = crowd(1, 6000)
    exact = of(vectors, 0.2)
    monkeypatch.setattr(index, "EXACT", 0)
    monkeypatch.setitem(sys.modules, "faiss", None)
    with pytest.raises(ValueError, match=r"6,000 clips .* pip install 'avatar_v\[index\]'"):
        of(vectors, 0.2)
    monkeypatch.undo()
    pytest.importorskip("faiss", reason="needs the extra index")
    monkeypatch.setattr(index, "EXACT", 0)
    found = of(vectors, 0.2)
    assert as_set(found) <= as_set(exact)
    assert len(found) > 0.99 * len(exact)
    distance = dict(zip(zip(exact.left, exact.right, strict=True), exact.distance, strict=True))
    assert all(
        distance[i, j] == d for i, j, d in zip(found.left, found.right, found.distance, strict=True)
    ), "to the last digit"
    assert partition(group_persons(found, 6000)) == partition(group_persons(exact, 6000))
    new = np.arange(6000) >= 5000
    known = exact.where(~new[exact.left] & ~new[exact.right])
    later = known.joined(near_pairs(vectors, 0.2, new, known))
    assert len(as_set(later)) == len(later) > 0.99 * len(exact)


def test_what_an_index_connects_is_compared_in_full(monkeypatch: pytest.MonkeyPatch) -> None:
    vectors = np.concatenate([crowd(4, 40, spread=0.1)[:1]] * 9) + 0.01 * rows(
        np.random.default_rng(0), 9
    )
    monkeypatch.setattr(index, "EXACT", 500)
    monkeypatch.setattr(
        index, "_by_cells", lambda vectors, most, new: [(new[:-1], new[1:]), (new[:1], new[5:6])]
    )
    vectors = np.concatenate([vectors, vectors[:, ::-1], vectors[:, ::-1]])
    pairs = of(vectors, 0.3)
    of_nine = {(i, j) for i, j in itertools.combinations(range(9), 2)}
    assert {pair for pair in as_set(pairs) if pair[1] < 9} == of_nine
    assert len(pairs) == 36 + 18 * 17 // 2
    is_new = np.arange(27) == 8
    monkeypatch.setattr(index, "_by_cells", lambda vectors, most, new: [(new, np.array([3]))])
    known = pairs.where((pairs.left != 8) & (pairs.right != 8))
    for most, num in ((26, 8), (8, 1)):
        monkeypatch.setattr(index, "EXACT", most)
        assert len(near_pairs(vectors, 0.3, is_new, known)) == num, "unless they are too many"


def test_too_many_pairs_are_one_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index, "MOST_PAIRS", 100)
    with pytest.raises(
        ValueError, match=r"more than 100 pairs of 300 clips lie within 2 .*smaller"
    ):
        of(crowd(0, 300), 2.0)


@pytest.mark.parametrize("same", [0.15, 0.3, 0.5])
def test_persons_are_those_of_complete_linkage(same: float) -> None:
    vectors = crowd(2, 400, spread=0.5)
    tree = linkage(vectors.astype(float), "complete")
    persons = group_persons(of(vectors, same), len(vectors))
    assert partition(persons) == partition(fcluster(tree, same, "distance"))
    assert 1 < max(Counter(persons.tolist()).values()) < 400


def test_a_chain_of_look_alikes_is_not_one_person_nor_are_two_faces_of_one_frame() -> None:
    angles = np.radians([0, 90, 5, 20, 40, 95])
    faces = np.stack([np.cos(angles), np.sin(angles)], 1).astype(np.float32)
    pairs = of(faces, 2 * np.sin(np.radians(30) / 2))
    assert partition(group_persons(pairs, 6)) == [0, 1, 0, 0, 2, 1]
    apart = pairs.where((pairs.left != 0) | (pairs.right != 2))
    persons = group_persons(apart, 6)
    assert persons[0] != persons[2]
    assert partition(group_persons(Pairs.none(), 2)) == [0, 1]


def test_backgrounds_are_compared_where_both_are_seen() -> None:
    plain = [[100.0, 100.0, 100.0], None, [50.0, 50.0, 50.0]]
    behind = [[104.0, 100.0, 102.0], [0.0, 0.0, 0.0], None]
    hidden = [None, [9.0, 9.0, 9.0], None]
    pairs = Pairs.of(np.array([0, 0]), np.array([1, 2]), np.zeros(2, np.float32))
    found = background_distances(backgrounds([plain, behind, hidden]), pairs)
    assert found.tolist() == [2.0, 255.0]


def test_the_better_copy_stays() -> None:
    rng = np.random.default_rng(0)
    sound, other = rng.standard_normal((2, 200))
    pictures = np.full((4, 12), 80.0, np.float32)
    pictures[2] += 40
    alike = of(pictures, 6.0 * 12**0.5)
    twins = same_sound(alike, [sound[37:], sound + 0.1, sound, other], 0.8)
    assert copies(twins, [2.0, 3.0, 4.0, 5.0]) == {0: 1}, "another picture, another sound: none"
    chain = Pairs.of(np.array([0, 1]), np.array([1, 2]), np.zeros(2, np.float32))
    assert copies(chain, [3.0, 2.0, 1.0]) == {1: 0}, "a copy of a copy alone is none of the best"


def test_loudness_is_compared_at_every_shift() -> None:
    rng = np.random.default_rng(1)
    long = rng.standard_normal(120).cumsum() - 40
    cut = long[30:90] + 0.5 * rng.standard_normal(60)
    pairs = [(long, cut), (long, rng.standard_normal(80)), (cut[:20], long), (cut[:1], long[:1])]
    wanted = []
    for one, other in pairs[:3]:
        shorter, longer = sorted((one, other), key=len)
        least = max(min(38, len(shorter)), len(shorter) // 2)
        wanted.append(max(
            np.corrcoef(
                shorter[max(-shift, 0) : len(longer) - shift],
                longer[max(shift, 0) : shift + len(shorter)],
            )[0, 1]
            for shift in range(least - len(shorter), len(longer) - least + 1)
        ))  # fmt: skip
    pairs += [(long, np.full(60, -70.0)), (np.zeros(0), long)]
    curves = [(one[:, None], other[:, None]) for one, other in pairs]
    found, shifts = best_fits(*zip(*curves, strict=True), 38, SILENT)
    assert shifts[0] == 30
    assert found.tolist() == pytest.approx([*wanted, -1, -1, -1], abs=1e-9)
    swapped, _ = best_fits(*zip(*((b, a) for a, b in curves), strict=True), 38, SILENT)
    assert swapped.tolist() == found.tolist()


# The graph


def clip(file: str, face: np.ndarray, scene: int, sound: np.ndarray, **more: Any) -> dict[str, Any]:
    colour = [40 * scene] * 3
    return {
        "file": file, "start": 0, "stop": 100, "seconds": 4.0, "sharpness": 1.0,
        "face": face.tolist(), "background": [colour, None], "thumbnail": [colour, [0, 0, 0]],
        "loudness": sound.tolist(), **more,
    }  # fmt: skip


def many(num: int = 60) -> list[dict[str, Any]]:
    """Five clips a person in three scenes; every tenth file was uploaded again."""
    rng = np.random.default_rng(LEVEL)
    faces = crowd(3, num, spread=0.2)
    found = []
    for n in range(num):
        sound = rng.standard_normal(100)
        found.append(clip(f"{n:03d}.mp4", faces[n], n % 3, sound))
        if n % 10 == 0:
            found.append(clip(f"{n:03d}-again.mp4", faces[n], n % 3, sound, sharpness=0.5))
    return sorted(found, key=clip_name)


def said(clips: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    columns = ("person", "scene", "copy_of", "num_partners")
    return [tuple(c[column] for column in columns) for c in sorted(clips, key=clip_name)]


def test_new_clips_give_the_graph_of_all_and_only_they_are_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    grouping = Grouping({"face": 0.3})
    whole = many()
    grouped(whole, grouping, tmp_path / "whole.parquet")
    assert sum(c["copy_of"] != "" for c in whole) == 6
    assert all(c["copy_of"] == c["file"].replace("-again", "") + ":0-100" for c in whole
               if "again" in c["file"])  # fmt: skip
    looked: list[int] = []
    true = near_pairs

    def counted(vectors: Any, most: float, is_new: np.ndarray, known: Pairs) -> Pairs:
        looked.append(int(is_new.sum()))
        return true(vectors, most, is_new, known)

    monkeypatch.setattr("avatar_v_data.curation.graph.near_pairs", counted)
    file = tmp_path / "graph.parquet"
    for chosen in (slice(0, None, 3), slice(0, None, 2), slice(None)):
        part = many()[chosen]
        grouped(part, grouping, file)
    assert looked[::2] == [22, 22, 33]
    assert said(part) == said(whole)
    part[5]["face"] = part[40]["face"]
    grouped(part, grouping, file)
    assert looked[-1] == 1, "what has changed is new"
    again = [dict(one) for one in part]
    grouped(again, grouping, tmp_path / "again.parquet")
    assert said(again) == said(part)
    looked.clear()
    grouped(part[:50], grouping, file)
    assert not looked
    file.write_bytes(b"nothing")
    with pytest.raises(ValueError, match=r"graph\.parquet is damaged: delete it"):
        grouped(part, grouping, file)


def test_vectors_of_videos_find_copies_whose_pictures_differ(tmp_path: Path) -> None:
    """A caption over the copy: thumbnails lie apart, the sound is one."""
    clips = many(20)
    for number, one in enumerate(clips):
        one["video"] = np.eye(30)[number + ("again" in one["file"])].tolist()
        one["thumbnail"][0] = [40 * (number % 6)] * 3
    for more, num in (({}, 0), ({"same_video": {"video": 0.1}}, 2)):
        grouped(clips, Grouping({"face": 0.3}, **more), tmp_path / f"{num}.parquet")
        assert sum(c["copy_of"] != "" for c in clips) == num
    del clips[3]["video"]
    with pytest.raises(ValueError, match="grouping: video: not each clip"):
        grouped(clips, Grouping({"face": 0.3}, same_video={"video": 0.1}), tmp_path / "x.parquet")


def test_two_clips_are_joined_as_faces_backgrounds_and_length_say(tmp_path: Path) -> None:
    clips, file = many(), tmp_path / "graph.parquet"
    clips[7]["seconds"] = 1.0
    faces = np.array([c["face"] for c in clips])
    grouped(clips, Grouping({"face": 0.3}), file)
    joined = Counter()
    for i, j in itertools.permutations(range(len(clips)), 2):
        one, other = clips[i], clips[j]
        if one["person"] == other["person"]:
            assert np.linalg.norm(faces[i] - faces[j]) <= 0.3
            is_alike = one["background"] == other["background"]
            assert (one["scene"] == other["scene"]) == is_alike
            is_one = is_alike or one["copy_of"] or other["copy_of"] or 7 in (i, j)
            joined[i] += not is_one
    assert [c["num_partners"] for c in clips] == [joined[i] for i in range(len(clips))]
    assert sum(joined.values()) > 50
    stored = polars.read_parquet(file)
    assert stored["person"].to_list() == [c["person"] for c in clips]
    near = stored.explode("near", "face_distance", "background_distance").drop_nulls("near")
    assert near["face_distance"].max() <= 0.3
    assert set(near["background_distance"].to_list()) == {0.0, 40.0, 80.0}


def test_a_head_alone_is_no_scene_to_pair_with(tmp_path: Path) -> None:
    """Nor is a background of which no piece is seen in the other clip, too."""
    sounds, file = np.random.default_rng(0).standard_normal((4, 100)), tmp_path / "graph.parquet"
    clips = [clip(f"{n}.mp4", np.array([1.0, 0.0]), n, s) for n, s in enumerate(sounds)]
    clips[2]["background"] = clips[3]["background"] = [None, None]
    grouped(clips, Grouping({"face": 0.3}), file)
    assert [c["num_partners"] for c in clips] == [1, 1, 0, 0]
    assert [c["num_scenes"] for c in clips] == [2, 2, 0, 0]
    assert len({c["scene"] for c in clips}) == 3
    limits = {"num_scenes": Limit(min=2.0)}
    assert [c["file"] for c in select(CurationResults(clips), "sft", limits).clips] == [
        "0.mp4", "1.mp4"
    ]  # fmt: skip
    clips[2]["background"] = [None, [0, 0, 0]]
    pair = [clips[0], clips[2]]
    grouped(pair, Grouping({"face": 0.3}), file)
    assert pair[0]["scene"] == pair[1]["scene"]
    assert [c["num_partners"] for c in pair] == [0, 0]
    near = polars.read_parquet(file)["background_distance"].drop_nulls().explode()
    assert near.to_list() == [255.0]


def test_other_vectors_must_agree_and_two_faces_of_one_frame_are_two_people(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    face, sounds = np.array([1.0, 0.0]), rng.standard_normal((5, 100))
    voices = [[1.0, 0.0], [0.0, 1.0], None, [1.0, 0.0], [1.0, 0.0]]
    clips = [
        clip(f"{n}.mp4", face, n, s, voice=v)
        for n, (s, v) in enumerate(zip(sounds, voices, strict=True))
    ]
    clips[4] |= {"file": "3.mp4", "start": 99, "stop": 180}
    grouped(clips, Grouping({"face": 0.3, "voice": 0.5}), tmp_path / "graph.parquet")
    zero, one, _, three, four = (c["person"] for c in clips)
    assert zero != one
    assert three != four
    assert zero in (three, four)
    clips[1]["voice"] = [3.0, 4.0]
    with pytest.raises(ValueError, match=r"voice of 1\.mp4:0-100 is no unit vector"):
        grouped(clips, Grouping({"face": 0.3, "voice": 0.5}), tmp_path / "graph.parquet")
    with pytest.raises(ValueError, match="grouping: gait: no clip has such a vector"):
        grouped(clips, Grouping({"gait": 0.3}), tmp_path / "graph.parquet")
    with pytest.raises(ValueError, match=r"voice: not each clip \(2\.mp4:0-100\) has such"):
        grouped(clips, Grouping({"voice": 0.3}), tmp_path / "graph.parquet")


def test_the_study_counts_pairs_as_one_by_one(capsys: pytest.CaptureFixture[str]) -> None:
    findings = identity_graph.measure(Namespace(sizes=[1000], seed=1))
    found = {key: number.value for key, number in findings.numbers.items()}
    assert found["recall_1000"] > 0.9
    assert found["chains_1000"] < found["precision_1000"]
    assert found["near_1000"] == found["copies_recall_1000"] == found["added_same_1000"] == 1
    clips = identity_graph.planted(300, 0)
    persons, scenes, _ = identity_graph.resolved(
        clips, everything := identity_graph.compare(
            clips.looks, Grouping(), np.ones(300, bool), identity_graph.NOTHING
        )
    )  # fmt: skip
    pairs = list(itertools.combinations(range(300), 2))

    def edges(of: np.ndarray, where: np.ndarray) -> set[tuple[int, int]]:
        return {(i, j) for i, j in pairs if of[i] == of[j] and where[i] != where[j]}

    said, true = edges(persons, scenes), edges(clips.persons, clips.scenes)
    rows = {
        key: value
        for key, value, *_ in identity_graph.joined_rows(clips, everything.near, persons, scenes)
    }
    assert rows["edges_recall"] == len(said & true) / len(true)
    assert rows["edges_precision"] == len(said & true) / len(said)
    groups = [
        {frozenset(np.flatnonzero(of == label).tolist()) for label in of}
        for of in (persons, clips.persons)
    ]
    assert rows["whole"] == len(groups[0] & groups[1]) / len(groups[1])
    assert rows["pure"] == len(groups[0] & groups[1]) / len(groups[0])
