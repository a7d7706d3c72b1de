"""The record of a consent, made of a video in which a person says that they agree."""

import hashlib
import importlib.util
from datetime import date
from pathlib import Path

import torch
from jaxtyping import Float
from torch import Tensor

from avatar_v.critics import voice
from avatar_v.safety.consent import DRAWN, FILMED, VERSION, Consent, check_texts, parse_day
from avatar_v.safety.faces import hash_critic, read_faces
from avatar_v.safety.heard import heard_in
from avatar_v.safety.policy import plain_words
from avatar_v.types import SAMPLE_RATE_HZ

LEAST_S, MOST_S = 2.0, 30.0
"""Of a statement; speech recognisers hear half a minute at once."""
LEAST_SPEECH_S = 1.0
"""Of speech in a statement: "I agree" and a name."""
LEAST_MOVES = 3.0
"""Grey levels by which a face changes from look to look. A still picture that x264 has spoilt at
64 pixels comes to 2.8, the least that was seen of people who talk is 4.9."""
NO_SILERO = "hearing whether somebody speaks needs silero-vad: pip install 'avatar_v[faces]'"
MOST_ERRORS = 0.2
"""Of the words that are to be said, so many may be missing, wrong or too much."""


def consent_from_video(
    video: str | Path,
    *,
    person: str,
    expires: str,
    uses: str = "",
    statement: str = "",
    speech_model: str | Path | None = None,
    drawn: bool = False,
    today: date | None = None,
) -> Consent:
    """Read the statement. With ``speech_model`` its words must be those of ``statement``.

    ValueError, which says what to change: texts, dates, a clip that is too short or too long, in
    which nobody speaks, which shows no face, one that does not move, more than one person or
    something else half of the time, or other words.
    """
    check_texts(person=person, uses=uses, statement=statement)
    today = today or date.today()
    last = parse_day(expires, where="--expires")
    if last < today:
        raise ValueError(f"--expires {last} is over; today is {today}")
    if speech_model is not None and not plain_words(statement):
        raise ValueError("--speech-model hears whether --statement is said, and none is given")
    critic = DRAWN if drawn else FILMED
    sound = _read_speech(video)
    face = _read_face(video, critic)
    own_voice = read_voice_vector(sound)
    heard = None
    if speech_model is not None:
        heard = heard_in(sound, speech_model, "--speech-model")
        check_words(video, statement, heard)
    with Path(video).open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return Consent(
        version=VERSION,
        person=person,
        recorded=today.isoformat(),
        expires=last.isoformat(),
        uses=uses,
        statement=statement,
        heard=heard,
        video_sha256=digest,
        critic=critic,
        critic_hash=hash_critic(critic),
        face=_rounded(face),
        voice=None if own_voice is None else _rounded(own_voice),
        voice_critic_hash=None if own_voice is None else voice.weights_hash(),
    )


def check_words(video: str | Path, statement: str, heard: str) -> None:
    """ValueError unless what was heard is the statement, but for a few words."""
    from torchmetrics.functional.text import word_error_rate

    said, found = (" ".join(plain_words(text)) for text in (statement, heard))
    rate = float(word_error_rate(found, said))
    if rate > MOST_ERRORS:
        raise ValueError(
            f"{video}: other words than --statement: {heard!r} was heard (word error rate "
            f"{rate:.2f}, at most {MOST_ERRORS:g})"
        )


def read_voice_vector(sound: Float[Tensor, " s"]) -> Float[Tensor, " d"] | None:
    """The vector of the voice in a sound of 16 kHz; None where what reads it is not installed."""
    if not voice.is_available():
        return None
    return torch.from_numpy(voice.mean_vector(voice.vectors_of(sound))).float()


def has_silero() -> bool:
    """Whether Silero VAD is installed."""
    return importlib.util.find_spec("silero_vad") is not None


def speech_s(sound: Float[Tensor, " s"]) -> float:
    """Seconds of a sound of 16 kHz in which somebody speaks, as Silero VAD hears it. ValueError
    where that is not installed."""
    if not has_silero():
        raise ValueError(NO_SILERO)
    import silero_vad

    model = silero_vad.load_silero_vad()
    spans = silero_vad.get_speech_timestamps(sound, model, sampling_rate=SAMPLE_RATE_HZ)
    return sum(span["end"] - span["start"] for span in spans) / SAMPLE_RATE_HZ


def _rounded(vector: Float[Tensor, " d"]) -> tuple[float, ...]:
    return tuple(round(float(x), 6) for x in vector)


def _read_speech(video: str | Path) -> Float[Tensor, " s"]:
    """The sound of a statement, in which somebody speaks."""
    from avatar_v.media import containers, reading

    length_s, _ = containers.extent(video)
    if not LEAST_S <= length_s <= MOST_S:
        raise ValueError(
            f"{video} lasts {length_s:.1f} s; a statement has {LEAST_S:g} to {MOST_S:g} s"
        )
    sound = reading.read_audio(video)
    heard_s = speech_s(sound)
    if heard_s < LEAST_SPEECH_S:
        raise ValueError(
            f"{video}: somebody speaks for {heard_s:.1f} s of it; in a statement the person says "
            "that they agree"
        )
    return sound


def _read_face(video: str | Path, critic: str) -> Float[Tensor, " d"]:
    """The face of a statement's one person."""
    seen = read_faces(video, critic, MOST_S)
    if seen.num_faces > 1:
        raise ValueError(
            f"{video}: {seen.num_faces} faces in one picture; a statement shows one person"
        )
    if 2 * seen.num < seen.num_looks:
        raise ValueError(
            f"{video}: the person in {seen.num} of {seen.num_looks} looks; a statement shows one "
            "person all along"
        )
    if seen.moves < LEAST_MOVES:
        raise ValueError(
            f"{video}: the face does not move (by {seen.moves:.1f} grey levels in half a second, "
            f"at least {LEAST_MOVES:g}); a statement is filmed, not a picture"
        )
    return seen.face
