"""Does a long video stay itself? Identity, colours and lips by the minute, and the seams of chunks.

``python -m avatar_v_eval.drift --weights small --minutes 10`` lets TEST persons speak for that long
and follows the video as it streams: nothing of it is kept but numbers. Writes
``eval/results/drift_NAME.json`` and ``.png``.
"""

import argparse
import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float, UInt8
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from rich.progress import track
from torch import Tensor

from avatar_v.critics.face import FaceCritic
from avatar_v.critics.motion import MOUTH_OPEN, MotionMeter
from avatar_v.generate.chunks import plan
from avatar_v.generate.inputs import Inputs
from avatar_v.generate.record import peak_rss_mib
from avatar_v.generate.reference_clip import ReferenceClip
from avatar_v.loudness import normalise_loudness
from avatar_v.types import FRAME_RATE_HZ
from avatar_v.world.clip import WorldClip, make_clip
from avatar_v.world.splits import persons, scenes, sentences
from avatar_v_eval import records
from avatar_v_eval.records import Number, bootstrap_mean, pearson
from avatar_v_eval.rollout import Rollout, add_sampling_options, with_close_ups

WINDOW_S = 20
"""Everything is averaged over windows of so many seconds."""
REFERENCE_FRAMES = 401
TRACKS = {
    "identity": "face similarity with the reference",
    "mouth": "mouth r",
    "brightness": "mean grey level",
    "saturation": "mean saturation",
}


@dataclass(frozen=True)
class Course:
    """What one person's video did, window by window, and at its seams."""

    tracks: dict[str, Float[np.ndarray, " w"]]
    seam: float  # median change of a frame at a chunk's border / inside chunks


def main(arguments: list[str] | None = None) -> None:
    options = _options(arguments)
    rollout = Rollout.load(options.weights, options)
    meter, face = MotionMeter.from_pretrained(), FaceCritic.from_pretrained()
    courses = [followed(case, rollout, meter, face) for case in make_cases(options)]
    numbers = numbers_of(courses)
    numbers["peak_memory"] = Number(peak_rss_mib(), 1).described(
        "peak memory of the whole measurement", unit="MiB"
    )
    result = records.make_result(
        f"drift_{options.name}",
        f"{options.minutes:g} minutes of generated video, {options.name}",
        numbers,
        recipe=rollout.recipe,
        weights={**rollout.hashes(), "motion": meter.hash(), "face": face.hash()},
        notes=[
            f"{options.persons} TEST persons from number {options.first} on, "
            f"windows of {WINDOW_S} s",
            rollout.described(),
        ],
    )
    out = Path(options.out)
    print(records.write_result(result, out))
    save_plot(out / f"drift_{options.name}.png", courses)
    for number in numbers.values():
        print(f"{number.label:70s} {number.value:8.3f}  [{number.low}, {number.high}]")


@dataclass(frozen=True)
class Case:
    """A person with a long speech; the picture and the reference are rendered, the rest is not."""

    image: UInt8[Tensor, "3 h w"]
    reference: ReferenceClip
    speech: WorldClip  # without video


def make_cases(options: argparse.Namespace) -> Iterator[Case]:
    """One at a time: an hour of sound need not wait in memory for its turn."""
    num = round(options.minutes * 60 * FRAME_RATE_HZ)
    people = persons("test", options.persons, options.first)
    places = scenes("test", 2 * options.persons, 2 * options.first)
    speeches = sentences("test", 2 * options.persons, 2 * options.first)
    for i, person in enumerate(people):
        here, there = places[2 * i : 2 * i + 2]
        said, other = speeches[2 * i : 2 * i + 2]
        first = make_clip(person, here, said, num_frames=1, size=64)
        shown = make_clip(person, there, other, num_frames=REFERENCE_FRAMES, size=64)
        assert first.video is not None
        assert shown.video is not None
        assert shown.valid is not None
        speech = make_clip(person, here, said, num_frames=num, size=64, render_video=False)
        sound = normalise_loudness(shown.audio)
        reference = ReferenceClip(shown.video, shown.valid, sound, shown.motion)
        reference = with_close_ups(reference, (person, there, other), shown.motion)
        yield Case(first.video[0], reference, speech)


def followed(case: Case, rollout: Rollout, meter: MotionMeter, face: FaceCritic) -> Course:
    """Generate and read a video; of its pictures only the last one is kept."""
    num, card = len(case.speech.motion), rollout.pipeline.card
    inputs = Inputs(
        image=case.image,
        audio=case.speech.audio,
        num_frames=num,
        reference_frame=None,
        warnings=(),
        clips=(case.reference,) if card.reference else (),
        motion=case.speech.motion[0] if card.motion else None,
    )
    request = dataclasses.replace(rollout.request, prompt=case.speech.text)
    own = face.embed_clip(case.reference.video[::25])
    rows: list[Float[Tensor, "f k"]] = []
    changes, last = [], case.image[None]
    blocks = rollout.pipeline.stream(inputs, request)
    for frames in track(blocks, "generating", total=num / 16, transient=True):
        opening = meter.measure(frames).values[:, MOUTH_OPEN]
        near = face.measure(frames).values @ own
        pixels = frames.float()
        grey = pixels.mean((1, 2, 3))
        saturation = (pixels.amax(1) - pixels.amin(1)).mean((1, 2))
        rows.append(torch.stack([near, opening, grey, saturation], dim=1))
        both = torch.cat([last, frames]).float()
        changes.append((both[1:] - both[:-1]).abs().mean((1, 2, 3)))
        last = frames[-1:]
    values, change = torch.cat(rows).double().numpy(), torch.cat(changes).numpy()
    return Course(_windows(values, case.speech), seam_ratio(change, num, rollout))


def seam_ratio(change: Float[np.ndarray, " f"], num_frames: int, rollout: Rollout) -> float:
    """Median change from the last frame of a chunk to the next, over that between other frames."""
    chunks = plan(num_frames, chunk_latents=rollout.pipeline.format.chunk_latents).chunks
    borders = np.array([chunk.frames.start for chunk in chunks if chunk.frames.start > 0])
    inside = np.delete(change[1:], borders - 1)
    return float(np.median(change[borders]) / np.median(inside))


def numbers_of(courses: list[Course]) -> dict[str, Number]:
    """First and last window of each track, their difference, and the seams."""
    numbers = {}
    for name, word in TRACKS.items():
        first, last = (np.array([c.tracks[name][at] for c in courses]) for at in (0, -1))
        numbers[f"{name}_first"] = bootstrap_mean(first).described(f"{word}: first {WINDOW_S} s")
        numbers[f"{name}_last"] = bootstrap_mean(last).described(f"{word}: last {WINDOW_S} s")
        numbers[f"{name}_change"] = bootstrap_mean(last - first).described(f"{word}: change")
    seams = np.array([course.seam for course in courses])
    numbers["seam"] = bootstrap_mean(seams).described(
        "change of a frame at a chunk's border / inside chunks, medians", target="≤ 1.2"
    )
    return numbers


def save_plot(path: Path, courses: list[Course]) -> None:
    """Each track over time: the mean over persons, and every person."""
    figure = Figure(figsize=(10, 2.6), dpi=150)
    FigureCanvasAgg(figure)
    for axes, name in zip(figure.subplots(1, len(TRACKS)), TRACKS, strict=True):
        rows = np.stack([course.tracks[name] for course in courses])
        minutes = (np.arange(rows.shape[1]) + 0.5) * WINDOW_S / 60
        axes.plot(minutes, rows.T, color="#9aa5b1", lw=0.6)
        axes.plot(minutes, rows.mean(0), color="#d1495b", lw=1.8)
        axes.set_title(TRACKS[name], fontsize=8)
        axes.set_xlabel("minutes", fontsize=8)
        axes.tick_params(labelsize=7)
        axes.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    figure.savefig(path)


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
    parser.add_argument("--name", default="plain", help="of the result: drift_NAME.json")
    parser.add_argument("--persons", type=int, default=4)
    parser.add_argument("--first", type=int, default=0, help="number of the first test person")
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--out", default=records.RESULTS_DIR, help="folder of the result")
    add_sampling_options(parser)
    options = parser.parse_args(arguments)
    if options.minutes * 60 < 2 * WINDOW_S:
        parser.error(f"drift needs at least {2 * WINDOW_S} s, got {options.minutes} minutes")
    return options


if __name__ == "__main__":
    main()
