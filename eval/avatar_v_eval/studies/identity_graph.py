"""The data engine's identity graph on planted clips: who is found, what it costs, how it grows.

Clips are vectors without videos. A person has up to 100 clips in one to eight scenes, and a share
of the clips were uploaded again. Faces lie about as dlib's: two clips of a person 0.2 to 0.4 apart,
two people 0.67, and every fifth person is planted 0.3 to 0.5 beside another, in chains, so that
some clips of two people are as near as those of one. Pairs count, not persons: a person of a
hundred clips weighs as 5,000 pairs. Seconds are those of a core, all threads together.
"""

import argparse
import resource
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from avatar_v.base import checks
from avatar_v_data.curation.copies import copies
from avatar_v_data.curation.graph import Compared, Looks, compare
from avatar_v_data.curation.index import EXACT, PROBED, Pairs, connected, leading, near_pairs
from avatar_v_data.curation.people import group_persons, group_scenes
from avatar_v_data.curation.plan import Grouping
from avatar_v_eval.protocol import Findings
from avatar_v_eval.records import Number

WIDTH = 128
CELLS = 4
FRAMES = 60
AGAIN = 0.03
"""Of the clips, uploaded twice."""
ALIKE = 0.2
"""Of the persons, planted beside another."""
ASKED = 500
"""Clips whose neighbours are compared with all there are."""
NEW = 0.01
MOST_ADDED = 100_000
MOST_CLIPS = 100
"""Of a person."""
GROUPING = Grouping()
NOTHING = Compared(Pairs.none(), np.zeros(0, np.float32), Pairs.none())
FAR = 10**8


@dataclass(frozen=True)
class Planted:
    """Clips, and the truth of them."""

    looks: Looks
    persons: np.ndarray
    scenes: np.ndarray
    sources: np.ndarray  # the clip that each is a copy of, its own place where it is none
    quality: np.ndarray


def add_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--sizes", type=int, nargs="+", default=(10_000, 100_000, 1_000_000), help="clips")
    add("--seed", type=int, default=0)


def measure(options: argparse.Namespace) -> Findings:
    for size in options.sizes:
        checks.count("--sizes", size, least=1000)
    checks.seed("--seed", options.seed)
    numbers: dict[str, Number] = {}
    far: dict[str, Number] = {}
    for size in sorted(options.sizes):
        found, far = one_size(planted(size, options.seed))
        print(*(f"{n.label}: {n.value:.4g}" for n in found.values()), sep="\n", flush=True)
        numbers |= found
    return Findings(
        "The identity graph of planted clips",
        numbers | far,
        notes=[
            f"up to {EXACT**0.5:,.0f} new clips all are compared, beyond that IVF looks in "
            f"{PROBED} cells",
            "planted vectors, no footage; how near look-alikes lie decides all shares",
        ],
    )


def planted(num: int, seed: int) -> Planted:
    """``num`` clips and, of some, copies among them."""
    rng = np.random.default_rng(seed)
    sizes = np.minimum(2 + rng.pareto(1.6, num) * 4, MOST_CLIPS).astype(int)
    sizes = sizes[: int(np.searchsorted(np.cumsum(sizes), num)) + 1]
    persons = np.repeat(np.arange(len(sizes)), sizes)[:num]
    own = rng.integers(1, 9, len(sizes))[persons]
    scenes = persons * 8 + rng.integers(0, 1 << 30, num) % own
    sources = np.arange(num)
    again = 2 * rng.choice(num // 2, int(AGAIN * num), replace=False) + 1
    sources[again] = sources[again - 1]
    persons, scenes = persons[sources], scenes[sources]
    is_copy = sources != np.arange(num)
    order = rng.permutation(num)
    place = np.argsort(order)
    faces = _faces(rng, persons, sources)
    pictures, behind = _pictures(rng, scenes, sources, is_copy)
    sounds = [*_sounds(rng, sources, is_copy)[order]]
    looks = Looks({"face": faces[order]}, pictures[order], behind[order], sounds)
    quality = np.where(is_copy, 1.0, 2.0)
    return Planted(looks, persons[order], scenes[order], place[sources[order]], quality[order])


def one_size(clips: Planted) -> tuple[dict[str, Number], dict[str, Number]]:
    """Numbers of one size, and what they mean for `FAR` clips."""
    num = len(clips.persons)
    everything = np.ones(num, bool)
    pairs, compared_s = timed(lambda: compare(clips.looks, GROUPING, everything, NOTHING))
    (persons, scenes, found), grouped_s = timed(lambda: resolved(clips, pairs))
    true, truth = clips.sources != np.arange(num), clips.sources
    same = np.array([truth[c] == truth[o] for c, o in found.items()])
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    near = recall_of_near(clips.looks.vectors["face"], pairs.near)
    rows: list[tuple[str, float, int, str, str]] = [
        ("near", near, ASKED, "pairs of near faces found, of those there are", ""),
        *joined_rows(clips, pairs.near, persons, scenes),
        ("copies_recall", same.sum() / true.sum(), int(true.sum()), "copies found", ""),
        ("copies_precision", same.mean(), len(found), "clips called copies that are", ""),
        ("seconds", compared_s, num, "seconds to compare them", "s"),
        ("grouping", grouped_s, num, "seconds to make persons, scenes and copies of the pairs",
         "s"),
        ("memory", memory, num, "memory of the process, at most", "GiB"),
        ("pairs", len(pairs.near) / num, num, "pairs of near faces a clip", ""),
    ]  # fmt: skip
    if num <= MOST_ADDED:
        rows += added_rows(clips, pairs, persons)
    numbers = {
        f"{key}_{num}": Number(float(value), n).described(f"{label}: {num:,} clips", unit=unit)
        for key, value, n, label, unit in rows
    }
    return numbers, reckoned(clips, compared_s, len(pairs.near) / num)


def added_rows(
    clips: Planted, pairs: Compared, persons: np.ndarray
) -> list[tuple[str, float, int, str, str]]:
    """The last clips as new ones, the others known."""
    num = len(persons)
    is_new = np.arange(num) >= num - int(NEW * num)
    old, old_twins = (~is_new[x.left] & ~is_new[x.right] for x in (pairs.near, pairs.twins))
    known = Compared(pairs.near.where(old), pairs.apart[old], pairs.twins.where(old_twins))
    added, seconds = timed(lambda: known.joined(compare(clips.looks, GROUPING, is_new, known)))
    again, _, _ = resolved(clips, added)
    same = pairs_of(persons, again) / max(pairs_of(persons), pairs_of(again))
    num_new = int(is_new.sum())
    return [
        ("added", seconds, num_new, "seconds to compare 1 % new clips with the others", "s"),
        ("added_same", same, num_new, "pairs of persons that stay when 1 % comes later", ""),
    ]


def resolved(clips: Planted, pairs: Compared) -> tuple[np.ndarray, np.ndarray, dict[int, int]]:
    persons = group_persons(pairs.near, len(clips.persons))
    scenes = group_scenes(pairs.near, pairs.apart, persons, GROUPING.same_background)
    return persons, scenes, copies(pairs.twins, clips.quality.tolist())


def joined_rows(
    clips: Planted, near: Pairs, persons: np.ndarray, scenes: np.ndarray
) -> list[tuple[str, float, int, str, str]]:
    """Recall and precision of pairs of a person, of the graph's edges, and of whole persons."""
    truth = pairs_of(clips.persons)
    said, both = pairs_of(persons), pairs_of(persons, clips.persons)
    edges = truth - pairs_of(clips.persons, clips.scenes)
    said_edges = said - pairs_of(persons, scenes)
    both_edges = (
        both
        - pairs_of(persons, scenes, clips.persons)
        - pairs_of(persons, clips.persons, clips.scenes)
        + pairs_of(persons, scenes, clips.persons, clips.scenes)
    )
    of_both, of_said, of_truth = (
        np.bincount(x)[x]
        for x in (together(persons, clips.persons), *map(together, (persons, clips.persons)))
    )  # clips with which each shares its group
    is_whole = (of_both == of_said) & (of_both == of_truth)
    whole = len(np.unique(clips.persons[is_whole]))
    chains = connected(near.left, near.right, len(persons))[0]
    num, num_said = len(np.unique(clips.persons)), len(np.unique(persons))
    return [
        ("recall", both / truth, truth, "pairs of one person, found", ""),
        ("precision", both / said, said, "pairs said to be one person that are", ""),
        (
            "chains",
            pairs_of(chains, clips.persons) / pairs_of(chains),
            pairs_of(chains),
            "the same if chains were persons",
            "",
        ),
        (
            "edges_recall",
            both_edges / edges,
            edges,
            "edges, pairs of a person across scenes, found",
            "",
        ),
        ("edges_precision", both_edges / said_edges, said_edges, "edges said that are", ""),
        ("whole", whole / num, num, "persons found whole and alone", ""),
        ("pure", whole / num_said, num_said, "persons said that are whole and alone", ""),
    ]


def pairs_of(*labels: np.ndarray) -> int:
    """Pairs of clips that agree in all labels."""
    counts = np.bincount(together(*labels))
    return int((counts * (counts - 1) // 2).sum())


def together(*labels: np.ndarray) -> np.ndarray:
    """A number for each combination of labels."""
    found = np.zeros(len(labels[0]), np.int64)
    for own in labels:
        found = np.unique(found * (int(own.max()) + 1) + own, return_inverse=True)[1]
    return found


def recall_of_near(faces: np.ndarray, near: Pairs) -> float:
    """Of all pairs that `ASKED` clips have."""
    (limit,) = GROUPING.same_person.values()
    asked = np.zeros(len(faces), bool)
    asked[np.linspace(0, len(faces) - 1, ASKED).round().astype(int)] = True
    there = near_pairs(faces, limit, asked, Pairs.none())
    return float((asked[near.left] | asked[near.right]).sum() / len(there))


def reckoned(clips: Planted, seconds: float, pairs: float) -> dict[str, Number]:
    """What `FAR` clips take: time by n √n, memory by n."""
    size, looks = len(clips.persons), clips.looks
    faces, pictures = looks.vectors["face"], looks.pictures
    seen = leading(faces).shape[1]
    rows = [
        ("hours", seconds * (FAR / size) ** 1.5 / 3600, "hours to compare them, reckoned", "h"),
        ("vectors", FAR * 4 * (faces.shape[1] + pictures.shape[1]) / 2**30,
         "memory of faces and pictures, reckoned", "GiB"),
        ("index", FAR * (4 * seen + 8) / 2**30,
         f"memory of the index of faces, {seen} axes, reckoned", "GiB"),
        ("stored", FAR * pairs * 20 / 2**30, "memory of the pairs of near faces, reckoned", "GiB"),
    ]  # fmt: skip
    return {
        f"far_{key}": Number(float(value), size).described(f"{label}: {FAR:,} clips", unit=unit)
        for key, value, label, unit in rows
    }


def timed(what: Callable[[], Any]) -> tuple[Any, float]:
    """A result, and the seconds of a core that it took."""
    begin = time.process_time()
    return what(), time.process_time() - begin


def _faces(rng: np.random.Generator, persons: np.ndarray, sources: np.ndarray) -> np.ndarray:
    scale = np.linspace(1.6, 0.15, WIDTH).astype(np.float32)
    scale /= np.linalg.norm(scale)
    num = persons.max() + 1
    base = rng.standard_normal(WIDTH).astype(np.float32)
    centres = _drawn(rng, num) * scale * 0.55 + base / np.linalg.norm(base)
    centres /= np.linalg.norm(centres, axis=1, keepdims=True)
    beside = np.flatnonzero(rng.random(num - 1) < ALIKE) + 1
    steps = _drawn(rng, num) * scale
    for n in beside.tolist():  # in order: chains
        centres[n] = centres[n - 1] + steps[n] * rng.uniform(0.3, 0.5)
    spread = rng.uniform(0.14, 0.28, num).astype(np.float32)
    faces = centres[persons]
    faces += _drawn(rng, len(persons))[sources] * (spread[persons, None] * scale)
    faces += 0.002 * _drawn(rng, len(persons))
    faces /= np.linalg.norm(faces, axis=1, keepdims=True)
    return faces


def _pictures(
    rng: np.random.Generator, scenes: np.ndarray, sources: np.ndarray, is_copy: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Thumbnails, and backgrounds with the head cut out."""
    _, scene = np.unique(scenes, return_inverse=True)
    drawn = rng.integers(0, 256, (scene.max() + 1, 4, 4, 3), np.uint8)
    drawn = drawn.repeat(2, 1).repeat(2, 2).reshape(-1, 64, 3)
    pictures = drawn[scene].astype(np.float32)
    pictures += rng.normal(0, 2, pictures.shape).astype(np.float32)[sources]
    pictures[is_copy] += rng.normal(0, 1, (is_copy.sum(), 64, 3)).astype(np.float32)
    behind = pictures.reshape(-1, CELLS, 8 // CELLS, CELLS, 8 // CELLS, 3).mean((2, 4))
    behind[:, 1:, 1:3] = np.nan
    return pictures.reshape(len(scenes), -1), behind.reshape(len(scenes), -1, 3)


def _sounds(rng: np.random.Generator, sources: np.ndarray, is_copy: np.ndarray) -> np.ndarray:
    """Loudness that is alike in copies, which begin 8 frames later."""
    sounds = 6 * _drawn(rng, len(sources), FRAMES) - 40
    late = np.flatnonzero(is_copy)
    sounds[late, :-8] = sounds[sources[late], 8:]
    sounds[late] += _drawn(rng, len(late), FRAMES)
    return sounds


def _drawn(rng: np.random.Generator, num: int, width: int = WIDTH) -> np.ndarray:
    return rng.standard_normal((num, width), np.float32)
