"""Token sequences of a corpus of voices, for the language model: what each sentence becomes."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float, Int

from avatar_v.critics.voice import mean_vector, vectors_of
from avatar_v.types import FRAME_RATE_HZ, SAMPLE_RATE_HZ
from avatar_v.voices.codec import VoiceCodec
from avatar_v.voices.corpus import Recording, corpus_files, read_recordings, world
from avatar_v.voices.phonemes import EMOTIONS, LANGUAGES
from avatar_v.voices.tokens import SPREADS, Vocabulary, Voiced, rate_of

PROMPT_S = (3.0, 10.0)
"""Seconds of a prompt, of other sentences of the voice."""
VECTOR_SENTENCES = 4
"""That a voice's vector is of."""


@dataclass(frozen=True)
class Encoded:
    """A sentence as codes."""

    number: int
    codes: Int[np.ndarray, "k f"]
    phonemes: tuple[str, ...]
    stops_s: tuple[float, ...]
    asked: Voiced


@dataclass(frozen=True)
class EncodedVoice:
    """All sentences of a voice, and its vector."""

    vector: Float[np.ndarray, " v"]
    sentences: tuple[Encoded, ...]


def encode_voices(
    folder: str | Path,
    codec: VoiceCodec,
    on_progress: Callable[[int, int], None] = lambda done, num: None,
    *,
    every: int = 1,
) -> Iterator[EncodedVoice]:
    """Voice by voice, of one file in so many. ValueError for a voice of one sentence: prompts are
    of others."""
    files = corpus_files(folder)[::every]
    for done, path in enumerate(files, 1):
        own: dict[int, list[Recording]] = {}
        for one in read_recordings([path]):
            own.setdefault(one.number, []).append(one)
        if alone := [number for number, rows in own.items() if len(rows) < 2]:
            raise ValueError(f"{path}: voice {alone[0]} has one sentence; its prompt is of others")
        for recordings in own.values():
            sounds = [torch.from_numpy(one.sound.copy()) for one in recordings]
            order = _neutral_first([one.emotion for one in recordings])
            heard = torch.cat([sounds[i] for i in order[:VECTOR_SENTENCES]])
            yield EncodedVoice(
                mean_vector(vectors_of(heard)),
                tuple(
                    Encoded(
                        one.number,
                        codec.encode(sound[None])[0].numpy(),
                        one.phonemes,
                        one.stops_s,
                        asked_of(one),
                    )
                    for one, sound in zip(recordings, sounds, strict=True)
                ),
            )
        on_progress(done, len(files))


def asked_of(one: Recording) -> Voiced:
    """The classes of a recording."""
    return Voiced(
        LANGUAGES.index(one.language),
        EMOTIONS.index(one.emotion),
        rate_of(one.phonemes, one.stops_s),
        liveliness_of(one),
    )


def liveliness_of(one: Recording) -> int:
    """The class of `SPREADS`. ValueError where pyworld is missing."""
    pitch, _ = world().dio(one.sound.astype(np.float64), SAMPLE_RATE_HZ)
    voiced = pitch[pitch > 0]
    spread = 12 * np.log2(voiced).std() if len(voiced) > 1 else 0.0
    return int(np.searchsorted(SPREADS, spread))


def sequence(
    vocabulary: Vocabulary,
    voice: EncodedVoice,
    at: int,
    speaker: Sequence[int],
    rng: np.random.Generator,
) -> tuple[list[int], list[int]]:
    """What is given and what is learned of sentence ``at``; the prompt is of others, drawn with its
    length, of neutral ones before those with an emotion: recordings of users are neutral."""
    one = voice.sentences[at]
    wanted = round(rng.uniform(*PROMPT_S) * FRAME_RATE_HZ)
    others = rng.permutation([i for i in range(len(voice.sentences)) if i != at])
    emotions = [EMOTIONS[voice.sentences[i].asked.emotion] for i in others]
    others = [others[i] for i in _neutral_first(emotions)]
    parts, num = [], 0
    for i in others:
        parts.append(voice.sentences[i].codes)
        num += parts[-1].shape[1]
        if num >= wanted:
            break
    prompt = np.concatenate(parts, 1)[:, :wanted]
    head = vocabulary.head(one.asked, speaker, prompt, one.phonemes)
    return head, vocabulary.speech(one.codes, one.phonemes, one.stops_s)


def _neutral_first(emotions: Sequence[str]) -> list[int]:
    """Their numbers, those without an emotion before the others."""
    return sorted(range(len(emotions)), key=lambda i: emotions[i] != "neutral")
