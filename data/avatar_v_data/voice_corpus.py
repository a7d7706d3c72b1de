"""Speech of many voices with its phonemes in time, to train voice codecs and language models on.

Two kinds of voices, each a number: the drawn voices of the world's persons, and flite's four
recorded speakers, whose pitch, its range, formants, breath and speed are moved by WORLD (Morise et
al. 2016), so that four become as many as are asked for. Ranges of numbers, and sentences, belong to
one split each (world/splits.py), so that no voice and no sentence of a test was trained on.
"""

import functools
import importlib.util
import multiprocessing
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from avatar_v.base import checks
from avatar_v.base.paths import whole_file
from avatar_v.base.seeds import derive, stream
from avatar_v.engines.script import split_sentences
from avatar_v.media.reading import read_audio
from avatar_v.types import SAMPLE_RATE_HZ
from avatar_v.voices.corpus import PHONEMES, SILENCE, Recording, world, write_recordings
from avatar_v.world.lexicon import sentence, sentence_split
from avatar_v.world.speech import say_sentences
from avatar_v.world.splits import RANGES, split_of
from avatar_v.world.style import sample_style
from avatar_v.world.voice import sample_voice

FLITE = ("awb", "kal16", "rms", "slt")
NEEDS = "voices of flite need Debian's flite and `pip install 'avatar_v[voices]'`"
PER_FILE = 20
"""Voices of one file."""
_NEAREST = {"pau": SILENCE, "ax": "AH", "zh": "JH", "ssil": SILENCE}
_PROSE = re.compile(r"[A-Z][A-Za-z ,'’-]+[.!?:;]")
_WORDS = range(4, 15)


@dataclass(frozen=True)
class Morph:
    """What WORLD changes of a recorded speaker."""

    speaker: str
    pitch: float  # factor
    pitch_range: float  # factor of the spread around the mean, in logarithms
    formants: float  # factor on frequencies of the envelope
    breath: float  # power of the periodic part that becomes noise, 0 … 1
    stretch: float  # of time


def sample_morph(number: int) -> Morph:
    """The morph of a voice's number. Long vocal tracts go with low pitch, as in people."""
    rng = stream("morph", number)
    size = rng.uniform(-1, 1)
    return Morph(
        speaker=FLITE[number // 2 % len(FLITE)],
        pitch=float(2 ** (0.45 * size + rng.normal(0, 0.12))),
        pitch_range=float(rng.uniform(0.5, 1.7)),
        formants=float(2 ** (0.2 * size + rng.normal(0, 0.05))),
        breath=float(rng.uniform(0, 0.35)),
        stretch=float(rng.uniform(0.8, 1.25)),
    )


def is_drawn(number: int) -> bool:
    """Even numbers are drawn, odd ones recorded."""
    return number % 2 == 0


def make_corpus(
    out: Path,
    split: str,
    num_voices: int,
    num_sentences: int,
    *,
    first: int = 0,
    texts: Sequence[str] | None = None,
    num_workers: int = 1,
    on_progress: Callable[[int, int], None] = lambda done, num: None,
) -> None:
    """Write so many sentences of each of so many voices to a folder; the same call goes on where
    one was stopped.

    ``first`` counts from the beginning of the split's range. ``texts``: what may be said, one
    sentence each; None: prose of Python's documentation, the world's grammar, and words at random.
    ValueError where flite or pyworld is missing, and for a range that the split has not.
    """
    if shutil.which("flite") is None or importlib.util.find_spec("pyworld") is None:
        raise ValueError(NEEDS)
    checks.count("--voices", num_voices)
    checks.count("--sentences", num_sentences)
    checks.count("--first", first, least=0)
    numbers = range(RANGES[split].start + first, RANGES[split].start + first + num_voices)  # pyright: ignore[reportArgumentType]
    if split_of(numbers[0]) != split or split_of(numbers[-1]) != split:
        raise ValueError(f"{split} has {len(RANGES[split])} voices")  # pyright: ignore[reportArgumentType]
    parts = [numbers[i : i + PER_FILE] for i in range(0, num_voices, PER_FILE)]
    said = [text for text in texts or prose() if sentence_split(text.lower()) == split]
    if not said:
        raise ValueError(f"no sentence of the texts belongs to {split}")
    out.mkdir(parents=True, exist_ok=True)
    make = functools.partial(_write_part, out, num_sentences, said)
    if num_workers == 1:
        for done, _ in enumerate(map(make, parts), 1):
            on_progress(done, len(parts))
        return
    context = multiprocessing.get_context("spawn")  # torch has threads
    with ProcessPoolExecutor(num_workers, context) as pool:
        for done, _ in enumerate(pool.map(make, parts), 1):
            on_progress(done, len(parts))


def _write_part(folder: Path, num: int, texts: Sequence[str], numbers: range) -> None:
    path = folder / f"voices-{numbers[0]:07d}-{len(numbers)}x{num}.parquet"
    if not path.is_file():
        rows = [row for number in numbers for row in recordings(number, num, texts)]
        with whole_file(path) as partial:
            write_recordings(partial, rows)


def recordings(number: int, num: int, texts: Sequence[str]) -> Iterator[Recording]:
    """So many sentences in one voice. What flite or the drawn voice cannot say is passed over."""
    rng, made = stream("voice corpus", number), 0
    while made < num:
        text = _text(rng, number, made, texts)
        seed = derive("voice corpus", number, made) % (1 << 31)
        try:
            one = drawn(number, text, seed) if is_drawn(number) else recorded(number, text)
        except ValueError:
            continue
        made += 1
        yield one


def drawn(number: int, text: str, seed: int) -> Recording:
    """A sentence in the voice and style of a person of the world."""
    speech = say_sentences(split_sentences(text), sample_voice(number), sample_style(number), seed)
    return Recording(
        number,
        f"drawn {number}",
        text,
        speech.audio.numpy(),
        tuple(segment.phoneme for segment in speech.segments),
        tuple(segment.end_s for segment in speech.segments),
    )


def recorded(number: int, text: str) -> Recording:
    """A sentence by one of flite's speakers, moved to the voice of this number."""
    morph = sample_morph(number)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "a.wav"
        words = ["flite", "-voice", morph.speaker, "--setf", f"duration_stretch={morph.stretch}"]
        told = subprocess.run(
            [*words, "-t", text, "-o", str(path), "-psdur"],
            check=True, capture_output=True, text=True,
        ).stdout  # fmt: skip
        sound = read_audio(path).double().numpy()
    phonemes, stops = [], []
    for part in told.split():
        name, stop = part.split(":")
        name = _NEAREST.get(name, name.upper())
        if name not in PHONEMES:
            raise ValueError(f"flite says {name}")
        phonemes.append(name)
        stops.append(float(stop))
    return Recording(
        number, f"{morph.speaker} {number}", text, morphed(sound, morph), tuple(phonemes),
        tuple(stops),
    )  # fmt: skip


def morphed(sound: np.ndarray, morph: Morph) -> np.ndarray:
    """The same speech in another voice, at the same times."""
    pyworld = world()
    pitch, times = pyworld.dio(sound, SAMPLE_RATE_HZ)
    pitch = pyworld.stonemask(sound, pitch, times, SAMPLE_RATE_HZ)
    envelope = pyworld.cheaptrick(sound, pitch, times, SAMPLE_RATE_HZ)
    noise = pyworld.d4c(sound, pitch, times, SAMPLE_RATE_HZ)
    voiced = pitch > 0
    if voiced.any():
        logs = np.log(pitch[voiced])
        moved = logs.mean() + morph.pitch_range * (logs - logs.mean()) + np.log(morph.pitch)
        pitch[voiced] = np.exp(moved).clip(60, 500)
    bins = np.arange(envelope.shape[1])
    logs = np.log(envelope + 1e-16)
    envelope = np.exp([np.interp(bins / morph.formants, bins, row) for row in logs])
    noise = 1 - (1 - noise) * (1 - morph.breath)
    made = pyworld.synthesize(pitch, envelope, noise, SAMPLE_RATE_HZ)[: len(sound)]
    return (made * min(1.0, 0.95 / max(np.abs(made).max(), 1e-9))).astype(np.float32)


@functools.cache
def prose() -> tuple[str, ...]:
    """Sentences of Python's own documentation, of plain words."""
    from pydoc_data.topics import topics

    found = []
    for paragraph in re.split(r"\n\s*\n", "\n\n".join(topics.values())):
        plain = re.sub(r"[“”\"*`()\[\]]", "", " ".join(paragraph.split()))
        for text in re.split(r"(?<=[.!?:;])\s+", plain):
            if _PROSE.fullmatch(text) and len(text.split()) in _WORDS:
                found.append(text)
    return tuple(dict.fromkeys(found))


def _text(rng: np.random.Generator, number: int, at: int, texts: Sequence[str]) -> str:
    """A text, a sentence of the world, or words of all texts at random: a third each."""
    kind = rng.integers(3)
    if kind == 0:
        return texts[int(rng.integers(len(texts)))]
    if kind == 1:
        return sentence(number, at).text + "."
    words = _vocabulary(tuple(texts))
    return " ".join(words[i] for i in rng.integers(len(words), size=rng.integers(4, 11))) + "."


@functools.cache
def _vocabulary(texts: tuple[str, ...]) -> list[str]:
    found = {word for text in texts for word in re.findall(r"[a-z]+(?:'[a-z]+)?", text.lower())}
    return sorted(found)
