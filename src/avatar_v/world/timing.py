"""When each sound is made: sentences to segments (phonemes) and phases (parts of phonemes).

Durations follow a mean per phoneme class, stress, phrase-final lengthening and the speaking rate.
Pauses, breaths and fillers stand between sentences and at phrase breaks. Whole speeches are made
here; the turns of a dialogue are put together in dialogue.py.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from avatar_v.base.seeds import stream
from avatar_v.types import FRAME_RATE_HZ
from avatar_v.world.lexicon import FILLERS, LIP_CLOSURES, VOWELS, Sentence, Word, sentence
from avatar_v.world.style import Habits


@dataclass(frozen=True)
class Segment:
    """One phoneme in time. Effort is in decibels and says nothing about the mouth."""

    phoneme: str
    start_s: float
    end_s: float
    stress: float  # 0 unstressed … 1 stressed, in vowels
    effort_db: float
    whispered: bool
    semitones: float  # pitch above the voice's own
    word: int  # index into Speech.words, -1 in pauses


@dataclass(frozen=True)
class SpokenWord:
    text: str
    start_s: float
    end_s: float


PhraseKind = Literal["statement", "question", "break"]


@dataclass(frozen=True)
class PhraseEnd:
    """Where a sentence ends (a statement or a question), or pauses (a break)."""

    kind: PhraseKind
    end_s: float  # of the last word before the pause


@dataclass(frozen=True)
class Phases:
    """Parts of segments with one acoustic and one visual target each; arrays of equal length."""

    names: np.ndarray  # str
    start_s: np.ndarray
    end_s: np.ndarray
    stress: np.ndarray
    effort_db: np.ndarray
    whispered: np.ndarray  # bool
    semitones: np.ndarray


_PARTS = {
    "AW": (("AA", 0.5), ("UH", 0.5)),
    "AY": (("AA", 0.55), ("IH", 0.45)),
    "EY": (("EH", 0.5), ("IY", 0.5)),
    "OW": (("AO", 0.5), ("UW", 0.5)),
    "OY": (("AO", 0.5), ("IH", 0.5)),
    "CH": (("T", 0.4), ("SH", 0.6)),
    "JH": (("D", 0.4), ("ZH", 0.6)),
    "P": (("P", 0.65), ("P+", 0.35)),
    "B": (("B", 0.8), ("B+", 0.2)),
    "T": (("T", 0.55), ("T+", 0.45)),
    "D": (("D", 0.75), ("D+", 0.25)),
    "K": (("K", 0.55), ("K+", 0.45)),
    "G": (("G", 0.75), ("G+", 0.25)),
}

_DURATION_S = {
    **dict.fromkeys(VOWELS, 0.095),
    **dict.fromkeys(("AW", "AY", "EY", "OW", "OY"), 0.15),
    **dict.fromkeys(("AA", "AE", "AO", "IY", "UW", "ER"), 0.115),
    **dict.fromkeys(("AH", "IH", "UH"), 0.075),
    **dict.fromkeys(("P", "T", "K"), 0.095),
    **dict.fromkeys(("B", "D", "G", "M", "N", "NG"), 0.075),
    **dict.fromkeys(("F", "TH", "S", "SH"), 0.11),
    **dict.fromkeys(("V", "DH", "Z", "HH"), 0.07),
    **dict.fromkeys(("CH", "JH"), 0.125),
    **dict.fromkeys(("L", "R", "W", "Y"), 0.075),
}
_LEAD_S = 0.2  # silence before a recital
_RECITAL_SPREAD_DB, _RECITAL_BREATH_DB = 1.5, -6.0  # of the loudness of words; of breaths
_BREAK_S = (0.10, 0.30)
_SHORTEST_S = 0.035
_SHORTEST_CLOSURE_S = 0.075  # 0.65 of it, the closed part of p, is still longer than a video frame


class Writer:
    """Collects segments one after the other."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.segments: list[Segment] = []
        self.words: list[SpokenWord] = []
        self.ends: list[PhraseEnd] = []

    def silence(self, duration_s: float, phoneme: str = "SIL", effort_db: float = 0.0) -> None:
        self._add(phoneme, duration_s, 0.0, effort_db, False, 0.0, -1)

    def word(
        self, word: Word, durations_s: list[float], effort_db: float, whispered: bool, tone: float
    ) -> None:
        start_s = self.now_s
        for i, phoneme in enumerate(word.phonemes):
            stress = float(i == word.stressed)
            semitones = tone + 3.0 * stress
            index = len(self.words)
            self._add(phoneme, durations_s[i], stress, effort_db, whispered, semitones, index)
        self.words.append(SpokenWord(word.text, start_s, self.now_s))

    def _add(self, phoneme, duration_s, stress, effort_db, whispered, semitones, word) -> None:
        end_s = self.now_s + duration_s
        self.segments.append(
            Segment(phoneme, self.now_s, end_s, stress, effort_db, whispered, semitones, word)
        )
        self.now_s = end_s


def speak(
    speech_id: int, style: Habits, duration_s: float
) -> tuple[tuple[Segment, ...], tuple[SpokenWord, ...]]:
    """Segments and words that cover ``duration_s``; a longer request begins with the same."""
    rng = stream("speech", speech_id)
    writer = Writer()
    writer.silence(rng.uniform(0.06, 0.35))
    gain_db = rng.normal(0, 4)
    whisper_rate = 0.5 if rng.random() < 0.12 else 0.0
    index = 0
    while writer.now_s < duration_s:
        sentence_rng = stream("sentence timing", speech_id, index)
        whispered = bool(sentence_rng.random() < whisper_rate)
        say_sentence(writer, sentence(speech_id, index), style, gain_db, whispered, sentence_rng)
        pause_behind(writer, style, gain_db, sentence_rng)
        index += 1
    return tuple(writer.segments), tuple(writer.words)


def recite(
    sentences: Sequence[Sentence], style: Habits, seed_id: int
) -> tuple[tuple[Segment, ...], tuple[SpokenWord, ...]]:
    """Segments and words of these sentences, one behind the other, up to a whole video frame;
    ``seed_id`` decides what varies in loudness, length and pitch."""
    rng = stream("recital", seed_id)
    writer = Writer()
    writer.silence(_LEAD_S)
    for said in sentences:
        say_sentence(writer, said, style, 0.0, False, rng, effort_spread_db=_RECITAL_SPREAD_DB)
        pause_behind(writer, style, _RECITAL_BREATH_DB, rng)
    num_frames = math.ceil(writer.now_s * FRAME_RATE_HZ)
    writer.silence(num_frames / FRAME_RATE_HZ - writer.now_s)
    return tuple(writer.segments), tuple(writer.words)


def say_sentence(
    writer: Writer,
    said: Sentence,
    style: Habits,
    gain_db: float,
    whispered: bool,
    rng: np.random.Generator,
    effort_spread_db: float = 5.0,
    break_s: tuple[float, float] | None = None,
) -> None:
    """Add a sentence, and to ``ends`` where it pauses and ends. ``break_s``: of a pause inside it,
    from and to; None: as the person's habits have it."""
    last = len(said.words) - 1
    for i, word in enumerate(said.words):
        at_end = i == last or i in said.breaks
        effort_db = gain_db + rng.normal(0, effort_spread_db)
        rise = 6.0 if said.question and i == last else -1.5 if i == last else 0.0
        tone = 2.0 - 4.0 * i / max(last, 1) + rise + rng.normal(0, 0.7)
        writer.word(word, _durations(word, style, at_end, rng), effort_db, whispered, tone)
        if i in said.breaks and i != last and rng.random() < style.pause_rate:
            writer.ends.append(PhraseEnd("break", writer.now_s))
            span_s, factor = (_BREAK_S, style.pause_length) if break_s is None else (break_s, 1.0)
            writer.silence(rng.uniform(*span_s) * factor)
    writer.ends.append(PhraseEnd("question" if said.question else "statement", writer.now_s))


def pause_behind(writer: Writer, style: Habits, gain_db: float, rng: np.random.Generator) -> None:
    """After a sentence: silence, perhaps a filler, perhaps a breath."""
    draw_filler, draw_breath = rng.random(2)
    writer.silence(rng.uniform(0.12, 0.35) * style.pause_length)
    filler = FILLERS[rng.integers(len(FILLERS))]
    if draw_filler < style.filler_rate:
        effort_db = gain_db + rng.normal(0, 3)
        writer.word(filler, [0.18] * len(filler.phonemes), effort_db, False, rng.normal(-2, 1))
        writer.silence(rng.uniform(0.08, 0.25) * style.pause_length)
    if draw_breath < 0.5:
        writer.silence(rng.uniform(0.20, 0.40), "BR", gain_db + rng.normal(0, 5))
        writer.silence(rng.uniform(0.04, 0.10))


def split_phases(segments: tuple[Segment, ...]) -> Phases:
    """Split segments into phases: closure and release of stops, the two ends of diphthongs."""
    names, rows = [], []
    for s in segments:
        start_s = s.start_s
        for name, share in _PARTS.get(s.phoneme, ((s.phoneme, 1.0),)):
            end_s = start_s + share * (s.end_s - s.start_s)
            names.append(name)
            rows.append((start_s, end_s, s.stress, s.effort_db, s.whispered, s.semitones))
            start_s = end_s
    start, end, stress, effort, whispered, semitones = np.array(rows, dtype=np.float64).T
    return Phases(np.array(names), start, end, stress, effort, whispered > 0.5, semitones)


def _durations(word: Word, style: Habits, at_end: bool, rng: np.random.Generator) -> list[float]:
    num = len(word.phonemes)
    durations = []
    for i, (phoneme, spread) in enumerate(
        zip(word.phonemes, rng.normal(0, 0.12, num), strict=True)
    ):
        factor = 1.3 if i == word.stressed else 0.95
        final = 1.35 if at_end and i >= num - 2 else 1.0
        duration_s = _DURATION_S[phoneme] * factor * final * np.exp(spread) / style.speaking_rate
        shortest_s = _SHORTEST_CLOSURE_S if phoneme in LIP_CLOSURES else _SHORTEST_S
        durations.append(float(max(duration_s, shortest_s)))
    return durations
