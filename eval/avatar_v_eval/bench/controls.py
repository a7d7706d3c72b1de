"""Systems whose place in a table is known beforehand: what a metric should see, and what not.

Made from the true videos of a manifest, each a folder that ``run --system NAME=FOLDER`` takes:
*still*, the first picture for the whole sound; *blurred*, pictures reduced to a quarter and
enlarged again, bicubic; *unsynced*, pictures from another part of the same clip, so that face,
scene and habits are right and the lips say other words. Where nothing that matters changed a metric
should see little, and a smaller difference between two systems says nothing: *coded*, H.264 at CRF
28; *late*, the picture one frame behind; *cropped*, a window that is a little elsewhere. All carry
the right sound.
"""

import io
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import av
import torch
import torch.nn.functional as F
from av.video.frame import VideoFrame

from avatar_v.media.reading import decode_video_bytes, read_audio, read_video
from avatar_v.media.writer import Mp4Writer
from avatar_v.scoring.pictures import Frames
from avatar_v.types import FRAME_RATE_HZ
from avatar_v_eval.bench.manifest import BenchManifest

BLUR = 4
"""Pictures of *blurred* lose this factor of their sides."""
CRF = 28
CROP = 32
"""*cropped* is without this part of the left and the upper side."""


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


def coded(frames: Frames) -> Frames:
    """Through H.264, yuv420p, as platforms do; sides must be even."""
    file = io.BytesIO()
    with av.open(file, "w", format="mp4") as container:
        stream = container.add_stream("libx264", rate=FRAME_RATE_HZ, options={"crf": str(CRF)})
        stream.height, stream.width = frames.shape[2:]
        stream.pix_fmt = "yuv420p"
        for picture in frames.permute(0, 2, 3, 1).contiguous().numpy():
            container.mux(stream.encode(VideoFrame.from_ndarray(picture, format="rgb24")))
        container.mux(stream.encode(None))
    return decode_video_bytes(file.getvalue())


def late(frames: Frames) -> Frames:
    """Every picture one frame later; the first is shown twice, the last is gone."""
    return torch.cat([frames[:1], frames[:-1]])


def cropped(frames: Frames) -> Frames:
    """Without a 32nd of the left and the upper side, at the old size."""
    height, width = frames.shape[2:]
    inside = frames[..., height // CROP :, width // CROP :].float()
    large = F.interpolate(inside, (height, width), mode="bilinear", align_corners=False)
    return large.round().to(torch.uint8)


@dataclass(frozen=True)
class Control:
    """One thing that is done to all true videos."""

    name: str
    change: Callable[[Frames], Frames]


CONTROLS = (
    Control("blurred", blurred),
    Control("unsynced", unsynced),
    Control("still", still),
    Control("coded", coded),
    Control("late", late),
    Control("cropped", cropped),
)


def write_controls(
    manifest: BenchManifest,
    out: Path,
    on_case: Callable[[int, int], None] = lambda done, total: None,
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
