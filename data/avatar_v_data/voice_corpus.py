"""Speech of many voices with its phonemes in time, to train voice codecs and language models on.

Three kinds of voices, each a number: the drawn voices of the world's persons; flite's four recorded
speakers; and espeak-ng for languages other than English. Pitch, its range, formants, breath and
speed of the latter two are moved by WORLD (Morise et al. 2016), so that a few become as many as are
asked for. So are sentences that have an emotion: by rules, from what studies of acted speech agree
on (Murray and Arnott 1993). Ranges of numbers, and sentences, belong to one split each
(world/splits.py), so that no voice and no sentence of a test was trained on.
"""

import functools
import hashlib
import importlib.util
import json
import multiprocessing
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence, Set
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

from avatar_v.base import checks
from avatar_v.base.paths import whole_file
from avatar_v.base.seeds import derive, stream
from avatar_v.engines.script import split_sentences
from avatar_v.media.reading import read_audio
from avatar_v.media.sound import resampled
from avatar_v.shards.writer import write_text_atomically
from avatar_v.types import SAMPLE_RATE_HZ
from avatar_v.voices import espeak
from avatar_v.voices.corpus import SUFFIX, Recording, world, write_recordings
from avatar_v.voices.phonemes import EMOTIONS, LANGUAGES, PHONEMES, SILENCE, from_ipa
from avatar_v.world.lexicon import sentence, sentence_split
from avatar_v.world.speech import say_sentences
from avatar_v.world.splits import RANGES, split_of
from avatar_v.world.style import sample_style
from avatar_v.world.voice import sample_voice

FLITE = ("awb", "kal16", "rms", "slt")
NEEDS = "voices of flite need Debian's flite and `pip install 'avatar_v[voices]'`"
HOW_TO_INSTALL = f"{espeak.HOW_TO_INSTALL} 'Faker>=40,<50'"
FRAME_MS = 5.0
"""Of WORLD."""
PER_FILE = 20
"""Voices of one file."""
SETTINGS_FILE = "voices.json"
"""In the folder of a corpus: a hash of what may be said in it."""
MOST_TRIES = 100
_NEAREST = {"pau": SILENCE, "ax": "AH", "zh": "JH", "ssil": SILENCE}
_PROSE = re.compile(r"[A-Z][A-Za-z ,'’-]+[.!?:;]")
_WORDS = range(4, 15)


_LOCALES = {"de": "de_DE", "es": "es_ES", "it": "it_IT"}  # of Faker
_ACCENTS = {"de": ("de",), "es": ("es", "es-419"), "it": ("it",)}
_VARIANTS = ("", "+m1", "+m2", "+m3", "+m4", "+m6", "+m7", "+f1", "+f2", "+f3", "+f4", "+f5")


@dataclass(frozen=True)
class Morph:
    """What WORLD changes of speech."""

    pitch: float = 1.0  # factor
    pitch_range: float = 1.0  # factor of the spread around the mean, in logarithms
    formants: float = 1.0  # factor on frequencies of the envelope
    breath: float = 0.0  # power of the periodic part that becomes noise, 0 … 1
    stretch: float = 1.0  # of time
    brightness_db: float = 0.0  # at 8 kHz, in a line from 0 Hz
    gain_db: float = 0.0


FEELINGS = {
    "glad": Morph(pitch=1.25, pitch_range=1.6, stretch=0.94, brightness_db=3.0, gain_db=2.0),
    "sad": Morph(
        pitch=0.92, pitch_range=0.6, breath=0.3, stretch=1.25, brightness_db=-6.0, gain_db=-4.0
    ),
    "angry": Morph(pitch=1.15, pitch_range=1.4, stretch=0.87, brightness_db=8.0, gain_db=4.0),
}
"""How speech differs from neutral speech, at full strength."""


def sample_morph(number: int) -> Morph:
    """The morph of a voice's number. Long vocal tracts go with low pitch, as in people."""
    rng = stream("morph", number)
    size = rng.uniform(-1, 1)
    return Morph(
        pitch=float(2 ** (0.45 * size + rng.normal(0, 0.12))),
        pitch_range=float(rng.uniform(0.5, 1.7)),
        formants=float(2 ** (0.2 * size + rng.normal(0, 0.05))),
        breath=float(rng.uniform(0, 0.35)),
        stretch=float(rng.uniform(0.8, 1.25)),
    )


def felt(emotion: str, strength: float) -> Morph:
    """The morph of an emotion; ``strength``: 1 as in `FEELINGS`, 0 neutral."""
    full = FEELINGS[emotion]
    return Morph(
        pitch=full.pitch**strength,
        pitch_range=full.pitch_range**strength,
        breath=full.breath * strength,
        stretch=full.stretch**strength,
        brightness_db=full.brightness_db * strength,
        gain_db=full.gain_db * strength,
    )


def is_drawn(number: int) -> bool:
    """Even numbers are drawn, odd ones recorded."""
    return number % 2 == 0


def language_of(number: int, languages: Sequence[str]) -> str:
    """Drawn, so that each language has numbers of all kinds: those tell how a voice is made."""
    return languages[int(stream("language", number).integers(len(languages)))]


def make_corpus(
    out: Path,
    split: str,
    num_voices: int,
    num_sentences: int,
    *,
    first: int = 0,
    texts: Sequence[str] | None = None,
    languages: Sequence[str] = ("en",),
    emotions: float = 0.0,
    num_workers: int = 1,
    on_progress: Callable[[int, int], None] = lambda done, num: None,
) -> None:
    """Write so many sentences of each of so many voices to a folder; the same call goes on where
    one was stopped. Further voices, with other numbers, may go into the same folder.

    ``first`` counts from the beginning of the split's range. ``texts``: what may be said, one
    sentence each, in English; None: prose of Python's documentation, the world's grammar, and words
    at random. ``languages``: which the voices speak in turn. ``emotions``: the share of sentences
    that have one. ValueError where flite, pyworld, espeak-ng or Faker is missing, for a range
    that the split has not, and for a folder that holds some of these voices, or that other texts
    were said for.
    """
    if shutil.which("flite") is None or importlib.util.find_spec("pyworld") is None:
        raise ValueError(NEEDS)
    for language in languages:
        if language not in LANGUAGES:
            raise ValueError(f"--languages: {language!r} is none of {', '.join(LANGUAGES)}")
        if language in _LOCALES:
            _check_language()
    checks.share("--emotions", emotions)
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
    kind = (num_sentences, tuple(languages), emotions)
    _claim(out, said, numbers, {_part_file(out, part, *kind).name for part in parts})
    make = functools.partial(_write_part, out, said, *kind)
    if num_workers == 1:
        for done, _ in enumerate(map(make, parts), 1):
            on_progress(done, len(parts))
        return
    context = multiprocessing.get_context("spawn")  # torch has threads
    with ProcessPoolExecutor(num_workers, context) as pool:
        for done, _ in enumerate(pool.map(make, parts), 1):
            on_progress(done, len(parts))


def _claim(out: Path, said: Sequence[str], numbers: range, own: Set[str]) -> None:
    """Make the folder, and keep in it what is said. ValueError where it holds voices of these
    ``numbers`` in files that are not this call's ``own``, or was made with other texts."""
    file, found = out / SETTINGS_FILE, sorted(out.glob(f"voices-*{SUFFIX}"))
    digest = hashlib.sha256("\n".join(said).encode()).hexdigest()
    text = json.dumps({"texts": digest})
    if file.read_text() != text if file.is_file() else found:
        raise ValueError(f"{out} holds voices that say other texts; choose another folder")
    for path in found:
        first, num = map(int, path.name.partition("x")[0].split("-")[1:])
        if path.name not in own and first < numbers.stop and numbers.start < first + num:
            raise ValueError(
                f"{out} holds voices of these numbers: {path.name}; --first takes others, or "
                "choose another folder"
            )
    out.mkdir(parents=True, exist_ok=True)
    write_text_atomically(file, text)


def _part_file(
    folder: Path, numbers: range, num: int, languages: tuple[str, ...], emotions: float
) -> Path:
    words = [] if languages == ("en",) else languages
    words = [*words, *([f"felt{emotions:g}"] if emotions else [])]
    name = "-".join([f"voices-{numbers[0]:07d}-{len(numbers)}x{num}", *words])
    return folder / f"{name}{SUFFIX}"


def _write_part(
    folder: Path,
    texts: Sequence[str],
    num: int,
    languages: tuple[str, ...],
    emotions: float,
    numbers: range,
) -> None:
    path = _part_file(folder, numbers, num, languages, emotions)
    if not path.is_file():
        rows = [
            row
            for number in numbers
            for row in recordings(number, num, texts, language_of(number, languages), emotions)
        ]
        with whole_file(path) as partial:
            write_recordings(partial, rows)


def recordings(
    number: int, num: int, texts: Sequence[str], language: str = "en", emotions: float = 0.0
) -> Iterator[Recording]:
    """So many sentences in one voice. What it cannot say is passed over; ValueError where that is
    `MOST_TRIES` sentences, one behind the other."""
    rng, made, tries = stream("voice corpus", number), 0, 0
    feelings = stream("emotions", number)
    while made < num:
        seed = derive("voice corpus", number, made) % (1 << 31)
        try:
            if language != "en":
                again = derive("voice corpus", number, made, tries) % (1 << 31)
                one = foreign(number, language, again if tries else seed)
            elif is_drawn(number):
                one = drawn(number, _text(rng, number, made, texts), seed)
            else:
                one = recorded(number, _text(rng, number, made, texts))
        except ValueError as error:
            tries += 1
            if tries == MOST_TRIES:
                raise ValueError(
                    f"voice {number} can say none of {tries} sentences ({language}): {error}"
                ) from error
            continue
        if feelings.random() < emotions:
            emotion = EMOTIONS[1 + int(feelings.integers(len(EMOTIONS) - 1))]
            one = with_emotion(one, emotion, float(feelings.uniform(0.7, 1.3)))
        made, tries = made + 1, 0
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
    morph, speaker = sample_morph(number), FLITE[number // 2 % len(FLITE)]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "a.wav"
        words = ["flite", "-voice", speaker, "--setf", f"duration_stretch={morph.stretch}"]
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
    moved = morphed(sound, replace(morph, stretch=1.0))  # flite itself speaks slower or faster
    return Recording(number, f"{speaker} {number}", text, moved, tuple(phonemes), tuple(stops))


def foreign(number: int, language: str, seed: int) -> Recording:
    """A sentence of words of a language by espeak-ng, moved to the voice of this number."""
    rng, morph = stream("foreign", seed), sample_morph(number)
    accents = _ACCENTS[language]
    voice = accents[number % len(accents)] + _VARIANTS[number // 2 % len(_VARIANTS)]
    words = _foreign_words(language)
    said = [words[i] for i in rng.integers(len(words), size=rng.integers(4, 10))]
    if rng.random() < 0.3:
        said[len(said) // 2] += ","
    text = " ".join(said)
    text = text[0].upper() + text[1:] + ".?!"[int(rng.choice(3, p=(0.8, 0.1, 0.1)))]
    spoken = espeak.speak(text, voice, round(160 / morph.stretch))
    phonemes = [from_ipa(name.strip(espeak.STRESS)) for name in spoken.phonemes]
    if None in phonemes:
        raise ValueError(f"espeak-ng says {spoken.phonemes}")
    rate = SAMPLE_RATE_HZ
    sound = resampled(torch.from_numpy(spoken.sound), spoken.rate_hz, rate).double().numpy()
    moved = morphed(sound, replace(morph, stretch=1.0))
    return Recording(
        number, f"espeak {voice} {number}", text, moved, tuple(map(str, phonemes)),
        spoken.stops_s, language,
    )  # fmt: skip


def with_emotion(one: Recording, emotion: str, strength: float) -> Recording:
    """The same sentence, as it is said so."""
    morph = felt(emotion, strength)
    return replace(
        one,
        sound=morphed(one.sound.astype(np.float64), morph),
        stops_s=tuple(stop * morph.stretch for stop in one.stops_s),
        emotion=emotion,
    )


def morphed(sound: np.ndarray, morph: Morph) -> np.ndarray:
    """The same speech in another voice or manner."""
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
    logs = np.array([np.interp(bins / morph.formants, bins, row) for row in logs])
    powers_db = morph.gain_db + morph.brightness_db * bins / bins[-1]
    envelope = np.exp(logs + powers_db * np.log(10) / 10)
    noise = 1 - (1 - noise) * (1 - morph.breath)
    made = pyworld.synthesize(pitch, envelope, noise, SAMPLE_RATE_HZ, FRAME_MS * morph.stretch)
    made = made[: round(len(sound) * morph.stretch)]
    return (made * min(1.0, 0.95 / max(np.abs(made).max(), 1e-9))).astype(np.float32)


def _check_language() -> None:
    if not espeak.is_available() or importlib.util.find_spec("faker") is None:
        raise ValueError(f"other languages than English: {HOW_TO_INSTALL}")


@functools.cache
def _foreign_words(language: str) -> tuple[str, ...]:
    """Common words of a language, as Faker knows them."""
    from faker import Faker

    return tuple(sorted(set(Faker(_LOCALES[language]).get_words_list())))


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
