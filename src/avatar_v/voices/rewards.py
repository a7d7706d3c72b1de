"""What speech is rewarded for (Avatar V §2.3), and what opposes each: clear speech that is slow or
full of pauses, and a voice that says nothing. All are larger for better speech."""

import math
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from avatar_v.shards.schema import to_int16
from avatar_v.types import SAMPLE_RATE_HZ, SAMPLES_PER_FRAME
from avatar_v.voices.model import vector_of
from avatar_v.voices.phonemes import SILENT

QUIET_DB = -40.0
"""Below the loudest frame: a frame is silent."""
LOUD = 0.6
"""Of full scale, where PocketSphinx hears best."""
NEEDS = "phonemes of speech need pocketsphinx: pip install 'avatar_v[extract]'"

Sound = Float[Tensor, " s"]
Spans = Sequence[tuple[int, int]]
"""Of each phoneme its first frame, and the one behind its last."""


def heard_phonemes(sound: Sound) -> list[str]:
    """What PocketSphinx hears, phoneme by phoneme, in English. ValueError where it is missing."""
    decoder = _decoder()
    decoder.reinit_feat()  # which forgets the sound before
    level = float(sound.abs().max()) if len(sound) else 0.0
    samples = to_int16(sound * (LOUD / max(level, 1e-6)))
    decoder.start_utt()
    decoder.process_raw(samples.numpy().tobytes(), full_utt=True)
    decoder.end_utt()
    return [part.word for part in decoder.seg() or () if part.word.isalpha()]


def phoneme_error(sound: Sound, phonemes: Sequence[str]) -> float:
    """Edits from what is heard to what was to be said, a share of that; pauses do not count."""
    from torchmetrics.functional.text import word_error_rate

    heard, said = (
        " ".join(name for name in names if name not in SILENT)
        for names in (heard_phonemes(sound), phonemes)
    )
    return float(word_error_rate(heard, said))


def likeness(sound: Sound, vector: Float[np.ndarray, " v"]) -> float:
    """The cosine of its voice with another, by Resemblyzer."""
    own = vector_of(sound)
    return float(own @ vector / max(float(np.linalg.norm(own) * np.linalg.norm(vector)), 1e-9))


def rate_error(num_frames: int, expected: float) -> float:
    """The logarithm of how much longer or shorter speech is than expected."""
    return abs(math.log(max(num_frames, 1) / max(expected, 1.0)))


def pause_error(sound: Sound, phonemes: Sequence[str], spans: Spans) -> float:
    """The share of speech that is silent, and of pauses that are not: the mean of both."""
    frames = sound[: len(sound) // SAMPLES_PER_FRAME * SAMPLES_PER_FRAME]
    powers = frames.view(-1, SAMPLES_PER_FRAME).square().mean(1)
    if not len(powers):
        return 1.0
    is_quiet = powers <= powers.max() * 10 ** (QUIET_DB / 10)
    is_pause = torch.zeros(len(powers), dtype=torch.bool)
    for name, (start, stop) in zip(phonemes, spans, strict=True):
        is_pause[start:stop] = name in SILENT
    wrong = [(is_quiet != own)[is_pause == own] for own in (True, False)]
    return float(np.mean([part.double().mean() for part in wrong if len(part)]))


REWARDS: Mapping[str, Callable[[dict[str, Any]], float]] = {
    "pronunciation": lambda row: -phoneme_error(row["sound"], row["phonemes"]),
    "likeness": lambda row: likeness(row["sound"], row["vector"]),
    "rate": lambda row: -rate_error(row["num_frames"], row["expected"]),
    "pauses": lambda row: -pause_error(row["sound"], row["phonemes"], row["spans"]),
}
"""Of speech with ``sound``, ``phonemes``, their ``spans``, ``num_frames``, those that are
``expected``, and the ``vector`` of the voice."""


@cache
def _decoder() -> Any:
    try:
        from pocketsphinx import Decoder, get_model_path
    except ImportError as error:
        raise ValueError(NEEDS) from error
    folder = get_model_path() + "/en-us/"
    return Decoder(
        hmm=folder + "en-us", allphone=folder + "en-us-phone.lm.bin", lm=None, dict=None, lw=2.0,
        samprate=SAMPLE_RATE_HZ, cmn="batch", loglevel="FATAL",
    )  # fmt: skip
