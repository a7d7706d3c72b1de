"""The user's own sound as a video delivers it: at the rate and with the channels of its file.

The networks take another one, 16 kHz mono (sound.py). Both begin at the same moment.
"""

from dataclasses import dataclass

import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from avatar_v.media.channels import channel_names
from avatar_v.media.sound import Sound
from avatar_v.types import FRAME_RATE_HZ, SAMPLE_RATE_HZ

RATES_HZ = (
    *(7_350, 8_000, 11_025, 12_000, 16_000, 22_050, 24_000, 32_000),
    *(44_100, 48_000, 64_000, 88_200, 96_000),
)
"""Of AAC; at 25 frames a second each is a whole number of samples a frame."""
LAYOUTS = {1: "mono", 2: "stereo", 3: "3.0", 4: "4.0", 5: "5.0", 6: "5.1", 7: "5.1", 8: "5.1"}
"""Of AAC, as players know them, by the number of channels of the file."""
MAX_BIT_RATE = 96_000
"""Of AAC, a channel."""


@dataclass(frozen=True)
class SoundFormat:
    """Rate and layout of a sound in a video, and the rate of its pictures."""

    sample_rate_hz: int = SAMPLE_RATE_HZ
    layout: str = "mono"
    frame_rate_hz: int = FRAME_RATE_HZ

    @property
    def num_channels(self) -> int:
        from av import AudioLayout  # not installed where no file is read

        return AudioLayout(self.layout).nb_channels

    @property
    def samples_per_frame(self) -> int:
        return self.sample_rate_hz // self.frame_rate_hz

    @property
    def coded_hz(self) -> int:
        """The rate that AAC has for it: its own, or the next one."""
        return min((r for r in RATES_HZ if r >= self.sample_rate_hz), default=RATES_HZ[-1])

    @property
    def bit_rate(self) -> int:
        """Of AAC: 6 bits a sample and channel is all that the format has room for."""
        return self.num_channels * min(MAX_BIT_RATE, 6 * self.sample_rate_hz)


def delivered_format(
    sample_rate_hz: int, layout: str, frame_rate_hz: int = FRAME_RATE_HZ
) -> SoundFormat:
    """The form in which a sound of this rate and layout is delivered: its own, or the next that AAC
    has, with a whole number of samples a frame. Mono where nothing is known of the places of three
    and more channels."""
    from av import AudioLayout

    whole = [r for r in RATES_HZ if r % frame_rate_hz == 0]
    rate = min((r for r in whole if r >= sample_rate_hz), default=whole[-1])
    names = channel_names(AudioLayout(layout))
    places_known = len(names) <= 2 or {"FL", "FR"} <= {*names}
    layout = LAYOUTS.get(len(names), "mono") if places_known else "mono"
    return SoundFormat(rate, layout, frame_rate_hz)


@dataclass(frozen=True)
class Delivered:
    """A whole sound in its form, its channels interleaved."""

    samples: Sound
    form: SoundFormat

    def of_frames(self, start: int, num: int) -> Float[Tensor, "c s"]:
        """The sound of ``num`` video frames; silence behind its end."""
        size = self.form.num_channels
        step = self.form.samples_per_frame * size
        part = self.samples[start * step : (start + num) * step]
        return F.pad(part, (0, num * step - len(part))).reshape(-1, size).T
