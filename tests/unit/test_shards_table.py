"""The columns of an index say what its entries say, and stay small."""

import gc
import tracemalloc

import pytest

from avatar_v.shards.buckets import Partners, plan_epoch
from avatar_v.shards.datamodule import sorted_clips
from avatar_v.shards.table import MAX_NUMBER, ClipTable
from avatar_v.shards.writer import ClipEntry, Member
from avatar_v_eval.processes import in_a_process

MEMBERS = ("audio.flac", "face.npz", "json", "latents.npy", "motion.npy", "stills.npz")
MOST_BYTES = 200
"""A clip, in the index of a rank: 5.6 million clips are 9 GB for eight ranks."""


def entry(number: int, **options) -> ClipEntry:
    start = 1024 + (number % 1000) * 900_000
    fields = {
        "shard": f"train/import-{number // 1000:06d}.tar",
        "key": f"an-interview-{number // 8:06d}-{number % 8:03d}",
        "person": f"an-interview-{number // 16:06d}",
        "scene": f"an-interview-{number // 8:06d}",
        "num_frames": 161,
        "height": 480,
        "width": 480,
        "vae_hash": "0123456789abcdef",
        "members": {
            name: Member(start + 512 * i, 700 + number % 97, number * 2_654_435_761 % (1 << 32))
            for i, name in enumerate(MEMBERS)
        },
    }
    return ClipEntry(**{**fields, **options})


def test_a_table_gives_back_its_entries() -> None:
    clips = [entry(n) for n in range(0, 5000, 7)]
    clips[3] = entry(21, num_frames=25, vae_hash=None, members={"json": Member(5, 6, 7)})
    clips[5] = entry(35, person="Ærøskøbing \ud800", members={})
    table = ClipTable(clips)
    assert len(table) == len(clips)
    assert list(table) == clips
    assert table[-1] == clips[-1]
    assert table[2:9:3] == clips[2:9:3]
    with pytest.raises(IndexError):
        table[len(clips)]


def test_equal_names_are_equal_numbers_in_any_shard() -> None:
    persons = ["a", "b", "a", "", "b", "c", "a"]
    table = ClipTable(
        entry(n, shard=f"{n // 2}.tar", person=p, scene=p * 2) for n, p in enumerate(persons)
    )
    for numbers in (table.persons, table.scenes):
        same = numbers[:, None] == numbers[None]
        assert same.tolist() == [[a == b for b in persons] for a in persons]


def test_kinds_are_what_differs_and_who_has_it() -> None:
    clips = [entry(n, num_frames=(25, 33, 25, 41)[n % 4]) for n in range(10)]
    kinds = ClipTable(clips).kinds()
    assert [(first.key, rows.tolist()) for first, rows in kinds] == [
        (clips[0].key, [0, 2, 4, 6, 8]), (clips[1].key, [1, 5, 9]), (clips[3].key, [3, 7])
    ]  # fmt: skip
    assert ClipTable([]).kinds() == []


def test_words_of_one_hash_stay_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("avatar_v.shards.table.hash", lambda word: 7, raising=False)
    clips = [entry(n, shard=f"{n}.tar", person=f"p{n % 3}") for n in range(9)]
    table = ClipTable(clips)
    assert list(table) == clips
    assert len(set(table.persons.tolist())) == 3
    with pytest.raises(ValueError, match=r"is in 0\.tar and in 4\.tar"):
        ClipTable([*clips[:4], entry(0, shard="4.tar")])


def test_places_beyond_the_columns_are_refused() -> None:
    far = {"json": Member(0, 10, 1), "motion.npy": Member(MAX_NUMBER + 1, 10, 1)}
    with pytest.raises(ValueError, match="it spans 4 GiB or more"):
        ClipTable([entry(0, members=far)])
    beyond = {"json": Member(1 << 40, 10, 1), "motion.npy": Member((1 << 40) + 10, 10, 1)}
    assert ClipTable([entry(0, members=beyond)])[0].members == beyond


def bytes_of_index(num: int) -> tuple[float, float, float, float]:
    """Bytes a clip: the columns say so, found, found at most while it was read, and found with
    pairs and the plan of an epoch."""
    ClipTable(map(entry, range(100)))  # what is made once
    gc.collect()
    tracemalloc.start()
    table = ClipTable(map(entry, range(num)))
    found = tracemalloc.get_traced_memory()
    members = sorted_clips(table, None, uses_latents=True)
    partners = {b: Partners(table, own, same_scene=False) for b, own in members.items()}
    options = {"batch_size": 1, "seed": 0, "epoch": 0, "shuffle": True, "fill": True}
    plan = plan_epoch(members, rank=3, num_ranks=16, partners=partners, **options)
    whole = tracemalloc.get_traced_memory()[0]
    assert len(plan) == -(-num // 16)
    return table.num_bytes / num, found[0] / num, found[1] / num, whole / num


def test_an_index_and_its_plan_stay_below_200_bytes_a_clip() -> None:
    # A process of its own: the checks of shapes in this one take half a minute for 120,000 members.
    columns, found, most, whole = in_a_process(bytes_of_index, 8_000)
    assert whole < MOST_BYTES
    assert abs(found - columns) < 0.05 * columns
    assert most < 1.5 * MOST_BYTES
