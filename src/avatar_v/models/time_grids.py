"""From video frames to the time of audio encoders that were trained elsewhere, and back.

They hear 16 kHz and give 50 states a second. A video frame has 640 samples whatever its rate is, so
at 24 frames a second its sound has 15.36 kHz and at 30 it has 19.2 kHz. Here that becomes 16 kHz,
and states become features of frames. At 25 frames a second both are as they were: no resampling,
and the mean of two states. Time is relative to the first sample given, so windows of a stream are
by themselves.
"""

import math

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from avatar_v.types import FRAME_RATE_HZ, SAMPLE_RATE_HZ

STATE_RATE_HZ = 50

_ZEROS = 32  # crossings of the filter's sinc on each side
_ROLLOFF = 0.95  # its edge, as a share of the lower rate's half
_BETA = 8.0  # of its Kaiser window: 80 dB


def num_states(num_frames: int, frame_rate_hz: int) -> int:
    """States that cover so many video frames; the last may reach beyond them."""
    return -(-num_frames * STATE_RATE_HZ // frame_rate_hz)


def at_16_khz(waveform: Float[Tensor, "b s"], frame_rate_hz: int) -> Float[Tensor, "b t"]:
    """A waveform of 640 samples a frame at 16 kHz, t = s · 25 / ``frame_rate_hz`` rounded up,
    computed in fp32. Band-limited, without delay; silence lies around it.

    A windowed sinc in phases, on the waveform's device, where PyAV's resampler, which files pass,
    is not.
    """
    if frame_rate_hz == FRAME_RATE_HZ:
        return waveform
    common = math.gcd(FRAME_RATE_HZ, frame_rate_hz)
    up, down = FRAME_RATE_HZ // common, frame_rate_hz // common
    num = -(-waveform.shape[1] * up // down)
    num_periods = -(-num // up)
    filters, reach = _filters(up, down)
    with torch.autocast(waveform.device.type, enabled=False):
        behind = num_periods * down - waveform.shape[1] + reach
        padded = F.pad(waveform.float(), (reach, behind))
        periods = padded.unfold(-1, down + 2 * reach, down)
        return (periods @ filters.to(padded)).flatten(1)[:, :num].type_as(waveform)


def of_frames(
    states: Float[Tensor, "b n d"], first: int, num: int, frame_rate_hz: int
) -> Float[Tensor, "b f d"]:
    """Features of ``num`` video frames from number ``first`` on, in fp32: the mean of the states
    over the time of each frame, i / rate … (i + 1) / rate; state j lasts from j / 50 s to
    (j + 1) / 50 s. ValueError where the states end before the frames do."""
    if num_states(first + num, frame_rate_hz) > states.shape[1]:
        raise ValueError(f"{states.shape[1]} states do not cover {first + num} frames")
    # In units of which a state has ``frame_rate_hz`` and a frame 50: whole numbers.
    start = STATE_RATE_HZ * torch.arange(first, first + num, device=states.device)
    stop, found = start + STATE_RATE_HZ, torch.zeros((), device=states.device)
    latest = frame_rate_hz - math.gcd(STATE_RATE_HZ, frame_rate_hz)  # in a state that one begins
    for k in range(math.ceil((latest + STATE_RATE_HZ) / frame_rate_hz)):
        state = start // frame_rate_hz + k
        begin = state * frame_rate_hz
        shared = torch.minimum(stop, begin + frame_rate_hz) - torch.maximum(start, begin)
        weight = shared.clamp_min(0).float() / STATE_RATE_HZ
        taken = states[:, state.clamp_max(states.shape[1] - 1)].float()
        found = found + weight[:, None] * taken
    return found


def _filters(up: int, down: int) -> tuple[Float[Tensor, "tap phase"], int]:
    """What each of ``up`` samples weighs of ``down`` samples and ``reach`` more on each side."""
    edge = _ROLLOFF * min(1.0, up / down)  # of half the rate of what is heard
    width = _ZEROS / edge
    reach = math.ceil(width)
    with torch.device("cpu"):  # also where the network has no memory yet
        tap = torch.arange(-reach, down + reach, dtype=torch.float64)[:, None]
        at = tap - torch.arange(up, dtype=torch.float64) * down / up
    window = torch.special.i0(_BETA * (1 - (at / width).square()).clamp_min(0).sqrt())
    window = torch.where(at.abs() < width, window, 0) / torch.special.i0(at.new_tensor(_BETA))
    return edge * torch.sinc(edge * at) * window, reach


assert STATE_RATE_HZ * 320 == SAMPLE_RATE_HZ
