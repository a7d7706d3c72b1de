"""Where somebody speaks, and how loud it is: Silero VAD, whose weights lie in its package."""

import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version
from typing import Any, ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from avatar_v.types import SAMPLE_RATE_HZ, SAMPLES_PER_FRAME
from avatar_v_data.curation.stages import (
    Clip,
    Reader,
    Reads,
    Seen,
    Stage,
    Waveform,
    rounded,
    seconds,
)

Spans = Sequence[Sequence[float]]
QUIETEST = -60.0

HOW_TO_INSTALL = "finding speech needs silero-vad: pip install 'avatar_v[data]'"


@dataclass(frozen=True)
class SpeechStage(Stage):
    """``threshold``: the probability of speech above which a window of 32 ms holds some.

    ``speech``: spans in seconds. ``loudness``: of each frame, in dB.
    """

    threshold: float = 0.5

    name: ClassVar[str] = "speech"
    version: ClassVar[int] = 1
    reads: ClassVar[Reads] = "sound"
    needs: ClassVar[tuple[str, ...]] = ("probe",)

    def weights(self) -> str:
        if importlib.util.find_spec("silero_vad") is None:
            raise ValueError(HOW_TO_INSTALL)
        return version("silero-vad")

    def begin(self, seen: Seen) -> Reader:
        import silero_vad

        found = silero_vad.get_speech_timestamps(
            seen.audio, _model(), threshold=self.threshold, sampling_rate=SAMPLE_RATE_HZ
        )
        spans = [[span["start"], span["end"]] for span in found]
        spoken = [[round(x / SAMPLE_RATE_HZ, 3) for x in span] for span in spans]
        return Reader({"speech": spoken, "loudness": rounded(loudness(seen.audio), 1)})


def spoken_in(spans: Spans, clip: Clip) -> list[tuple[float, float]]:
    """Where somebody speaks in a clip, in seconds from its start. ``spans``: of the recording."""
    start_s, stop_s = seconds(clip.start), seconds(clip.stop)
    within = ((max(a, start_s) - start_s, min(b, stop_s) - start_s) for a, b in spans)
    return [span for span in within if span[0] < span[1]]


def loudness(audio: Waveform) -> Float[Tensor, " f"]:
    """Of each frame, in dB of full scale; `QUIETEST` at least."""
    num = len(audio) // SAMPLES_PER_FRAME
    power = audio[: num * SAMPLES_PER_FRAME].view(num, SAMPLES_PER_FRAME).square().mean(1)
    return (10 * torch.log10(power.clamp_min(1e-12))).clamp_min(QUIETEST)


@cache
def _model() -> Any:
    import silero_vad

    return silero_vad.load_silero_vad()
