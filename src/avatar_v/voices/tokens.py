"""The sequence that the language model of voices reads and continues.

    start · language · emotion · rate · liveliness · speaker
    · PROMPT codes · TEXT phonemes · SAY speech · end

The speaker is a vector of the voice (critics/voice.py) in eight product-quantised parts. The prompt
is the first codebooks of a recording of the voice. In speech each phoneme stands before the codes
of its frames (as ELLA-V, Song et al. 2024), and between them how many frames these are. What is
said next is given; the model says how long each phoneme lasts and then how it sounds, and no word
is skipped or said twice. Without the number, the end of a phoneme would be one token beside 1,024
codes that go on. That is learned badly, and speech is too slow.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from avatar_v.types import FRAME_RATE_HZ
from avatar_v.voices.phonemes import EMOTIONS, LANGUAGES, PHONEMES, SILENT

PAD, START, END, PROMPT, TEXT, SAY = range(6)
RATES = (9.0, 11.0, 13.0, 15.0)
"""Phonemes a second, of speech without pauses, that part slow from fast."""
SPREADS = (1.5, 3.0)
"""Semitones, standard deviation of the pitch, that part flat from usual and lively."""
SPEAKER_PARTS, SPEAKER_SIZE = 8, 64
PROMPT_BOOKS = 2
"""Codebooks of the prompt: the voice is in the first ones, and half the tokens are saved."""
MOST_FRAMES = FRAME_RATE_HZ
"""Of one phoneme, a pause among them; what lasts longer in a corpus is cut there."""


class Voiced(NamedTuple):
    """What is asked of speech: classes of `LANGUAGES`, `EMOTIONS`, `RATES` and `SPREADS`."""

    language: int
    emotion: int
    rate: int
    liveliness: int


@dataclass(frozen=True)
class Vocabulary:
    """Where each kind of token lies, for a codec of these sizes."""

    num_codebooks: int
    codebook_size: int

    @property
    def language(self) -> int:
        return SAY + 1

    @property
    def emotion(self) -> int:
        return self.language + len(LANGUAGES)

    @property
    def rate(self) -> int:
        return self.emotion + len(EMOTIONS)

    @property
    def liveliness(self) -> int:
        return self.rate + len(RATES) + 1

    @property
    def speaker(self) -> int:
        return self.liveliness + len(SPREADS) + 1

    @property
    def phonemes(self) -> int:
        return self.speaker + SPEAKER_PARTS * SPEAKER_SIZE

    @property
    def codes(self) -> int:
        return self.phonemes + len(PHONEMES)

    @property
    def lengths(self) -> int:
        return self.codes + self.num_codebooks * self.codebook_size

    @property
    def size(self) -> int:
        return self.lengths + MOST_FRAMES + 1

    def of_codes(self, codes: np.ndarray) -> list[int]:
        """The tokens of codes "k f", frame by frame; of the first k codebooks."""
        offsets = self.codes + self.codebook_size * np.arange(len(codes))[:, None]
        return (codes + offsets).T.ravel().tolist()

    def head(
        self,
        asked: Voiced,
        speaker: Sequence[int],
        prompt: np.ndarray,
        phonemes: Sequence[str],
    ) -> list[int]:
        """All before the speech. ``prompt``: codes "k f". ValueError for phonemes that are not
        known."""
        given = [START, self.language + asked.language, self.emotion + asked.emotion]
        given += [self.rate + asked.rate, self.liveliness + asked.liveliness]
        given += [self.speaker + part * SPEAKER_SIZE + code for part, code in enumerate(speaker)]
        given += [PROMPT, *self.of_codes(prompt[:PROMPT_BOOKS])]
        return [*given, TEXT, *self.of_phonemes(phonemes), SAY]

    def of_phonemes(self, phonemes: Sequence[str]) -> list[int]:
        return [self.phonemes + PHONEMES.index(name) for name in phonemes]

    def said_after(self, head: Sequence[int]) -> list[str]:
        """The phonemes of the text in a head."""
        start = len(head) - list(reversed(head)).index(TEXT)
        return [PHONEMES[token - self.phonemes] for token in head[start:-1]]

    def speech(
        self, codes: np.ndarray, phonemes: Sequence[str], stops_s: Sequence[float]
    ) -> list[int]:
        """Phonemes, each before the number of its frames and their codes "k f", and the end."""
        stops = [round(stop * FRAME_RATE_HZ) for stop in stops_s]
        stops = [min(stop, codes.shape[1]) for stop in stops[:-1]] + [codes.shape[1]]
        tokens, start = [], 0
        for name, stop in zip(self.of_phonemes(phonemes), stops, strict=True):
            own = codes[:, start:stop][:, :MOST_FRAMES]
            tokens += [name, self.lengths + own.shape[1], *self.of_codes(own)]
            start = stop
        return [*tokens, END]

    def codes_of(self, speech: Sequence[int]) -> tuple[np.ndarray, list[tuple[int, int]]]:
        """The codes "k f" of speech, and of each phoneme its first frame and the one behind its
        last. ValueError for speech whose frames are not whole."""
        codes, spans = [], []
        for token in speech:
            if token == END:
                break
            if token < self.codes:
                spans.append(len(codes))
            elif token < self.lengths:
                codes.append(token - self.codes)
        levels = np.array(codes, int) // self.codebook_size
        if len(codes) % self.num_codebooks or np.any(
            levels.reshape(-1, self.num_codebooks) != np.arange(self.num_codebooks)
        ):
            raise ValueError("frames of the speech are not whole")
        stops = [start // self.num_codebooks for start in [*spans, len(codes)]]
        found = np.array(codes, int).reshape(-1, self.num_codebooks).T % self.codebook_size
        return found, list(itertools.pairwise(stops))


def rate_of(phonemes: Sequence[str], stops_s: Sequence[float]) -> int:
    """The class of `RATES` of speech; pauses do not count."""
    starts = [0.0, *stops_s[:-1]]
    lengths = [
        stop - start
        for name, start, stop in zip(phonemes, starts, stops_s, strict=True)
        if name not in SILENT
    ]
    return rate_class(len(lengths), sum(lengths))


def rate_class(num_phonemes: int, seconds: float) -> int:
    """The class of `RATES` of so many phonemes in so many seconds."""
    return int(np.searchsorted(RATES, num_phonemes / max(seconds, 1e-6)))
