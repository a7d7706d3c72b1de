"""The voice engine: a script to speech at 16 kHz, by the drawn voice, a text-to-speech model, or a
model that continues a recording.

Avatar V §2.3. The engine knows nothing of video: its sound is an input like a recorded one. The
seed decides everything: the same script, voice, seed and machine give the same bytes.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from avatar_v.engines.checks import check_script
from avatar_v.engines.script import checked_text, read_script
from avatar_v.engines.voices import drawn_number, is_drawn, is_voice_file
from avatar_v.media.sound import normalise_loudness
from avatar_v.types import SAMPLES_PER_FRAME

FULL_SCALE = 32768
"""Of 16-bit samples."""


@runtime_checkable
class VoiceEngine(Protocol):
    """What says a text."""

    def speak(self, text: str, *, seed: int) -> Float[Tensor, " s"]:
        """Speech at 16 kHz, at any level: all `pieces`. ValueError for what it cannot say."""
        ...

    def pieces(self, text: str, *, seed: int) -> Iterator[Float[Tensor, " s"]]:
        """The same while it is made, cut where nobody hears it. ValueError here for a text that it
        cannot say, as far as that is known before it is said; else where the piece is taken."""
        ...


@dataclass(frozen=True)
class Said:
    """What was said, how, and by what."""

    text: str
    engine: str  # the class of the engine
    voice: str  # as it was asked for
    seed: int


def find_voice(voice: str, engine: str | None = None) -> VoiceEngine:
    """The engine of a name, folder or voice file, which the model in the folder ``engine`` says;
    its weights are loaded. ValueError as `check_script`."""
    from avatar_v.engines.cloned_voice import ClonedVoice
    from avatar_v.engines.drawn_voice import DrawnVoice
    from avatar_v.engines.stored_voice import StoredVoice

    if is_drawn(voice):
        return DrawnVoice(drawn_number(voice))
    return ClonedVoice(voice, engine) if is_voice_file(voice) else StoredVoice(voice)


def speak_script(
    script: str, voice: str, *, seed: int, engine: str | None = None
) -> tuple[Float[Tensor, " s"], Said]:
    """The speech of a script, as a file of 16 bits keeps it: at -23 LUFS, a whole number of video
    frames. ValueError as `check_script`, and for a text that the engine cannot say."""
    check_script(script, voice, engine)
    return speak_text(read_script(script), voice, seed=seed, engine=engine)


def speak_text(
    text: str, voice: str, *, seed: int, engine: str | None = None
) -> tuple[Float[Tensor, " s"], Said]:
    """The same of a text that is no file's name."""
    checked_text(text)
    speaker = find_voice(voice, engine)
    sound = normalise_loudness(speaker.speak(text, seed=seed))
    sound = F.pad(sound, (0, -len(sound) % SAMPLES_PER_FRAME))
    sound = (sound * FULL_SCALE).round().clamp(-FULL_SCALE, FULL_SCALE - 1) / FULL_SCALE
    return sound, Said(text, type(speaker).__name__, voice, seed)
