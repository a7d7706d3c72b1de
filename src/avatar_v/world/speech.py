"""What is heard, and when: one call that gives the sound of a speech and its timing."""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from avatar_v.media.sound import resampled
from avatar_v.types import FRAME_RATE_HZ, SAMPLE_RATE_HZ, SAMPLES_PER_FRAME
from avatar_v.world.lexicon import PHONEME_ID, Sentence
from avatar_v.world.style import Habits
from avatar_v.world.timing import Phases, Segment, SpokenWord, recite, speak, split_phases
from avatar_v.world.voice import Voice, synthesise, synthesise_pieces

MOST_PIECE_S = 4.0
"""Of a sound that is made in pieces, where it has no pauses."""


@dataclass(frozen=True)
class Speech:
    """A speech of f frames. Segments and words begin within it; the last may end after it."""

    speech_id: int
    audio: Float[Tensor, "s"]  # 640 f samples
    phonemes: Int[Tensor, "f"]  # index into lexicon.PHONEMES at the middle of each frame
    stress: Float[Tensor, "f"]  # 1 in stressed vowels
    segments: tuple[Segment, ...]
    words: tuple[SpokenWord, ...]
    phases: Phases
    frame_rate_hz: int = FRAME_RATE_HZ

    @property
    def num_frames(self) -> int:
        return len(self.phonemes)


def say(
    speech_id: int,
    voice: Voice,
    style: Habits,
    num_frames: int,
    frame_rate_hz: int = FRAME_RATE_HZ,
) -> Speech:
    """Speech ``speech_id`` in a voice and style, ``num_frames`` long (one frame = 640 samples).

    ValueError for fewer than one frame or an id outside the splits.
    """
    if num_frames < 1:
        raise ValueError(f"speech has at least 1 frame, got {num_frames}")
    segments, words = speak(speech_id, style, num_frames / frame_rate_hz)
    return spoken(speech_id, segments, words, voice, num_frames, frame_rate_hz)


def say_sentences(
    sentences: Sequence[Sentence], voice: Voice, style: Habits, seed_id: int
) -> Speech:
    """These sentences in a voice and style, as long as they take; ``seed_id`` stands for the speech
    id. ValueError where there are none."""
    if not sentences:
        raise ValueError("speech has at least one sentence")
    segments, words = recite(sentences, style, seed_id)
    num_frames = round(segments[-1].end_s * FRAME_RATE_HZ)
    return spoken(seed_id, segments, words, voice, num_frames)


def say_pieces(
    sentences: Sequence[Sentence], voice: Voice, style: Habits, seed_id: int
) -> Iterator[Float[Tensor, " s"]]:
    """The sound of `say_sentences` in pieces, each made when it is asked for: cut in the pauses,
    and behind a word where none comes for `MOST_PIECE_S`."""
    segments, words = recite(sentences, style, seed_id)
    cuts_s = [0.0]
    for word, behind in itertools.pairwise(words):
        if behind.start_s > word.end_s or word.end_s - cuts_s[-1] > MOST_PIECE_S:
            cuts_s.append((word.end_s + behind.start_s) / 2)
    num_samples = round(segments[-1].end_s * FRAME_RATE_HZ) * SAMPLES_PER_FRAME
    for piece in synthesise_pieces(split_phases(segments), voice, num_samples, seed_id, cuts_s):
        yield torch.from_numpy(piece)


def spoken(
    speech_id: int,
    segments: tuple[Segment, ...],
    words: tuple[SpokenWord, ...],
    voice: Voice,
    num_frames: int,
    frame_rate_hz: int = FRAME_RATE_HZ,
) -> Speech:
    """The speech of segments that cover ``num_frames``, in a voice."""
    duration_s, num = num_frames / frame_rate_hz, num_frames * SAMPLES_PER_FRAME
    phases = split_phases(segments)
    at_16k = synthesise(phases, voice, -(-num_frames * SAMPLE_RATE_HZ // frame_rate_hz), speech_id)
    audio = torch.from_numpy(at_16k)
    if frame_rate_hz != FRAME_RATE_HZ:
        audio = resampled(audio.float(), SAMPLE_RATE_HZ, frame_rate_hz * SAMPLES_PER_FRAME)[:num]
        audio = F.pad(audio, (0, num - len(audio)))
    kept = tuple(s for s in segments if s.start_s < duration_s)
    middle_s = frame_times_s(num_frames, frame_rate_hz)
    index = np.searchsorted([s.end_s for s in segments], middle_s, "right")
    return Speech(
        speech_id=speech_id,
        audio=audio,
        phonemes=torch.tensor([PHONEME_ID[segments[i].phoneme] for i in index]),
        stress=torch.tensor([segments[i].stress for i in index]),
        segments=kept,
        words=tuple(w for w in words if w.start_s < duration_s),
        phases=phases,
        frame_rate_hz=frame_rate_hz,
    )


def frame_times_s(num_frames: int, frame_rate_hz: int = FRAME_RATE_HZ) -> np.ndarray:
    """The moment that each frame shows: the middle of its sound."""
    return (np.arange(num_frames) + 0.5) / frame_rate_hz
