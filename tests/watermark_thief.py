"""What someone can do who knows how marks are drawn, and has one marked video, but not the key."""

import torch
import torch.nn.functional as F
from jaxtyping import Float, UInt8
from torch import Tensor

from avatar_v.safety.detect import mean_of_cycle, waves
from avatar_v.safety.watermark import CELLS, CYCLE, luma, mark_change, wave

Video = UInt8[Tensor, "f 3 h w"]
Signs = Float[Tensor, "cycles cells cells"]


def taken_signs(video: Video | Float[Tensor, "f 3 h w"], period: int | None = None) -> Signs:
    """The guessed signs of each cycle of a whole video: whether cells change with the mark's wave
    or against it. With ``period`` as if the mark came again after so many frames: from the mean
    over all its repeats."""
    cells = F.interpolate(luma(video.float())[:, None], (CELLS, CELLS), mode="area")[:, 0]
    rest = cells - mean_of_cycle(cells)
    rest = (rest / (rest.square().mean(0).sqrt() + 0.3)).clamp(-2, 2)
    if period is not None:
        time = torch.arange(len(rest)) % period
        rest = torch.zeros(period, CELLS, CELLS).index_add_(0, time, rest)[time]
    return torch.einsum("tf,fyx->tyx", waves(len(rest), 1.0)[0], rest).sign()


def with_signs(video: Video, signs: Signs, times: float = 1.0) -> Video:
    """The video with signs drawn as a mark draws its own, so many times as strong."""
    drawn = torch.empty_like(video)
    for i, frame in enumerate(video):
        pixels = frame.float()
        change = mark_change(luma(pixels)[None, None], signs[i // CYCLE] * wave(i % CYCLE))
        drawn[i] = (pixels + times * change).round().clamp(0, 255).to(torch.uint8)
    return drawn
