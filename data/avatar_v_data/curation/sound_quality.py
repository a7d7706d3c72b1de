"""How clean the sound of a clip is. Formulas alone."""

import math
from dataclasses import dataclass
from typing import ClassVar

import torch

from avatar_v.types import FRAME_RATE_HZ, SAMPLE_RATE_HZ, SAMPLES_PER_FRAME
from avatar_v_data.curation.speech import spoken_in
from avatar_v_data.curation.stages import Clip, Result, Seen, SoundScorer

FULL = 0.99
"""Of full scale, from which on a sample is clipped."""
FEWEST_PAUSES = 5
"""Frames without speech that say how loud the noise is."""
MOST_DB = 60.0
ENERGY = 0.99
"""Of a sound, below its bandwidth."""


@dataclass(frozen=True)
class SoundQualityStage(SoundScorer):
    """Columns: ``snr_db``, how much louder speech is than what is heard in its pauses, -60 to 60
    dB; ``clipped_share`` of the samples, at full scale; ``bandwidth_hz``, below which 99 % of the
    energy lies, 8 kHz at most."""

    name: ClassVar[str] = "sound_quality"
    version: ClassVar[int] = 1
    needs: ClassVar[tuple[str, ...]] = ("speech", "clips")
    numbers: ClassVar[tuple[str, ...]] = ("snr_db", "clipped_share", "bandwidth_hz")

    def score(self, clip: Clip, seen: Seen) -> Result:
        sound = clip.sound(seen.audio)
        spoken = torch.zeros(clip.stop - clip.start, dtype=torch.bool)
        for start_s, stop_s in spoken_in(seen.results["speech"]["speech"], clip):
            spoken[int(start_s * FRAME_RATE_HZ) : math.ceil(stop_s * FRAME_RATE_HZ)] = True
        power = sound.double().view(-1, SAMPLES_PER_FRAME).square().mean(1)
        energy = torch.fft.rfft(sound.double()).abs().square().cumsum(0)
        above = int((energy < ENERGY * energy[-1]).sum())
        return {
            "snr_db": round(snr_db(power, spoken), 2),
            "clipped_share": round(float((sound.abs() >= FULL).double().mean()), 6),
            "bandwidth_hz": round(above * SAMPLE_RATE_HZ / len(sound)),
        }


def snr_db(power: torch.Tensor, spoken: torch.Tensor) -> float:
    """Of each frame its power, and whether somebody speaks. Speech is heard over noise, whose
    power is taken off. Where there are few pauses the quietest tenth of all frames counts."""
    pauses = power[~spoken]
    if len(pauses) < FEWEST_PAUSES:
        pauses = power.sort().values[: max(len(power) // 10, 1)]
    noise = float(pauses.mean())
    both = float(power[spoken].mean()) if spoken.any() else noise
    ratio = torch.tensor([max(both - noise, 1e-12) / max(noise, 1e-12)])
    return float((10 * ratio.log10()).clamp(-MOST_DB, MOST_DB))
