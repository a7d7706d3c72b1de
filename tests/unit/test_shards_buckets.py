"""The plan of an epoch: who is where, once, with whom."""

import dataclasses
from itertools import chain

import numpy as np
import pytest

from avatar_v.shards.buckets import (
    BatchPlan,
    Bucket,
    Partners,
    assign,
    natural_buckets,
    plan_epoch,
)
from avatar_v.shards.table import ClipTable
from avatar_v.shards.writer import ClipEntry


def entry(
    number: int, *, frames: int = 101, height: int = 64, width: int = 64, scene: int | None = None
) -> ClipEntry:
    return ClipEntry(
        shard="a.tar",
        key=f"k{number}",
        person=f"p{number % 3}",
        scene=f"s{number if scene is None else scene}",
        num_frames=frames,
        height=height,
        width=width,
        vae_hash=None,
        members={},
    )


SMALL, LONG, LARGE = Bucket(64, 64, 49), Bucket(64, 64, 101), Bucket(128, 128, 49)
MEMBERS = {SMALL: np.arange(10), LARGE: np.arange(10, 27)}


def plans(
    *,
    epoch: int = 0,
    seed: int = 5,
    ranks: int = 1,
    batch_size: int = 4,
    members=MEMBERS,
    **options,
):
    options = {"shuffle": True, "fill": True, **options}
    return [
        plan_epoch(
            members,
            batch_size=batch_size,
            seed=seed,
            epoch=epoch,
            rank=rank,
            num_ranks=ranks,
            **options,
        )
        for rank in range(ranks)
    ]


def clips_of(plan) -> list[int]:
    return list(chain.from_iterable(batch.clips for batch in plan))


def test_natural_buckets_are_what_occurs() -> None:
    clips = [entry(0), entry(1, frames=49), entry(2, height=128, width=128), entry(3)]
    found = natural_buckets(clips)
    assert found == [Bucket(64, 64, 49), Bucket(64, 64, 101), Bucket(128, 128, 101)]


@pytest.mark.parametrize(
    ("clip", "expected"),
    [
        (entry(0, frames=200), LONG),  # the longest that fits
        (entry(0, frames=100), SMALL),
        (entry(0, frames=48), None),  # too short for any
        (entry(0, frames=49, height=256, width=256), LARGE),  # reduced to the largest
        (entry(0, frames=101, height=96, width=96), LONG),  # never enlarged
        (entry(0, frames=101, height=64, width=128), None),  # never stretched
    ],
)
def test_a_clip_goes_to_the_largest_bucket_it_fills(clip: ClipEntry, expected: Bucket) -> None:
    assert assign(clip, [SMALL, LONG, LARGE], uses_latents=False) == expected


def test_latents_are_not_resized() -> None:
    clip = entry(0, frames=49, height=128, width=128)
    assert assign(clip, [SMALL], uses_latents=False) == SMALL
    assert assign(clip, [SMALL], uses_latents=True) is None


def test_without_filling_every_clip_comes_once() -> None:
    (plan,) = plans(fill=False)
    assert sorted(clips_of(plan)) == list(range(27))
    assert sorted(len(batch.clips) for batch in plan) == [1, 2, 4, 4, 4, 4, 4, 4]


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_ranks_share_the_clips_in_full_batches_of_one_size(ranks: int) -> None:
    per_rank = plans(ranks=ranks)
    assert len({len(plan) for plan in per_rank}) == 1
    for step in zip(*per_rank, strict=True):
        assert len({batch.bucket for batch in step}) == 1
        together = list(chain.from_iterable(batch.clips for batch in step))
        assert len(together) == 4 * ranks
        assert set(together) <= set(MEMBERS[step[0].bucket])
    everything = list(chain.from_iterable(map(clips_of, per_rank)))
    assert set(everything) == set(range(27))  # none is lost
    assert max(map(everything.count, range(27))) <= 2  # those that fill up come twice


def test_the_order_is_the_seed_s_and_the_epoch_s() -> None:
    (first,), (again,) = plans(), plans()
    assert list(first) == list(again)
    assert clips_of(first) != clips_of(plans(epoch=1)[0])
    assert clips_of(first) != clips_of(plans(seed=6)[0])
    in_order = clips_of(plans(shuffle=False, fill=False)[0])
    assert in_order == list(range(27))


def test_more_clips_than_there_are_is_possible() -> None:
    (plan,) = plans(batch_size=64)
    assert [len(batch.clips) for batch in plan] == [64, 64]


def test_partners_are_the_same_person_elsewhere() -> None:
    clips = [entry(n, scene=n // 9) for n in range(27)]  # 3 persons in 3 scenes, 3 clips in each
    partners = Partners(ClipTable(clips), np.arange(27), same_scene=False)
    assert partners.paired.tolist() == list(range(27))
    for index in range(27):
        found = partners.of(index)
        assert len(found) == 6
        assert {clips[other].person for other in found} == {clips[index].person}
        assert clips[index].scene not in {clips[other].scene for other in found}


def test_the_switch_allows_the_same_scene_but_never_the_clip_itself() -> None:
    clips = ClipTable(entry(n, scene=0) for n in range(4))  # person 0 has 0 and 3, the others one
    assert Partners(clips, np.arange(4), same_scene=False).paired.tolist() == []
    same = Partners(clips, np.arange(4), same_scene=True)
    assert same.paired.tolist() == [0, 3]
    assert [same.of(n) for n in range(4)] == [[3], [], [], [0]]
    nobody = Partners(ClipTable([]), np.arange(0), same_scene=False)
    assert nobody.paired.tolist() == []


def naive_partners(
    clips: list[ClipEntry], members: list[int], *, same_scene: bool
) -> dict[int, list[int]]:
    return {
        index: [
            other
            for other in members
            if other != index
            and clips[other].person == clips[index].person
            and (same_scene or clips[other].scene != clips[index].scene)
        ]
        for index in members
    }


@pytest.mark.parametrize("same_scene", [False, True])
def test_partners_and_draws_are_those_of_plain_lists(same_scene: bool) -> None:
    rng = np.random.default_rng(0)
    clips = [
        dataclasses.replace(entry(n), person=f"p{rng.integers(7)}", scene=f"s{rng.integers(4)}")
        for n in range(90)
    ]
    members = np.flatnonzero(rng.random(90) < 0.8)
    expected = naive_partners(clips, members.tolist(), same_scene=same_scene)
    partners = Partners(ClipTable(clips), members, same_scene=same_scene)
    assert {index: partners.of(index) for index in members.tolist()} == expected
    assert partners.paired.tolist() == [index for index, found in expected.items() if found]
    order, draws = rng.permutation(partners.paired), rng.random(len(partners.paired))
    drawn = [
        expected[i][int(draw * len(expected[i]))] for i, draw in zip(order, draws, strict=True)
    ]
    assert partners.draw(order, draws).tolist() == drawn


def naive_plan(members, partners, *, batch_size, seed, epoch, rank, num_ranks) -> list[BatchPlan]:
    """The order that checkpoints of before continue in, in lists of Python."""
    rng, groups = np.random.default_rng([seed, epoch]), []
    for bucket, indices in sorted(members.items()):
        order = rng.permutation(indices).tolist()
        draws = rng.random(len(order))
        chosen = [partners[i][int(d * len(partners[i]))] for i, d in zip(order, draws, strict=True)]
        for start in range(0, len(order), batch_size * num_ranks):
            slots = [s % len(order) for s in range(start, start + batch_size * num_ranks)]
            groups.append((bucket, order, chosen, slots))
    groups = [groups[i] for i in rng.permutation(len(groups))]
    return [
        BatchPlan(
            bucket,
            tuple(order[slot] for slot in slots[rank::num_ranks]),
            tuple(chosen[slot] for slot in slots[rank::num_ranks]),
            (seed, epoch, number, rank),
        )
        for number, (bucket, order, chosen, slots) in enumerate(groups)
    ]


def test_the_order_is_the_one_of_plain_lists() -> None:
    clips = [entry(n) for n in range(27)]
    table = ClipTable(clips)
    lists = {bucket: found.tolist() for bucket, found in MEMBERS.items()}
    partners = {b: Partners(table, found, same_scene=False) for b, found in MEMBERS.items()}
    naive = {}
    for found in lists.values():
        naive |= naive_partners(clips, found, same_scene=False)
    for ranks, batch_size, epoch in ((1, 4, 0), (3, 2, 1), (2, 64, 7)):
        for rank, plan in enumerate(
            plans(ranks=ranks, batch_size=batch_size, epoch=epoch, partners=partners)
        ):
            options = {"batch_size": batch_size, "seed": 5, "epoch": epoch}
            expected = naive_plan(lists, naive, rank=rank, num_ranks=ranks, **options)
            assert list(plan) == expected
            assert plan[-1] == expected[-1]
            assert plan[1:3] == expected[1:3]


def test_references_vary_over_epochs_and_use_all_partners() -> None:
    clips = ClipTable(entry(n) for n in range(27))
    partners = {b: Partners(clips, found, same_scene=False) for b, found in MEMBERS.items()}
    seen: dict[int, set[int]] = {n: set() for n in range(27)}
    for epoch in range(40):
        for batch in plans(epoch=epoch, partners=partners)[0]:
            assert batch.references is not None
            for clip, reference in zip(batch.clips, batch.references, strict=True):
                assert reference in partners[batch.bucket].of(clip)
                seen[clip].add(reference)
    # 40 draws among at most 5 partners miss one with probability below 5 (4/5)^40 < 0.1 %; the
    # seed is fixed, so this holds always or never.
    for bucket, found in MEMBERS.items():
        assert all(seen[n] == set(partners[bucket].of(n)) for n in found.tolist())


def test_nodes_and_workers_share_many_clips_exactly_and_resume_anywhere() -> None:
    """2 nodes of 8 ranks: every clip once, but for those that fill up the last group."""
    members = {SMALL: np.arange(20_000), LARGE: np.arange(20_000, 50_000)}
    per_rank = plans(ranks=16, members=members)
    assert {len(plan) for plan in per_rank} == {313 + 469}
    clips = np.array([clips_of(plan) for plan in per_rank])
    times = np.bincount(clips.ravel(), minlength=50_000)
    assert times.min() == 1
    assert times.sum() == (313 + 469) * 64
    again = plans(ranks=16, members=members)[5]
    assert [again[number] for number in (600, 601)] == list(per_rank[5])[600:602]


def test_bucket_lengths_are_those_of_latents() -> None:
    with pytest.raises(ValueError, match="4k"):
        Bucket(64, 64, 100)
