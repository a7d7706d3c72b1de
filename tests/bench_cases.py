"""A small benchmark on disk for the tests: world cases of one second or two, spoilt videos, and
the rows of a run."""

from pathlib import Path

import av
import polars as pl
import torch
from torch import Tensor

from avatar_v.media.writer import Mp4Writer
from avatar_v.scoring.clip import Footage, ScoredClip
from avatar_v.types import SAMPLES_PER_FRAME
from avatar_v.world.clip import WorldClip, make_clip
from avatar_v_eval import cli
from avatar_v_eval.bench.manifest import BenchManifest
from avatar_v_eval.bench.world70 import DrawnSet, write_world

PLAN = DrawnSet(name="w", num_cases=3, num_frames=50, first=11, size=64)


def make_manifest(folder: Path, plan: DrawnSet = PLAN) -> BenchManifest:
    """World cases in ``folder``."""
    return write_world(folder, plan)[0]


def world_clip(index: int, num_frames: int = 75, *, scene: int = 0) -> WorldClip:
    """A TEST person of the tests, in one of their scenes with words of their own."""
    base = 2_000_000 + 20 + index
    return make_clip(base, base + 500 * scene, base + 500 * scene, num_frames=num_frames, size=64)


def footage(clip: WorldClip) -> Footage:
    """As rendered, never encoded."""
    assert clip.video is not None
    return Footage.of(clip.video, clip.audio)


def pixels(video: Footage) -> Tensor:
    """All frames."""
    return torch.cat([frames for _, frames in video.blocks()])


def judged(index: int, video: Footage | None = None, num_frames: int = 75) -> ScoredClip:
    """The true video of a person, or ``video`` in its place, with the inputs of the case."""
    truth = footage(world_clip(index, num_frames))
    reference = footage(world_clip(index, num_frames, scene=1))
    return ScoredClip(video or truth, reference, pixels(truth)[0], truth)


def late(video: Footage, num: int) -> Footage:
    """The picture ``num`` frames later than it was; the sound stays."""
    frames = pixels(video)
    if num >= 0:
        moved = torch.cat([frames[:1].repeat(num, 1, 1, 1), frames[: len(frames) - num]])
    else:
        moved = torch.cat([frames[-num:], frames[-1:].repeat(-num, 1, 1, 1)])
    return Footage.of(moved, video.audio)


def write_video(path: Path, frames: Tensor, audio: Tensor | None, rate: int = 25) -> None:
    """A video as some other system might write it: any rate, with sound or without."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if audio is not None and rate == 25:
        with Mp4Writer(path, audio) as writer:
            writer.write(frames)
        return
    with av.open(str(path), "w") as container:
        stream = container.add_stream("libx264", rate=rate)
        stream.height, stream.width = frames.shape[2:]
        stream.pix_fmt = "yuv420p"
        sound = (
            container.add_stream("aac", rate=16_000, layout="mono") if audio is not None else None
        )
        for picture in frames.permute(0, 2, 3, 1).contiguous().numpy():
            container.mux(stream.encode(av.VideoFrame.from_ndarray(picture, format="rgb24")))
        container.mux(stream.encode(None))
        if sound is not None and audio is not None:
            for index in range(len(audio) // SAMPLES_PER_FRAME):
                part = audio[index * SAMPLES_PER_FRAME : (index + 1) * SAMPLES_PER_FRAME]
                frame = av.AudioFrame.from_ndarray(part[None].numpy(), "fltp", "mono")
                frame.sample_rate, frame.pts = 16_000, index * SAMPLES_PER_FRAME
                container.mux(sound.encode(frame))
            container.mux(sound.encode(None))


def bench(*words: object) -> int:
    """`avatar-v-eval` in this process."""
    return cli.main([str(word) for word in words])


def rows(folder: Path) -> pl.DataFrame:
    """Of a run."""
    return pl.read_parquet(folder / "cases.parquet")


def values(folder: Path, output: str) -> dict[str, list[float]]:
    """System → values in the order of cases."""
    one = rows(folder).filter(pl.col("output") == output).sort("case")
    return {name: one.filter(pl.col("system") == name)["value"].to_list() for name in
            one["system"].unique()}  # fmt: skip
