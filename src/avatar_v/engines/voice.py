"""The voice engine: a script to speech at 16 kHz, by the drawn voice or a text-to-speech model.

Avatar V §2.3. The engine knows nothing of video: its sound is an input like a recorded one. The
seed decides everything: the same script, voice, seed and machine give the same bytes.
"""

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from avatar_v.engines.checks import check_script
from avatar_v.engines.script import checked_text, read_script
from avatar_v.engines.voices import drawn_number, is_drawn
from avatar_v.media.sound import normalise_loudness
from avatar_v.types import SAMPLES_PER_FRAME

FULL_SCALE = 32768
"""Of 16-bit samples."""


@runtime_checkable
class VoiceEngine(Protocol):
    """What says a text."""

    def speak(self, text: str, *, seed: int) -> Float[Tensor, " s"]:
        """Speech at 16 kHz, at any level. ValueError for a text that it cannot say."""
        ...


@dataclass(frozen=True)
class Said:
    """What was said, how, and by what."""

    text: str
    engine: str  # the class of the engine
    voice: str  # as it was asked for
    seed: int


def find_voice(voice: str) -> VoiceEngine:
    """The engine of a name or folder; its weights are loaded. ValueError as `check_script`."""
    from avatar_v.engines.drawn_voice import DrawnVoice
    from avatar_v.engines.stored_voice import StoredVoice

    return DrawnVoice(drawn_number(voice)) if is_drawn(voice) else StoredVoice(voice)


def speak_script(script: str, voice: str, *, seed: int) -> tuple[Float[Tensor, " s"], Said]:
    """The speech of a script, as a file of 16 bits keeps it: at -23 LUFS, a whole number of video
    frames. ValueError as `check_script`, and for a text that the engine cannot say."""
    check_script(script, voice)
    return speak_text(read_script(script), voice, seed=seed)


def speak_text(text: str, voice: str, *, seed: int) -> tuple[Float[Tensor, " s"], Said]:
    """The same of a text that is no file's name."""
    checked_text(text)
    engine = find_voice(voice)
    sound = normalise_loudness(engine.speak(text, seed=seed))
    sound = F.pad(sound, (0, -len(sound) % SAMPLES_PER_FRAME))
    sound = (sound * FULL_SCALE).round().clamp(-FULL_SCALE, FULL_SCALE - 1) / FULL_SCALE
    return sound, Said(text, type(engine).__name__, voice, seed)
