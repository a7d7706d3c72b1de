"""A look at shards: a few clips as a table, and as a sheet of frames over what is heard."""

from collections.abc import Sequence
from pathlib import Path

import matplotlib
import torch
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from torch import Tensor

from avatar_v.base.words import counted
from avatar_v.shards.loader import read_clip, read_folder
from avatar_v.shards.schema import Sample, to_float
from avatar_v.types import MOTION_NAMES

FRAMES_SHOWN = 10


def pick(folder: str | Path, num: int) -> list[Sample]:
    """``num`` clips spread evenly over the set (fewer if it holds fewer), decoded."""
    if num < 1:
        raise ValueError(f"at least one clip is shown, got {num}")
    clips = read_folder(folder)
    num = min(num, len(clips))
    chosen = [clips[round(i * (len(clips) - 1) / max(1, num - 1))] for i in range(num)]
    return [read_clip(clip, decode_video=clip.has_video) for clip in chosen]


def print_clips(samples: Sequence[Sample]) -> None:
    """A few lines a clip: who, where, what is known about it."""
    for sample in samples:
        meta, latents = sample.meta, sample.latents
        seen = 100 * float(sample.valid.float().mean())
        shape = "none" if latents is None else "x".join(map(str, latents.shape))
        listens = "" if sample.heard is None else " · listens to somebody"
        print(f"{sample.key}  {meta.text}")
        print(f"  person {meta.person} · scene {meta.scene} · sentence {meta.sentence}")
        print(
            f"  {counted(meta.num_frames, 'frame')} {meta.height}x{meta.width} · "
            f"face seen {seen:.0f} % · latents {shape} · "
            f"licence {meta.licence} · consent {meta.consent}{listens}"
        )


def sheet(samples: Sequence[Sample]) -> Figure:
    """For each clip: its prompt, frames from first to last, waveform and mouth opening."""
    figure = Figure(figsize=(12, 2.6 * len(samples)), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(2 * len(samples), 1, squeeze=False, height_ratios=[2, 1] * len(samples))
    for number, sample in enumerate(samples):
        above, below = axes[2 * number, 0], axes[2 * number + 1, 0]
        above.set_title(f"{sample.key}: {sample.meta.text}", fontsize=8, loc="left", wrap=True)
        above.axis("off")
        if sample.video is None:
            above.text(0.5, 0.5, "latents only, no video", ha="center")
        else:
            above.imshow(_strip(sample.video), aspect="equal")
        _curves(below, sample)
    return figure


def save_sheet(samples: Sequence[Sample], path: str | Path) -> None:
    """Write ``sheet`` to a picture file; ValueError if it cannot be written there."""
    if not Path(path).absolute().parent.is_dir():
        raise ValueError(f"{path}: its folder does not exist")
    with matplotlib.rc_context({"font.family": "DejaVu Sans"}):
        sheet(samples).savefig(path, dpi=110)


def _strip(video: Tensor):
    """Frames side by side, "h (n w) 3"."""
    which = torch.linspace(0, len(video) - 1, min(FRAMES_SHOWN, len(video))).round().long()
    return torch.cat(list(video[which].permute(0, 2, 3, 1)), dim=1).numpy()


def _curves(axis, sample: Sample) -> None:
    for sound, color, label in (
        (sample.heard, "tab:blue", "listened to"),
        (sample.audio, "tab:gray", "waveform"),
    ):
        if sound is not None:
            audio = to_float(sound)
            loudest = float(audio.abs().max().clamp(min=1e-6))
            at_s = torch.arange(len(audio)) / sample.meta.sample_rate_hz
            axis.plot(at_s, audio / loudest, lw=0.3, color=color, label=label)
    mouth = sample.motion[:, MOTION_NAMES.index("mouth_open")]
    frame_s = torch.arange(len(mouth)) / sample.meta.frame_rate_hz
    axis.plot(frame_s, mouth, lw=1.2, color="tab:red", label="mouth_open")
    hidden = (~sample.valid).float()
    axis.fill_between(frame_s, -hidden, hidden, step="post", alpha=0.2, label="face not seen")
    axis.set_xlim(0, len(mouth) / sample.meta.frame_rate_hz)
    axis.set_ylim(-1, 1)
    axis.tick_params(labelsize=6)
    axis.legend(fontsize=6, loc="lower right", ncols=3)
