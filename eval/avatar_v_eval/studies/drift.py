"""Identity, colours, lips and memory over long videos, and the seams of their chunks.

TEST persons speak for ``--minutes`` in each of the ways to join chunks (`VARIANTS`), or by each of
several ``--systems``, or speak and are silent in turns. The videos are read while they stream:
nothing of them is kept but numbers and a few frames. One person is enough for a stream of an hour:
its trend has an interval over time.
"""

import argparse
import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float

from avatar_v.base.options import at_once
from avatar_v.critics.motion import MOUTH_OPEN
from avatar_v.critics.quality import sharpness
from avatar_v.request.record import rss_mib
from avatar_v.sampling.chunks import plan
from avatar_v.scoring.sampling import pearson
from avatar_v.types import FRAME_RATE_HZ, MOTION_NAMES, SAMPLES_PER_FRAME, TEMPORAL_FACTOR
from avatar_v_eval.cases import Case, Video, asked_cases, check_persons, rendered_video
from avatar_v_eval.generated import build_inputs
from avatar_v_eval.intervals import jackknife, mean_interval
from avatar_v_eval.protocol import Findings, Reading, Readings, read_cases, resumable
from avatar_v_eval.records import Number
from avatar_v_eval.rollout import Rollout, add_sampling_options
from avatar_v_eval.studies.drift_figures import WINDOW_S, draw_courses, draw_frames
from avatar_v_eval.study_metrics import StudyMetrics
from avatar_v_eval.systems import named, parse_system

WINDOW = WINDOW_S * FRAME_RATE_HZ
REFERENCE_FRAMES = 401
NUM_PICTURES = 12
"""Frames of a video that are kept to be looked at."""
MOST_MINUTES = 10
"""Of longer videos only some windows are numbers; the figure has all."""
TIMES_S = (100, 1_000, 10_000)
PIECE_S, HOUR_S = 600, 3_600
"""The interval of a trend is over pieces of so many seconds."""
TRACKS = {
    "identity": "face similarity with the reference",
    "mouth": "mouth r",
    "brightness": "mean grey level",
    "saturation": "mean saturation",
    "sharpness": "variance of the Laplacian",
    "energy": "change of the motion from frame to frame",
}
SILENT = "silent"
IN_TURNS = {**TRACKS, SILENT: "movement of the mouth in silence, share of that in speech"}
VARIANTS = {
    "plain": "prefix",
    "anchor": "prefix and anchor",
    "abrupt": "prefix and anchor, not eased",
    "interpolate": "prefix, anchor and I chunks",
    "grown": "positions that grow",
    "replaced": "the sink in place of the reference",
    "clean": "a clean history",
}
HOW: Mapping[str, Mapping[str, Any]] = {
    "plain": {"anchor": False},
    "abrupt": {"blend": False},
    "interpolate": {"interpolate": True},
    "grown": {"rolling": False},
    "replaced": {"sink": "replaced"},
    "clean": {"history": "clean"},
}
"""What differs from the anchored way; the last three are for causal weights."""
SEAMS = {"picture": "change of the picture", "motion": "change of the motion read from it"}
PLACES = {"seam": "a chunk's border", "latent": "other latents' borders"}


def add_options(parser: argparse.ArgumentParser) -> None:
    add_sampling_options(parser)
    add = parser.add_argument
    add("--variants", nargs="+", default=list(VARIANTS)[:4], choices=list(VARIANTS))
    add(
        "--systems", nargs="+", metavar="NAME=WEIGHTS[?FIELD=VALUE&…]",
        help="weights side by side in place of --variants; gains are over the first",
    )  # fmt: skip
    add("--persons", type=int, default=4)
    add("--first", type=int, default=0, help="number of the first person")
    add("--split", default="test", choices=("test", "validation"))
    add("--minutes", type=float, default=10.0)
    add(
        "--turns", action="store_true",
        help=f"the second half of every {WINDOW_S} s is silent",
    )  # fmt: skip
    add("--workers", type=at_once, default=1, help="processes of one thread each")


def measure(options: argparse.Namespace) -> Findings:
    check_persons(options, 1 if options.minutes * 60 >= HOUR_S else 2)
    if options.minutes * 60 < 2 * WINDOW_S:
        raise ValueError(f"--minutes {options.minutes}: drift needs at least {2 * WINDOW_S} s")
    metrics = StudyMetrics.load()
    ways, words, base = asked_ways(options)
    weights = metrics.hashes() | way_hashes(ways)
    lengths = {rollout.pipeline.format.chunk_latents for rollout in ways.values()}
    if len(lengths) > 1:
        raise ValueError(f"--systems make chunks of {sorted(lengths)} latents: seams differ")
    cases = asked_cases(
        options,
        num_frames=round(options.minutes * 60 * FRAME_RATE_HZ),
        reference_frames=REFERENCE_FRAMES,
        target_video=False,
    )
    if options.turns:
        cases = [in_turns(case) for case in cases]
    readings = read_cases(
        cases,
        {name: partial(stream, rollout) for name, rollout in ways.items()},
        StreamReader(metrics, lengths.pop(), options.turns),
        num_workers=options.workers,
        kept=resumable(options, weights, {k: rollout.sampling() for k, rollout in ways.items()}),
    )
    numbers = summarise_drift(readings, words, base)
    if options.workers == 1:
        for name in ways:
            held = readings.values(name, "memory")
            numbers[f"{name}_memory"] = mean_of(held.max(1)).described("most memory", unit="MiB")
            if held.shape[1] > 2:
                numbers[f"{name}_memory_growth"] = memory_growth(held)
    people = f"{options.persons} {options.split.upper()} persons from number {options.first} on"
    return Findings(
        f"{options.minutes:g} minutes of generated video, and the seams of its chunks",
        numbers,
        recipe=", ".join(sorted({rollout.recipe for rollout in ways.values()})),
        weights=weights,
        notes=[
            f"{people}, 16 s of reference, windows of {WINDOW_S} s; intervals over persons, those "
            f"of trends over pieces of {PIECE_S / 60:g} minutes",
            *(["the second half of every window is silent"] if options.turns else []),
            *dict.fromkeys(rollout.described() for rollout in ways.values()),
        ],
        figures={
            "_frames": draw_frames(readings, words, options.minutes),
            "_courses": draw_courses(readings, words, tracks_of(readings)),
        },
    )


def speaks(num_frames: int) -> Bool[np.ndarray, " f"]:
    """Where there is speech of somebody who speaks and is silent in turns."""
    return np.arange(num_frames) % WINDOW < WINDOW // 2


def in_turns(case: Case) -> Case:
    """The case with the sound of its turns. Its motion is still that of the whole speech."""
    mask = torch.from_numpy(speaks(case.num_frames)).repeat_interleave(SAMPLES_PER_FRAME)
    target = dataclasses.replace(case.target, audio=case.audio * mask)
    return dataclasses.replace(case, target=target)


def mean_of(values: Float[np.ndarray, " n"]) -> Number:
    """Over persons; that of one has no interval."""
    return mean_interval(values) if len(values) > 1 else Number(float(values[0]), 1)


def trend(tracks: Float[np.ndarray, "n w"]) -> Number:
    """The slope of the persons' mean over time, an hour, with the jackknife's interval over pieces
    of `PIECE_S`: of so long a stream no window tells of the next piece's."""
    course, length = tracks.mean(0), PIECE_S // WINDOW_S
    num = len(course) // length
    pieces = course[: num * length].reshape(num, length)
    times_h = np.arange(num * length).reshape(num, length) * (WINDOW_S / HOUR_S)

    def slope(kept: np.ndarray) -> float:
        return float(np.polyfit(times_h[kept].ravel(), pieces[kept].ravel(), 1)[0])

    return jackknife(slope, num)


def memory_growth(held: Float[np.ndarray, "n w"]) -> Number:
    """The most that a later window held, over the second one."""
    number = mean_of(held[:, 2:].max(1) / held[:, 1])
    words = "memory of later windows, most, over that of the second"
    return number.described(words, target="≤ 1.05")


def stream(rollout: Rollout, case: Case) -> Iterator[Video]:
    """The video of a case, block by block."""
    request = rollout.request_for(case.person_id, case.prompt)
    yield from rollout.pipeline.stream(build_inputs(rollout, case, REFERENCE_FRAMES), request)


def asked_ways(options: argparse.Namespace) -> tuple[dict[str, Rollout], dict[str, str], str]:
    """The ways that are compared, their words, and the one that others are compared with.
    ValueError for systems that cannot be loaded."""
    if options.systems:
        systems = {name: parse_system(text, options) for name, text in named(options.systems)}
        return systems, {name: name for name in systems}, next(iter(systems))
    one = Rollout.load(options.weights, options)
    ways = {}
    for name in options.variants:
        request = one.request.changed(**{"anchor": True, **HOW.get(name, {})})
        ways[name] = dataclasses.replace(one, request=request)
    return ways, {name: VARIANTS[name] for name in ways}, "plain"


def way_hashes(ways: Mapping[str, Rollout]) -> dict[str, str]:
    """Of the weights: by part where all ways have the same, else by way and part."""
    loaded = {id(rollout.pipeline): rollout for rollout in ways.values()}
    known = {each: rollout.hashes() for each, rollout in loaded.items()}
    found = {name: known[id(rollout.pipeline)] for name, rollout in ways.items()}
    first = next(iter(found.values()))
    if all(own == first for own in found.values()):
        return first
    return {f"{part} of {name}": own[part] for name, own in found.items() for part in own}


@dataclass(frozen=True)
class StreamReader:
    """Reads a video block by block; of its pictures only the last one is kept."""

    metrics: StudyMetrics
    chunk_latents: int
    turns: bool = False

    def __call__(self, case: Case, blocks: Iterator[Video]) -> Reading:
        """The tracks by window, the change at seams, and frames evenly spread over the video."""
        num, start, held, pictures = case.num_frames, 0, [], []
        own = self.metrics.face.critic.embed_clip(rendered_video(case.reference)[::25])
        # made once: small pieces that stay, between large ones that go, let memory grow
        values = np.empty((num, len(TRACKS)))
        motion = np.empty((num, len(MOTION_NAMES)), dtype=np.float32)
        changed, last = np.empty(num), case.image[None]
        kept = set(np.linspace(0, num - 1, NUM_PICTURES).round().astype(int).tolist())
        for frames in blocks:
            part = slice(start, start + len(frames))
            motion[part] = self.metrics.mouth.critic.measure(frames).values
            pixels = frames.float()
            values[part, :-1] = torch.stack(
                [
                    self.metrics.face.critic.measure(frames).values @ own,
                    torch.from_numpy(motion[part, MOUTH_OPEN]),
                    pixels.mean((1, 2, 3)),
                    (pixels.amax(1) - pixels.amin(1)).mean((1, 2)),
                    sharpness(frames),
                ],
                dim=1,
            )
            both = torch.cat([last, frames]).float()
            changed[part] = (both[1:] - both[:-1]).abs().mean((1, 2, 3))
            pictures.extend(f.numpy().copy() for i, f in enumerate(frames, start) if i in kept)
            last, start = frames[-1:], part.stop
            if start // WINDOW > len(held):
                held.append(rss_mib())
        moved = np.abs(np.diff(motion, axis=0)).mean(1)
        values[:, -1] = np.append(moved[0], moved)
        return {
            **windows(values, case.mouth_open, turns=self.turns),
            **self._seams({"picture": changed[1:], "motion": moved}, num),
            "memory": np.array(held or [rss_mib()]),
            "frames": np.stack(pictures),
        }

    def _seams(self, changes: dict[str, Float[np.ndarray, " f-1"]], num: int) -> Reading:
        borders = chunk_borders(num, chunk_latents=self.chunk_latents)
        latents = sorted(set(range(1, num, TEMPORAL_FACTOR)) - set(borders))
        found = {}
        for name, change in changes.items():
            found[f"seam_{name}"] = change_ratio(change, borders)
            found[f"latent_{name}"] = change_ratio(change, latents, left_out=borders)
        return found


def windows(
    values: Float[np.ndarray, "f 6"], mouth_open: Float[np.ndarray, " f"], *, turns: bool = False
) -> dict[str, np.ndarray]:
    """Means over whole windows, and the lips' correlation with the truth in each, of its speech; in
    ``turns`` also how much the mouth moves in silence."""
    num = max(1, len(values) // WINDOW)
    parts = [slice(i * WINDOW, min((i + 1) * WINDOW, len(values))) for i in range(num)]
    identity, opening, grey, saturation, sharp, energy = values.T
    found = {"identity": identity, "brightness": grey, "saturation": saturation,
             "sharpness": sharp, "energy": energy}  # fmt: skip
    tracks = {k: np.array([track[part].mean() for part in parts]) for k, track in found.items()}
    said = speaks(len(values)) if turns else np.ones(len(values), dtype=bool)
    spoken = [(opening[part][said[part]], mouth_open[part][said[part]]) for part in parts]
    tracks["mouth"] = np.array([pearson(made, true) for made, true in spoken])
    if turns:
        silent = [opening[part][~said[part]].std() for part in parts]
        tracks[SILENT] = np.array(silent) / [made.std() for made, _ in spoken]
    return tracks


def chunk_borders(num_frames: int, *, chunk_latents: int) -> list[int]:
    """The first frame of every chunk but the first."""
    chunks = plan(num_frames, chunk_latents=chunk_latents).chunks
    return [chunk.frames.start for chunk in chunks if chunk.frames.start > 0]


def change_ratio(
    change: Float[np.ndarray, " f-1"], frames: list[int], left_out: Sequence[int] = ()
) -> float:
    """Median change into some frames, over that into others than these and those left out.

    ``change[i]`` leads from frame i to frame i + 1.
    """
    at, rest = np.array(frames) - 1, np.array([*frames, *left_out]) - 1
    return float(np.median(change[at]) / np.median(np.delete(change, rest)))


def summarise_drift(
    readings: Readings, words: Mapping[str, str] = VARIANTS, base: str = "plain"
) -> dict[str, Number]:
    """First and last window and every minute of each track, their change, and the seams; and the
    gain of each other way over ``base``, where that is there, at the end and over all, paired over
    persons. ``words``: those of the ways."""
    numbers: dict[str, Number] = {}
    for variant, (name, word) in product(readings.rows, tracks_of(readings).items()):
        tracks = readings.values(variant, name)
        key, label = f"{variant}_{name}", f"{word}, {words[variant]}"
        for ending, when, values in _spans(tracks):
            number = mean_of(values)
            numbers[f"{key}_{ending}"] = number.described(f"{label}: {when}")
        if tracks.shape[1] * WINDOW_S >= HOUR_S:
            numbers[f"{key}_trend"] = trend(tracks).described(f"{label}: change in an hour")
        if variant != base and base in readings.rows:
            more = tracks - readings.values(base, name)
            over = f"{words[variant]} over {words[base]}"
            gain = mean_of(more[:, -1]).described(f"{word}, last {WINDOW_S} s: {over}")
            numbers[f"{key}_gain"] = gain
            numbers[f"{key}_over"] = mean_of(more.mean(1)).described(f"{word}, all: {over}")
    for variant, (place, where), (seam, word) in product(
        readings.rows, PLACES.items(), SEAMS.items()
    ):
        ratios = mean_of(readings.values(variant, f"{place}_{seam}"))
        numbers[f"{variant}_{place}_{seam}"] = ratios.described(
            f"{word} at {where} / inside, medians, {words[variant]}",
            target="≤ 1.2" if place == "seam" else "",
        )
    return numbers


def _spans(
    tracks: Float[np.ndarray, "n w"],
) -> Iterator[tuple[str, str, Float[np.ndarray, " n"]]]:
    """End of a key, words, and a value for each person."""
    first, last, a_minute = tracks[:, 0], tracks[:, -1], 60 // WINDOW_S
    yield "first", f"first {WINDOW_S} s", first
    yield "last", f"last {WINDOW_S} s", last
    yield "change", "change", last - first
    num = tracks.shape[1] // a_minute
    if num > MOST_MINUTES:
        for i, time_s in ((time_s // WINDOW_S, time_s) for time_s in TIMES_S):
            if i < tracks.shape[1]:
                yield f"at_{time_s}", f"{WINDOW_S} s from {time_s:,} s on", tracks[:, i]
        return
    for i in range(num):
        minute = tracks[:, i * a_minute : (i + 1) * a_minute].mean(1)
        yield f"minute_{i + 1}", f"minute {i + 1}", minute


def tracks_of(readings: Readings) -> Mapping[str, str]:
    """The tracks that were read, with their words."""
    first = next(iter(readings.rows.values()))[0]
    return {name: word for name, word in IN_TURNS.items() if name in first}
