"""Does a long video stay itself? Identity, colours and lips by the minute, and the seams of chunks.

``python -m avatar_v_eval.drift --weights small --minutes 10`` lets TEST persons speak for that long
in each of the ways to join chunks (`VARIANTS`) and follows the videos as they stream: nothing of
them is kept but numbers and a few frames. Writes ``eval/results/drift.json``, ``.png`` and, of the
first person, ``drift_frames.png``.
"""

import argparse
import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float, UInt8
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from torch import Tensor

from avatar_v.critics.face import FaceCritic
from avatar_v.critics.motion import MOUTH_OPEN, MotionMeter
from avatar_v.generate.chunks import plan
from avatar_v.generate.inputs import Inputs
from avatar_v.generate.record import peak_rss_mib
from avatar_v.generate.reference_clip import ReferenceClip
from avatar_v.loudness import normalise_loudness
from avatar_v.types import FRAME_RATE_HZ, TEMPORAL_FACTOR
from avatar_v.world.clip import WorldClip, make_clip
from avatar_v.world.splits import Split, persons, scenes, sentences
from avatar_v_eval import records
from avatar_v_eval.records import Number, as_command, bootstrap_mean, pearson
from avatar_v_eval.rollout import Rollout, add_sampling_options, with_close_ups
from avatar_v_eval.workers import mapped

WINDOW_S = 20
"""Everything is averaged over windows of so many seconds."""
REFERENCE_FRAMES = 401
NUM_SHOWN = 12
"""Frames of a video that are kept to be looked at."""
TRACKS = {
    "identity": "face similarity with the reference",
    "mouth": "mouth r",
    "brightness": "mean grey level",
    "saturation": "mean saturation",
}
VARIANTS = {
    "plain": "prefix",
    "anchor": "prefix and anchor",
    "abrupt": "prefix and anchor, not eased",
    "interpolate": "prefix, anchor and I chunks",
}
COLOURS = {"plain": "#5b6770", "anchor": "#d1495b", "abrupt": "#e0a458", "interpolate": "#2e7d9a"}
SEAMS = {"picture": "change of the picture", "motion": "change of the motion read from it"}
PLACES = {"seam": "a chunk's border", "latent": "other latents' borders"}


@dataclass(frozen=True)
class Course:
    """What one person's video did, window by window, and at its seams."""

    tracks: dict[str, Float[np.ndarray, " w"]]
    seams: dict[str, float]  # seam_*, latent_*: median change there over that elsewhere
    frames: UInt8[Tensor, "f 3 h w"]  # NUM_SHOWN of them, evenly spread


@dataclass(frozen=True)
class Watcher:
    """The frozen networks that read the pixels, and what made these."""

    rollout: Rollout
    meter: MotionMeter
    face: FaceCritic

    def follow(self, case: "Case", variant: str) -> Course:
        """Generate and read a video; of its pictures only the last one is kept."""
        num, pipeline = len(case.speech.motion), self.rollout.pipeline
        inputs = Inputs(
            image=case.image,
            audio=case.speech.audio,
            num_frames=num,
            reference_frame=None,
            warnings=(),
            clips=(case.reference,) if pipeline.card.reference else (),
            motion=case.speech.motion[0] if pipeline.card.motion else None,
        )
        request = dataclasses.replace(
            self.rollout.request_for(case.person_id, case.speech.text),
            anchor=variant != "plain",
            ease=variant != "abrupt",
            interpolate=variant == "interpolate",
        )
        own = self.face.embed_clip(case.reference.video[::25])
        rows: list[Float[Tensor, "f k"]] = []
        motions: list[Float[Tensor, "f m"]] = []
        changes, last, shown = [], case.image[None], []
        kept = set(np.linspace(0, num - 1, NUM_SHOWN).round().astype(int).tolist())
        for frames in pipeline.stream(inputs, request):
            motion = self.meter.measure(frames).values
            near = self.face.measure(frames).values @ own
            pixels = frames.float()
            grey = pixels.mean((1, 2, 3))
            saturation = (pixels.amax(1) - pixels.amin(1)).mean((1, 2))
            rows.append(torch.stack([near, motion[:, MOUTH_OPEN], grey, saturation], dim=1))
            motions.append(motion)
            both = torch.cat([last, frames]).float()
            changes.append((both[1:] - both[:-1]).abs().mean((1, 2, 3)))
            start = sum(map(len, motions)) - len(frames)
            shown.extend(frame for i, frame in enumerate(frames, start) if i in kept)
            last = frames[-1:]
        values, motion = torch.cat(rows).double().numpy(), torch.cat(motions)
        moved = (motion[1:] - motion[:-1]).abs().mean(1)
        borders = borders_of(num, chunk_latents=pipeline.format.chunk_latents)
        latents = sorted(set(range(1, num, TEMPORAL_FACTOR)) - set(borders))
        seams = {}
        for name, change in (("picture", torch.cat(changes)[1:]), ("motion", moved)):
            seams[f"seam_{name}"] = change_ratio(change.numpy(), borders)
            seams[f"latent_{name}"] = change_ratio(change.numpy(), latents, left_out=borders)
        return Course(_windows(values, case.speech), seams, torch.stack(shown))


@dataclass(frozen=True)
class Case:
    """A person with a long speech; the picture and the reference are rendered, the rest is not."""

    person_id: int
    image: UInt8[Tensor, "3 h w"]
    reference: ReferenceClip
    speech: WorldClip  # without video


def main(arguments: list[str] | None = None) -> None:
    options = _options(arguments)
    rollout = Rollout.load(options.weights, options)
    watcher = Watcher(rollout, MotionMeter.from_pretrained(), FaceCritic.from_pretrained())
    jobs = [(i, variant) for i in range(options.persons) for variant in options.variants]
    note = f"{options.persons} persons, {len(options.variants)} ways"
    rows = mapped(partial(_followed, watcher, options, jobs), len(jobs), note, options.workers)
    courses = {
        variant: [row for row, job in zip(rows, jobs, strict=True) if job[1] == variant]
        for variant in options.variants
    }
    numbers = numbers_of(courses)
    if options.workers == 1:
        numbers["peak_memory"] = Number(peak_rss_mib(), 1).described(
            "peak memory of the whole measurement", unit="MiB"
        )
    result = records.make_result(
        options.name,
        f"{options.minutes:g} minutes of generated video, and the seams of its chunks",
        numbers,
        recipe=rollout.recipe,
        weights={**rollout.hashes(), "motion": watcher.meter.hash(), "face": watcher.face.hash()},
        notes=[
            f"{options.persons} {options.split.upper()} persons from number {options.first} on, "
            f"16 s of reference, windows of {WINDOW_S} s; intervals bootstrapped over persons",
            rollout.described(),
        ],
    )
    out = Path(options.out)
    print(records.write_result(result, out))
    save_plot(out / f"{options.name}.png", courses)
    save_frames(out / f"{options.name}_frames.png", courses, options.minutes)
    for number in numbers.values():
        print(f"{number.label:80s} {number.value:8.3f}  [{number.low}, {number.high}]")


def make_case(options: argparse.Namespace, index: int) -> Case:
    """Person ``index`` of those asked for."""
    num, at = round(options.minutes * 60 * FRAME_RATE_HZ), options.first + index
    split: Split = options.split
    (person,) = persons(split, 1, at)
    here, there = scenes(split, 2, 2 * at)
    said, other = sentences(split, 2, 2 * at)
    first = make_clip(person, here, said, num_frames=1, size=64)
    shown = make_clip(person, there, other, num_frames=REFERENCE_FRAMES, size=64)
    assert first.video is not None
    assert shown.video is not None
    assert shown.valid is not None
    speech = make_clip(person, here, said, num_frames=num, size=64, render_video=False)
    sound = normalise_loudness(shown.audio)
    reference = ReferenceClip(shown.video, shown.valid, sound, shown.motion)
    reference = with_close_ups(reference, (person, there, other), shown.motion)
    return Case(person, first.video[0], reference, speech)


def borders_of(num_frames: int, *, chunk_latents: int) -> list[int]:
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


def numbers_of(courses: dict[str, list[Course]]) -> dict[str, Number]:
    """First and last window and every minute of each track, their change, and the seams."""
    numbers = {}
    for variant, rows in courses.items():
        for name, word in TRACKS.items():
            tracks = np.stack([course.tracks[name] for course in rows])
            key, label = f"{variant}_{name}", f"{word}, {VARIANTS[variant]}"
            first, last = tracks[:, 0], tracks[:, -1]
            numbers[f"{key}_first"] = bootstrap_mean(first).described(
                f"{label}: first {WINDOW_S} s"
            )
            numbers[f"{key}_last"] = bootstrap_mean(last).described(f"{label}: last {WINDOW_S} s")
            numbers[f"{key}_change"] = bootstrap_mean(last - first).described(f"{label}: change")
            a_minute = 60 // WINDOW_S
            for i in range(tracks.shape[1] // a_minute):
                minute = tracks[:, i * a_minute : (i + 1) * a_minute].mean(1)
                numbers[f"{key}_minute_{i + 1}"] = bootstrap_mean(minute).described(
                    f"{label}: minute {i + 1}"
                )
        for (place, where), (seam, word) in product(PLACES.items(), SEAMS.items()):
            ratios = np.array([course.seams[f"{place}_{seam}"] for course in rows])
            numbers[f"{variant}_{place}_{seam}"] = bootstrap_mean(ratios).described(
                f"{word} at {where} / inside, medians, {VARIANTS[variant]}",
                target="≤ 1.2" if place == "seam" else "",
            )
    return numbers | gains_of(courses)


def gains_of(courses: dict[str, list[Course]]) -> dict[str, Number]:
    """What each other way adds to the plain one at the end, paired over persons."""
    numbers = {}
    for variant in [v for v in courses if v != "plain" and "plain" in courses]:
        for name, word in TRACKS.items():
            last, plain = (
                np.array([course.tracks[name][-1] for course in courses[way]])
                for way in (variant, "plain")
            )
            numbers[f"{variant}_{name}_gain"] = bootstrap_mean(last - plain).described(
                f"{word}, last {WINDOW_S} s: {VARIANTS[variant]} over {VARIANTS['plain']}"
            )
    return numbers


def save_plot(path: Path, courses: dict[str, list[Course]]) -> None:
    """Each track over time by variant: the mean over persons, and every person thinly."""
    figure = Figure(figsize=(10, 2.6), dpi=150)
    FigureCanvasAgg(figure)
    for axes, name in zip(figure.subplots(1, len(TRACKS)), TRACKS, strict=True):
        for variant, rows in courses.items():
            tracks = np.stack([course.tracks[name] for course in rows])
            minutes = (np.arange(tracks.shape[1]) + 0.5) * WINDOW_S / 60
            colour = COLOURS[variant]
            axes.plot(minutes, tracks.T, color=colour, lw=0.4, alpha=0.3)
            axes.plot(minutes, tracks.mean(0), color=colour, lw=1.8, label=VARIANTS[variant])
        axes.set_title(TRACKS[name], fontsize=8)
        axes.set_xlabel("minutes", fontsize=8)
        axes.tick_params(labelsize=7)
        axes.spines[["top", "right"]].set_visible(False)
    figure.axes[0].legend(frameon=False, fontsize=6)
    figure.tight_layout()
    figure.savefig(path)


def save_frames(path: Path, courses: dict[str, list[Course]], minutes: float) -> None:
    """The first person over time, a row for each way."""
    figure = Figure(figsize=(10, 0.2 + 0.84 * len(courses)), dpi=150)
    FigureCanvasAgg(figure)
    for axes, (variant, rows) in zip(
        figure.subplots(len(courses), 1, squeeze=False)[:, 0], courses.items(), strict=True
    ):
        frames = rows[0].frames
        axes.imshow(torch.cat(list(frames), dim=2).movedim(0, -1).numpy(), aspect="auto")
        side = frames.shape[-1]
        seconds = np.linspace(0, 60 * minutes, len(frames))
        axes.set_xticks((np.arange(len(frames)) + 0.5) * side, [f"{s:.0f} s" for s in seconds])
        axes.set_yticks([])
        label = VARIANTS[variant].replace(" and ", "\nand ").replace(", not", ",\nnot")
        axes.set_ylabel(label, fontsize=7, rotation=0, ha="right", va="center")
        axes.tick_params(labelsize=7, length=0)
        axes.spines[:].set_visible(False)
    figure.tight_layout(h_pad=0.2)
    figure.savefig(path)


def _followed(
    watcher: Watcher, options: argparse.Namespace, jobs: list[tuple[int, str]], index: int
) -> Course:
    person, variant = jobs[index]
    return watcher.follow(make_case(options, person), variant)


def _windows(values: Float[np.ndarray, "f 4"], speech: WorldClip) -> dict[str, np.ndarray]:
    """Means over whole windows, and the lips' correlation with the truth in each."""
    size = WINDOW_S * FRAME_RATE_HZ
    num = max(1, len(values) // size)
    truth = speech.motion[:, MOUTH_OPEN].double().numpy()
    parts = [slice(i * size, min((i + 1) * size, len(values))) for i in range(num)]
    identity, opening, grey, saturation = values.T
    return {
        "identity": np.array([identity[part].mean() for part in parts]),
        "mouth": np.array([pearson(opening[part], truth[part]) for part in parts]),
        "brightness": np.array([grey[part].mean() for part in parts]),
        "saturation": np.array([saturation[part].mean() for part in parts]),
    }


def _options(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--weights", default="small", help="folder, or the name of shipped weights")
    parser.add_argument("--variants", nargs="+", default=list(VARIANTS), choices=list(VARIANTS))
    parser.add_argument("--persons", type=int, default=4)
    parser.add_argument("--first", type=int, default=0, help="number of the first person")
    parser.add_argument("--split", default="test", choices=("test", "validation"))
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--workers", type=int, default=1, help="processes of one thread each")
    parser.add_argument("--name", default="drift", help="of the result")
    parser.add_argument("--out", default=records.RESULTS_DIR, help="folder of the result")
    add_sampling_options(parser)
    options = parser.parse_args(arguments)
    if options.persons < 2:
        parser.error(f"intervals over persons need at least two, got {options.persons}")
    if options.minutes * 60 < 2 * WINDOW_S:
        parser.error(f"drift needs at least {2 * WINDOW_S} s, got {options.minutes} minutes")
    return options


if __name__ == "__main__":
    as_command(main)
