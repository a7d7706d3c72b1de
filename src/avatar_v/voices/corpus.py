"""Recorded speech with its phonemes in time, as Parquet: one row a sentence."""

import importlib
import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars

from avatar_v.types import SAMPLE_RATE_HZ
from avatar_v.voices.phonemes import EMOTIONS, LANGUAGES, PHONEMES

FULL_SCALE = 32768
"""Of 16-bit samples."""
SUFFIX = ".parquet"


@dataclass(frozen=True)
class Recording:
    """One sentence in one voice, at 16 kHz."""

    number: int  # of the voice
    voice: str
    text: str
    sound: np.ndarray  # float32 in [-1, 1], samples
    phonemes: tuple[str, ...]  # of `PHONEMES`
    stops_s: tuple[float, ...]  # where each ends; the next begins there
    language: str = "en"  # of `LANGUAGES`
    emotion: str = "neutral"  # of `EMOTIONS`

    @property
    def seconds(self) -> float:
        return len(self.sound) / SAMPLE_RATE_HZ


def write_recordings(path: Path, recordings: Iterable[Recording]) -> None:
    """Samples are rounded to 16 bits."""
    rows = [
        {
            "number": one.number,
            "voice": one.voice,
            "text": one.text,
            "sound": _as_bytes(one.sound),
            "phonemes": list(one.phonemes),
            "stops_s": list(one.stops_s),
            "language": one.language,
            "emotion": one.emotion,
        }
        for one in recordings
    ]
    polars.DataFrame(rows).write_parquet(path)


def corpus_files(folder: str | Path) -> list[Path]:
    """The files of a corpus. ValueError where there are none."""
    found = sorted(Path(folder).glob(f"*{SUFFIX}"))
    if not found:
        raise ValueError(f"no {SUFFIX} in {folder}: avatar-v-data voices --out {folder} makes some")
    return found


def read_recordings(files: Sequence[Path]) -> Iterator[Recording]:
    """All rows, file by file; without columns for them the language is English and the emotion
    neutral. ValueError for a file that is none, and for phonemes that are not known or not in
    time."""
    for path in files:
        try:
            rows = polars.read_parquet(path).to_dicts()
            for row in rows:
                yield _recording(row)
        except (polars.exceptions.PolarsError, KeyError, TypeError, ValueError) as error:
            raise ValueError(f"{path} is no file of a corpus of voices: {error}") from error


def world() -> Any:
    """The package pyworld, whose functions have no types. ValueError where it is missing."""
    try:
        with warnings.catch_warnings():  # of the way in which it looks for its own version
            warnings.simplefilter("ignore", UserWarning)
            return importlib.import_module("pyworld")
    except ImportError as error:
        raise ValueError("pitch needs pyworld: pip install 'avatar_v[voices]'") from error


def _recording(row: dict) -> Recording:
    sound = np.frombuffer(row["sound"], np.int16).astype(np.float32) / FULL_SCALE
    phonemes, stops = tuple(row["phonemes"]), tuple(float(s) for s in row["stops_s"])
    if len(phonemes) != len(stops) or not set(phonemes) <= set(PHONEMES):
        raise ValueError(f"phonemes of {row['text']!r} are not as they should be")
    if not np.all(np.diff([0.0, *stops]) >= 0):
        raise ValueError(f"phonemes of {row['text']!r} are not in time")
    language, emotion = row.get("language", "en"), row.get("emotion", "neutral")
    if language not in LANGUAGES or emotion not in EMOTIONS:
        raise ValueError(f"{language!r} or {emotion!r} of {row['text']!r} is not known")
    number, voice, text = int(row["number"]), str(row["voice"]), str(row["text"])
    return Recording(number, voice, text, sound, phonemes, stops, language, emotion)


def _as_bytes(sound: np.ndarray) -> bytes:
    scaled = (sound * FULL_SCALE).round().clip(-FULL_SCALE, FULL_SCALE - 1)
    return scaled.astype(np.int16).tobytes()
