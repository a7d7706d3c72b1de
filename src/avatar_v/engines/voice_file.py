"""A voice as a file: some seconds of speech, its words, and what is known of whose it is.

A safetensors file: samples of 16 bits at the rate of the model that it is for, and a vector of the
voice (critics/voice.py) where that could be computed; its header is JSON (`About`). The file is for
the model that it was made for alone. It holds biometric data, as a person file does.
inputs/voice_recording.py makes it of a recording.
"""

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import torch
from jaxtyping import Float, Int16
from safetensors.torch import save
from torch import Tensor

from avatar_v.base.outside import parse_json
from avatar_v.base.paths import whole_file
from avatar_v.base.states import read_with_header
from avatar_v.base.stored import Within, built
from avatar_v.engines.cloning import VoicePrompt
from avatar_v.engines.script import checked_text
from avatar_v.models.base import hash_folder
from avatar_v.voices.shipped import engine_folder

VERSION = 1
LEAST_S, MOST_S = 3.0, 30.0
"""Of the speech: less tells little of a voice, and models have room for no more."""
RATES_HZ = (8_000, 96_000)
MAX_BYTES = 1 << 24
ABOUT = "about"
FULL_SCALE = 32768


@dataclass(frozen=True)
class About:
    """What a voice file says of itself."""

    version: Annotated[int, Within(VERSION, VERSION)]
    source: str  # the file that was read
    transcript: str
    rate_hz: Annotated[int, Within(*RATES_HZ)]
    engine: str  # the name or folder of the model
    engine_hash: str
    critic_hash: str | None  # of the network that gave the vector
    person: str | None  # who agreed, and the SHA-256 of the record, where one was asked for
    consent_sha256: str | None


@dataclass(frozen=True)
class RecordedVoice:
    """A voice file, read."""

    path: str
    about: About
    sound: Int16[Tensor, " n"]
    vector: Float[Tensor, " d"] | None

    @property
    def prompt(self) -> VoicePrompt:
        return VoicePrompt(
            self.sound.float() / FULL_SCALE, self.about.rate_hz, self.about.transcript
        )

    def check_made_for(self, engine: str) -> None:
        """ValueError unless it is for the model of this name or folder."""
        if (found := hash_folder(engine_folder(engine))) != self.about.engine_hash:
            raise ValueError(
                f"{self.path} is for another model ({self.about.engine}, "
                f"{self.about.engine_hash}) than {engine} ({found}); make it for this one: "
                f"avatar-v voice {self.about.source} --engine {engine} --transcript …"
            )


def save_voice(path: str | Path, voice: RecordedVoice) -> None:
    """Write the file, whole or not at all; only its owner may read it."""
    tensors = {"sound": voice.sound.contiguous()}
    if voice.vector is not None:
        tensors["vector"] = voice.vector.contiguous()
    data = save(tensors, metadata={ABOUT: json.dumps(dataclasses.asdict(voice.about))})
    with whole_file(path) as partial:
        partial.unlink(missing_ok=True)
        partial.touch(mode=0o600)
        partial.write_bytes(data)


def read_voice(path: str | Path) -> RecordedVoice:
    """ValueError for a file that is none, is damaged, or whose parts are not as they should be."""
    if Path(path).is_file() and Path(path).stat().st_size > MAX_BYTES:
        raise ValueError(f"{path}: a voice file has at most {MAX_BYTES >> 20} MiB")
    tensors, header = read_with_header(Path(path))
    if ABOUT not in header:
        raise ValueError(f"{path} is no voice file: make one with avatar-v voice")
    about = built(About, parse_json(header[ABOUT].encode(), where=path), where=path)
    checked_text(about.transcript, where=str(path))
    sound, vector = tensors.get("sound"), tensors.get("vector")
    if sound is None or tensors.keys() - {"sound", "vector"}:
        raise ValueError(f"{path} is no voice file of this version: make it anew")
    fits = sound.ndim == 1 and sound.dtype == torch.int16
    fits = fits and LEAST_S <= len(sound) / about.rate_hz <= MOST_S
    if vector is not None:
        fits = fits and vector.ndim == 1 and vector.dtype == torch.float32
        fits = fits and len(vector) > 0 and bool(torch.isfinite(vector).all())
    if not fits or (vector is None) != (about.critic_hash is None):
        raise ValueError(f"{path}: its sound or vector is not as `avatar-v voice` writes them")
    return RecordedVoice(str(path), about, sound, vector)
