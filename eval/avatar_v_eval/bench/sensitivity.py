"""The change of each metric where nothing that matters changed, a measure for differences.

The same videos re-encoded as platforms do (H.264, 4:2:0, CRF 18 and 28), with the picture a frame
late, and with a crop that is a little elsewhere. A difference between two systems that is smaller
than these says nothing about them.
"""

import io
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import av
import numpy as np
import torch
import torch.nn.functional as F
from av.video.frame import VideoFrame

from avatar_v.media.reading import decode_video_bytes
from avatar_v.types import FRAME_RATE_HZ
from avatar_v_eval.bench.footage import CaseMedia
from avatar_v_eval.bench.manifest import CaseFiles, Manifest, file_fault
from avatar_v_eval.bench.score import Scoring, built_metrics
from avatar_v_eval.bench.systems import Folder, System, Truth
from avatar_v_eval.intervals import mean_of
from avatar_v_eval.records import Number, Result, make_result
from avatar_v_eval.scoring.clip import Clip, Footage
from avatar_v_eval.scoring.pictures import Frames
from avatar_v_eval.scoring.scorer import Scorer

JITTER = 1 / 32
"""Largest shift of the crop, in sides of the picture, and the share by which it is narrower."""

Change = Callable[[Frames, np.random.Generator], Frames]


@dataclass(frozen=True)
class Variant:
    """One thing that is done to a video, sound untouched."""

    name: str
    words: str
    change: Change


def reencoded(frames: Frames, crf: int) -> Frames:
    """Through H.264, yuv420p, at this quality; sides must be even."""
    file = io.BytesIO()
    with av.open(file, "w", format="mp4") as container:
        stream = container.add_stream("libx264", rate=FRAME_RATE_HZ, options={"crf": str(crf)})
        stream.height, stream.width = frames.shape[2:]
        stream.pix_fmt = "yuv420p"
        for picture in frames.permute(0, 2, 3, 1).contiguous().numpy():
            container.mux(stream.encode(VideoFrame.from_ndarray(picture, format="rgb24")))
        container.mux(stream.encode(None))
    return decode_video_bytes(file.getvalue())


def one_frame_late(frames: Frames) -> Frames:
    """Every picture one frame later; the first is shown twice, the last is gone."""
    return torch.cat([frames[:1], frames[:-1]])


def other_crop(frames: Frames, generator: np.random.Generator) -> Frames:
    """A window narrower by `JITTER`, moved by up to as much both ways, at the old size; one window
    for the whole video. Beyond the picture its border repeats."""
    zoom = 1 - JITTER
    x, y = generator.uniform(-1, 1, 2) * 2 * JITTER  # the picture spans 2 units
    affine = torch.tensor([[[zoom, 0, x], [0, zoom, y]]], dtype=torch.float32)
    grid = F.affine_grid(affine, [1, 3, *frames.shape[2:]], align_corners=False)
    moved = [
        F.grid_sample(frame[None].float(), grid, padding_mode="border", align_corners=False)[0]
        for frame in frames
    ]
    return torch.stack(moved).round().clamp(0, 255).to(torch.uint8)


VARIANTS = (
    Variant("crf18", "re-encoded at CRF 18", lambda frames, _: reencoded(frames, 18)),
    Variant("crf28", "re-encoded at CRF 28", lambda frames, _: reencoded(frames, 28)),
    Variant("late", "picture one frame late", lambda frames, _: one_frame_late(frames)),
    Variant("crop", f"crop moved by up to {JITTER:.0%} of a side", other_crop),
)


def measure_sensitivity(
    manifest: Manifest, scoring: Scoring, name: str, videos: Path | None = None
) -> Result:
    """For every output and variant: the mean absolute change over cases, with its interval.

    Of the true videos, or those of a folder. A case that cannot be scored, as it is or in one
    variant, is left out of that number and named in the notes. ValueError below two cases.
    """
    system: System = Truth() if videos is None else Folder("videos", videos)
    metrics = built_metrics(scoring)
    changes: dict[tuple[str, str], list[float]] = {}
    notes = []
    for index, case in enumerate(manifest.cases):
        try:
            clip = _clip(manifest, case, system, scoring.convert)
        except ValueError as error:
            notes.append(f"left out: {case.id}: {error}")
            continue
        for metric in metrics:
            try:
                moved = _moved(metric, clip, index)
            except ValueError as error:
                notes.append(f"left out: {case.id}, {metric.name}: {error}")
                continue
            for key, change in moved.items():
                changes.setdefault(key, []).append(change)
    return make_result(
        f"sensitivity_{name}",
        f"How far metrics move where nothing that matters changed, {manifest.name}",
        _numbers(metrics, changes),
        weights={metric.name: metric.weights for metric in metrics},
        notes=[
            f"{len(manifest.cases)} cases of {manifest.name} ({manifest.fingerprint}), videos: "
            f"{system.source}; each number is the mean over cases of |changed - as it is|",
            "H.264 through libx264 medium, yuv420p; sound is not encoded again",
            *notes,
        ],
    )


def _clip(manifest: Manifest, case: CaseFiles, system: System, convert: bool) -> Clip:
    if fault := file_fault(manifest, case):
        raise ValueError(fault)
    delivery = system.deliver(manifest, case)
    if delivery.path is None:
        raise ValueError(delivery.reason)
    return CaseMedia(manifest, case).clip(delivery.path, convert=convert)


def _moved(metric: Scorer, clip: Clip, seed: int) -> dict[tuple[str, str], float]:
    """(output, variant) → how far it moves for one clip, which lies in memory for it."""
    frames = torch.cat([block for _, block in clip.video.blocks()])
    still = metric.score(clip).values
    moved = {}
    for variant in VARIANTS:
        moving = variant.change(frames, np.random.default_rng(seed))
        changed = metric.score(replace(clip, video=Footage.of(moving, clip.video.audio))).values
        for key, value in still.items():
            moved[key, variant.name] = abs(changed[key] - value)
    return moved


def _numbers(
    metrics: list[Scorer], changes: dict[tuple[str, str], list[float]]
) -> dict[str, Number]:
    numbers = {}
    for output in (output for metric in metrics for output in metric.outputs):
        for variant in VARIANTS:
            values = changes.get((output.key, variant.name), [])
            if not values:
                continue  # no case could be scored: the notes say why
            if len(values) < 2:
                raise ValueError(f"a change needs 2 cases for its interval, {output.key} has 1")
            numbers[f"{output.key}_{variant.name}"] = mean_of(np.array(values)).described(
                f"{output.label}: {variant.words}", unit=output.unit
            )
    return numbers
