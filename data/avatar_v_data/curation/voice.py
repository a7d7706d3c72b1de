"""Whose voice a clip has, and who speaks when (Avatar V §5.1.2, speaker diarization, and §5.2,
secondary speaker presence). Voices that speak at once are not told apart."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import ClassVar

import numpy as np
import torch
from jaxtyping import Float
from scipy.cluster.hierarchy import fcluster, linkage

from avatar_v.critics import voice
from avatar_v.critics.frozen import hash_files
from avatar_v.critics.voice import STEP, WINDOW, VoiceEncoder
from avatar_v.types import SAMPLE_RATE_HZ
from avatar_v_data.curation.speech import Spans, spoken_in
from avatar_v_data.curation.stages import Clip, Result, Seen, SoundScorer, Waveform, seconds

HOP = SHORTEST = WINDOW // 2
"""Rows from one window to the next; and of the shortest speech of which it is said whose it is."""
ROWS_PER_S = SAMPLE_RATE_HZ / STEP

Vectors = Float[np.ndarray, "n 256"]


@dataclass(frozen=True)
class VoiceStage(SoundScorer):
    """``same``: the mean cosine distance of two groups of windows up to which they are one voice.
    A window is 1.6 s of speech, every 0.8 s.

    Columns: ``voice``, a unit vector of the voice that speaks most, not there where no speech is
    long enough; ``voice_spread``, the largest
    distance of a window's own vector from the mean of all; ``speakers``, 0 where no speech is
    long enough; ``second_voice_share``, the share of the speech that is not the first voice's;
    ``turns``, [from, to, who], in seconds of the recording, where 0 is the first voice.
    """

    same: float = 0.31

    name: ClassVar[str] = "voice"
    version: ClassVar[int] = 1
    needs: ClassVar[tuple[str, ...]] = ("speech", "clips")

    def weights(self) -> str:
        return hash_files([voice.weights_path()])

    def score(self, clip: Clip, seen: Seen) -> Result:
        speech = spoken_in(seen.results["speech"]["speech"], clip)
        windows = _windows(speech)
        if not windows:
            return {"voice_spread": 0.0, "speakers": 0, "second_voice_share": 0.0, "turns": []}
        vectors = _vectors(clip.sound(seen.audio), windows)
        who = voices(vectors, self.same)
        first, mean = (_mean(some) for some in (vectors[who == 0], vectors))
        owned = _turns(windows, who)
        own_s = [sum(b - a for a, b, n in owned if n == k) for k in range(who.max() + 1)]
        start_s = seconds(clip.start)
        return {
            "voice": first.round(5).tolist(),
            "voice_spread": round(float(np.linalg.norm(vectors - mean, axis=1).max()), 4),
            "speakers": len(own_s),
            "second_voice_share": round(1 - own_s[0] / sum(own_s), 4),
            "turns": [[round(a + start_s, 2), round(b + start_s, 2), n] for a, b, n in owned],
        }


def voices(vectors: Vectors, same: float) -> np.ndarray:
    """Of each window the number of its voice, 0 for the one with the most. By average linkage."""
    if len(vectors) < 2:
        return np.zeros(len(vectors), int)
    groups = fcluster(linkage(vectors, "average", "cosine"), same, "distance") - 1
    largest_first = np.argsort(-np.bincount(groups), kind="stable")
    return np.argsort(largest_first)[groups]


def _windows(speech: Spans) -> list[list[tuple[int, int]]]:
    """Of each span that is long enough its windows, in rows."""
    found = []
    for span in speech:
        start, stop = (round(x * ROWS_PER_S) for x in span)
        if stop - start >= SHORTEST:
            last = max(stop - WINDOW, start)
            starts = [*range(start, last, HOP), last]
            found.append([(a, min(a + WINDOW, stop)) for a in starts])
    return found


@torch.inference_mode()
def _vectors(sound: Waveform, windows: Sequence[Sequence[tuple[int, int]]]) -> Vectors:
    mels = voice.mel_powers(voice.levelled(sound))
    rows = [mels[a:b] for own in windows for a, b in own]
    found: dict[int, torch.Tensor] = {}
    for length in {len(row) for row in rows}:
        at = [n for n, row in enumerate(rows) if len(row) == length]
        vectors = _encoder()(torch.stack([rows[n] for n in at]))
        found |= dict(zip(at, vectors, strict=True))
    return torch.stack([found[n] for n in range(len(rows))]).double().numpy()


def _turns(
    windows: Sequence[Sequence[tuple[int, int]]], who: np.ndarray
) -> list[tuple[float, float, int]]:
    """Seconds from and to which a voice speaks; neighbours that overlap meet in the middle."""
    found, num = [], 0
    for own in windows:
        meet = [(a[1] + b[0]) / 2 for a, b in itertools.pairwise(own)]
        edges = [own[0][0], *meet, own[-1][1]]
        parts = zip(who[num : num + len(own)], itertools.pairwise(edges), strict=True)
        for name, together in itertools.groupby(parts, key=lambda part: part[0]):
            ends = [edge for _, pair in together for edge in pair]
            found.append((ends[0] / ROWS_PER_S, ends[-1] / ROWS_PER_S, int(name)))
        num += len(own)
    return found


def _mean(vectors: Vectors) -> Float[np.ndarray, " 256"]:
    total = vectors.sum(0)
    return total / max(float(np.linalg.norm(total)), 1e-9)


@cache
def _encoder() -> VoiceEncoder:
    return VoiceEncoder.from_package()
