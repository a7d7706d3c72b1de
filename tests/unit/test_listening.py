"""motion/listening.py: a voice to nods, the same in any pieces, and never in the past."""

import math

import pytest
import torch
from torch import Tensor

from avatar_v.motion.listening import DELAY_S, PAUSE_S, Listener, listening, with_added
from avatar_v.motion.stats import MotionStats
from avatar_v.motion.vectors import motion_frames
from avatar_v.types import MOTION_NAMES, SAMPLE_RATE_HZ

_MEAN = torch.linspace(-0.2, 0.2, len(MOTION_NAMES))
STATS = MotionStats(_MEAN, _MEAN.abs() + 0.1, torch.zeros(2), torch.ones(2))
PITCH = MOTION_NAMES.index("pitch")


def voice(*spans: tuple[float, float], length_s: float) -> Tensor:
    """Noise where somebody speaks, almost nothing elsewhere."""
    draw = torch.Generator().manual_seed(0)
    sound = 1e-4 * torch.randn(round(length_s * SAMPLE_RATE_HZ), generator=draw)
    for start, stop in spans:
        part = slice(round(start * SAMPLE_RATE_HZ), round(stop * SAMPLE_RATE_HZ))
        sound[part] += 0.1 * torch.randn(len(sound[part]), generator=draw)
    return sound


def moved(listener: Listener, start: int, stop: int) -> Tensor:
    """What is added to the frames "f m" of these latents."""
    still = torch.zeros(1, stop - start, 4 * len(MOTION_NAMES))
    made = with_added(still, listener.added(start, stop, STATS))
    return (motion_frames(made, STATS) - motion_frames(still, STATS))[0]


def test_a_nod_follows_a_phrase() -> None:
    sound = voice((1.0, 3.0), (3.1, 3.4), (6.0, 6.3), length_s=10)
    listener = listening(sound.split(1000), seed=1)
    (nod,) = listener.nods  # the gap at 3.0 is none, and what follows 6.0 is no phrase
    assert nod.start == pytest.approx(25 * (3.4 + PAUSE_S + DELAY_S), abs=2)
    frames = moved(listener, 0, 62)[3:]  # the first latent is four times its frame
    pitch = frames[:, PITCH]
    down = (pitch < -0.01).nonzero()[:, 0]
    assert nod.start < int(down[0]) < nod.start + 6
    assert float(-pitch.min()) == pytest.approx(nod.depth_rad, rel=0.1)
    assert float((pitch[1:] - pitch[:-1]).abs().max()) < 0.05, "no jump"
    torch.testing.assert_close(pitch, listener.pitch(len(pitch)))
    assert torch.equal(frames.abs().amax(0).nonzero()[:, 0], torch.tensor([PITCH]))
    whole = listening([sound], seed=1)
    assert whole.digest() == listener.digest() != listening([sound], seed=2).digest()
    parts = [moved(whole, start, start + 7) for start in (0, 5, 10, 15, 20, 25)]  # chunks overlap
    joined = torch.cat([parts[0], *(part[8:] for part in parts[1:])])[3:]
    torch.testing.assert_close(joined, frames[: len(joined)])
    assert len(joined) > int(down[-1])


def test_live_nothing_is_changed_that_was_made() -> None:
    sound, listener, shown = voice((0.2, 1.5), length_s=5), Listener(is_live=True), []
    before = None
    for block in range(10):  # latents of half a second; the sound comes a second late
        listener.push(sound[max(0, block - 2) * 8000 : max(0, block - 1) * 8000])
        frames = moved(listener, 3 * block, 3 * block + 5)
        if before is not None:
            torch.testing.assert_close(frames[:8], before[-8:])
        before = frames
        shown.append(frames if block == 0 else frames[8:])
    pitch = torch.cat(shown)[:, PITCH]
    assert float(pitch.min()) < -0.05
    assert float((pitch[1:] - pitch[:-1]).abs().max()) < 0.05
    assert listener.added(100, 103, STATS) is None


def test_silence_and_a_broken_sound_do_nothing() -> None:
    for sound in (torch.zeros(0), torch.zeros(32_000), torch.full((32_000,), math.nan)):
        assert listening([sound], seed=0).nods == []
