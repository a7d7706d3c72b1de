"""Systems whose place in a table is known beforehand: what a metric should see, and what not.

Made from the true videos of a manifest, each a folder that ``run --system NAME=FOLDER`` takes:
*still*, the first picture for the whole sound; *blurred*, pictures reduced to a quarter and
enlarged again, bicubic; *unsynced*, pictures from another part of the same clip, so that face,
scene and habits are right and the lips say other words. All carry the right sound.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F

from avatar_v.media.reading import read_audio, read_video
from avatar_v.media.writer import Mp4Writer
from avatar_v_eval.bench.manifest import Manifest
from avatar_v_eval.scoring.pictures import Frames

BLUR = 4
"""Pictures of *blurred* lose this factor of their sides."""


def still(frames: Frames) -> Frames:
    """The first picture, as often as there are pictures."""
    return frames[:1].expand_as(frames)


def blurred(frames: Frames) -> Frames:
    """Each picture reduced (antialiased) and enlarged again, bicubic. ValueError below 4 pixels."""
    height, width = frames.shape[2:]
    if min(height, width) < BLUR:
        raise ValueError(f"pictures of {width} x {height} cannot be reduced {BLUR} times")
    small = F.interpolate(
        frames.float(), (height // BLUR, width // BLUR), mode="bicubic", antialias=True
    )
    large = F.interpolate(small, (height, width), mode="bicubic")
    return large.round().clamp(0, 255).to(torch.uint8)


def unsynced(frames: Frames) -> Frames:
    """The second half of the pictures, then the first: nothing is as far from its own sound."""
    return frames.roll(len(frames) // 2, dims=0)


@dataclass(frozen=True)
class Control:
    """One thing that is done to all true videos."""

    name: str
    change: Callable[[Frames], Frames]


CONTROLS = (
    Control("blurred", blurred),
    Control("unsynced", unsynced),
    Control("still", still),
)


def write_controls(
    manifest: Manifest, out: Path, on_case: Callable[[int, int], None] = lambda done, total: None
) -> list[Path]:
    """``out/NAME/CASE.mp4`` of every control; videos that are there stay. The folders.

    ValueError for a case without a true video, before anything is written.
    """
    if missing := [case.id for case in manifest.cases if case.truth is None]:
        raise ValueError(f"controls are made of true videos; without one: {', '.join(missing[:3])}")
    folders = [out / control.name for control in CONTROLS]
    for folder in folders:
        folder.mkdir(parents=True, exist_ok=True)
    for index, case in enumerate(manifest.cases):
        on_case(index, len(manifest.cases))
        paths = [folder / f"{case.id}.mp4" for folder in folders]
        if all(path.is_file() for path in paths):
            continue
        truth = manifest.path(case, "truth")
        frames, audio = read_video(truth), read_audio(truth)
        for path, control in zip(paths, CONTROLS, strict=True):
            with Mp4Writer(path, audio) as writer:
                writer.write(control.change(frames))
    on_case(len(manifest.cases), len(manifest.cases))
    return folders
