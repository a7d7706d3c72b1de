"""Make a voice file (engines/voice_file.py) of a recording: is it some seconds of one voice?"""

from collections.abc import Sequence
from datetime import date
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from avatar_v.critics import voice
from avatar_v.engines.checks import check_engine
from avatar_v.engines.cloning import engine_rate_hz
from avatar_v.engines.script import checked_text
from avatar_v.engines.voice_file import (
    FULL_SCALE,
    LEAST_S,
    MOST_S,
    VERSION,
    About,
    RecordedVoice,
)
from avatar_v.inputs.consented import agreed_on, records_of_voice
from avatar_v.inputs.speech import whole_or_why
from avatar_v.media.sound import high_passed, measure_level
from avatar_v.models.base import hash_folder
from avatar_v.safety.consent import read_consents
from avatar_v.safety.statement import has_silero, speech_s
from avatar_v.types import SAMPLE_RATE_HZ
from avatar_v.voices.shipped import DEFAULT_ENGINE, engine_folder

QUIET_LUFS = -50.0
"""Of a recording: what is quieter is noise by the time that it is loud enough."""
LEAST_SPEECH = 0.5
"""The share of a recording in which somebody speaks."""
SECOND_VOICE = 0.2
"""The share of a recording's windows from which another voice is a second speaker."""


def record_voice(
    path: str | Path,
    *,
    transcript: str,
    engine: str,
    consent: Sequence[str] = (),
    today: date | None = None,
) -> tuple[RecordedVoice, tuple[str, ...]]:
    """The voice in a recording, for the model of the name or folder ``engine``, and what could not
    be checked. With ``consent`` it must be of one of these records.

    ValueError, which says what to change: a text without words, a folder without such a model, a
    recording that is too short, too long, too quiet, mostly pauses, of more than one voice, or of
    nobody who has agreed.
    """
    from avatar_v.media import reading

    checked_text(transcript, where="--transcript")
    check_engine(engine)
    records = read_consents(consent) if consent else ()
    heard = reading.read_audio(path)
    _check_length(path, len(heard) / SAMPLE_RATE_HZ)
    heard = high_passed(heard)
    assert isinstance(heard, Tensor)
    level = measure_level(heard)
    if not level.lufs >= QUIET_LUFS:
        raise ValueError(
            f"{path} is too quiet ({level.lufs:.0f} LUFS, at least {QUIET_LUFS:g}); record it "
            "louder"
        )
    notes = [*whole_or_why(path), *_check_speech(path, heard)]
    vector = _vector_of_one(path, heard)
    if vector is None:
        notes.append(f"whose voice it is cannot be told; {voice.HOW_TO_INSTALL}")
    named = None
    if records:
        critic_hash = None if vector is None else voice.weights_hash()
        own, unsure = records_of_voice(str(path), vector, critic_hash, records)
        if unsure:
            raise ValueError(f"--consent: {unsure[0]}")
        named = agreed_on(str(path), own, today or date.today()).named
    rate_hz = engine_rate_hz(engine)
    sound = reading.read_audio(path, sample_rate_hz=rate_hz) * level.gain
    about = About(
        version=VERSION,
        source=Path(path).name,
        transcript=transcript,
        rate_hz=rate_hz,
        engine=engine if engine == DEFAULT_ENGINE else str(Path(engine).resolve()),
        engine_hash=hash_folder(engine_folder(engine)),
        critic_hash=None if vector is None else voice.weights_hash(),
        person=None if named is None else named.person,
        consent_sha256=None if named is None else named.sha256,
    )
    samples = (sound * FULL_SCALE).round().clamp(-FULL_SCALE, FULL_SCALE - 1).to(torch.int16)
    return RecordedVoice("", about, samples[: int(MOST_S * rate_hz)], vector), tuple(notes)


def _check_length(path: str | Path, length_s: float) -> None:
    if not LEAST_S <= length_s <= MOST_S:
        raise ValueError(
            f"{path} lasts {length_s:.1f} s; a voice is {LEAST_S:g} to {MOST_S:g} s of speech, "
            "best about ten"
        )


def _check_speech(path: str | Path, heard: Float[Tensor, " s"]) -> tuple[str, ...]:
    """A note where pauses cannot be told."""
    if not has_silero():
        return ("whether somebody speaks was not checked: pip install 'avatar_v[faces]'",)
    share = speech_s(heard) * SAMPLE_RATE_HZ / len(heard)
    if share < LEAST_SPEECH:
        raise ValueError(
            f"{path}: somebody speaks for {share:.0%} of it, expected {LEAST_SPEECH:.0%} or more"
        )
    return ()


def _vector_of_one(path: str | Path, heard: Float[Tensor, " s"]) -> Float[Tensor, " d"] | None:
    """The vector of the one voice; None where the network is not installed."""
    if not voice.is_available():
        return None
    vectors = voice.vectors_of(heard)
    who = voice.voices(vectors, voice.SAME_WINDOWS)
    shares = np.bincount(who) / len(who)
    if num := int((shares[1:] >= SECOND_VOICE).sum()):
        raise ValueError(
            f"{path}: {num + 1} voices are heard (the second for {shares[1]:.0%} of it); a voice "
            "is made of one speaker alone"
        )
    return torch.from_numpy(voice.mean_vector(vectors[who == 0])).float()
