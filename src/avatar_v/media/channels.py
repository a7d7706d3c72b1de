"""The voice in a sound of several channels: one channel, for the network and the judges.

What a video delivers keeps its channels (delivered.py). Everything here looks at the past alone
and gives the same however the sound is cut into parts, so a live sound becomes what its file does.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import scipy
from jaxtyping import Float

if TYPE_CHECKING:  # not installed where no file is read
    import av

GUESSED = {6: "5.1", 8: "7.1"}
"""Layouts of files that name no positions, by their number of channels; as FFmpeg takes them."""
MEMORY_S = 0.5
"""Of the powers that tell whether two channels cancel each other (our choice)."""
CANCELLED, KEPT = 0.05, 0.15
"""Power of the mean of two channels over their mean power: opposite channels have 0, unrelated ones
0.5, equal ones 1. Between these the difference takes the place of the mean smoothly."""
SILENT_PEAK = 1e-3
"""-60 dB of full scale: what stays below it all along is no speech."""
_FLOOR = 1e-9  # power: the noise of 16 bits is no voice that cancels

Channels = Float[np.ndarray, "c s"]
Mono = Float[np.ndarray, " s"]


class VoiceChannel:
    """``voice(part)`` gives the voice of each part of a sound, in order.

    The centre of a surround sound, from the moment it is heard; else the mean of front left and
    right, or of the two channels; where these cancel, half their difference, which is then what
    each of them holds. Of other layouts the mean of all but the low-frequency channel.
    """

    def __init__(self, layout: "av.AudioLayout", sample_rate_hz: int) -> None:
        names = channel_names(layout)
        self._centre = names.index("FC") if "FC" in names and len(names) > 1 else None
        self._keep = 0.5 ** (1 / (MEMORY_S * sample_rate_hz))
        self._powers = np.zeros((2, 1))  # of the filters
        self._is_centre_heard = False
        if "FL" in names and "FR" in names:
            self._others = [names.index("FL"), names.index("FR")]
        else:
            self._others = [i for i, name in enumerate(names) if name not in ("LFE", "FC")]
            self._others = self._others or list(range(len(names)))

    def __call__(self, samples: Channels) -> Mono:
        others = samples[self._others]
        voice = self._pair(others) if len(others) == 2 else others.mean(0)
        if self._centre is not None:
            voice = self._centred(samples[self._centre], voice)
        return voice.astype(np.float32, copy=False)

    def _centred(self, centre: Mono, others: Mono) -> Mono:
        heard = np.maximum.accumulate(np.abs(centre) > SILENT_PEAK) | self._is_centre_heard
        self._is_centre_heard = self._is_centre_heard or bool(heard.any())
        return np.where(heard, centre, others)

    def _pair(self, pair: Float[np.ndarray, "2 s"]) -> Mono:
        mean = pair.mean(0)
        powers = np.stack([np.square(mean), np.square(pair).mean(0)]).astype(np.float64) + _FLOOR
        smooth, self._powers = scipy.signal.lfilter(
            [1 - self._keep], [1, -self._keep], powers, zi=self._powers
        )
        with np.errstate(invalid="ignore"):  # of samples that are no numbers, which are refused
            away = np.clip((KEPT - smooth[0] / smooth[1]) / (KEPT - CANCELLED), 0, 1)
            return np.where(away > 0, mean + away * ((pair[0] - pair[1]) / 2 - mean), mean)


def channel_names(layout: "av.AudioLayout") -> Sequence[str]:
    """Positions such as "FL", in the order of the samples; "NONE" where they are not known."""
    names = [channel.name for channel in layout.channels]
    if set(names) == {"NONE"} and len(names) in GUESSED:
        from av import AudioLayout

        return channel_names(AudioLayout(GUESSED[len(names)]))
    return names


def frame_samples(frame: "av.AudioFrame") -> Channels:
    """The samples of a frame of format "flt". (PyAV reads past the planes of a planar frame of
    eight and more channels.)"""
    assert frame.format.name == "flt"
    return frame.to_ndarray().reshape(-1, frame.layout.nb_channels).T
