"""Whose voice a clip has, and who speaks when (Avatar V §5.1.2, speaker diarization, and §5.2,
secondary speaker presence). Voices that speak at once are not told apart."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from avatar_v.critics import voice
from avatar_v.critics.voice import STEP, WINDOW
from avatar_v.types import SAMPLE_RATE_HZ
from avatar_v_data.curation.speech import Spans, spoken_in
from avatar_v_data.curation.stages import Clip, Result, Seen, SoundScorer, seconds

SHORTEST = WINDOW // 2
"""Rows of the shortest speech of which it is said whose it is."""
ROWS_PER_S = SAMPLE_RATE_HZ / STEP


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

    same: float = voice.SAME_WINDOWS

    name: ClassVar[str] = "voice"
    version: ClassVar[int] = 1
    needs: ClassVar[tuple[str, ...]] = ("speech", "clips")
    numbers: ClassVar[tuple[str, ...]] = ("voice_spread", "speakers", "second_voice_share")
    vectors: ClassVar[tuple[str, ...]] = ("voice",)

    def weights(self) -> str:
        return voice.weights_hash()

    def score(self, clip: Clip, seen: Seen) -> Result:
        speech = spoken_in(seen.results["speech"]["speech"], clip)
        windows = _windows(speech)
        if not windows:
            return {"voice_spread": 0.0, "speakers": 0, "second_voice_share": 0.0, "turns": []}
        vectors = voice.window_vectors(clip.sound(seen.audio), windows)
        who = voice.voices(vectors, self.same)
        first, mean = (voice.mean_vector(some) for some in (vectors[who == 0], vectors))
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


def _windows(speech: Spans) -> list[list[tuple[int, int]]]:
    """Of each span that is long enough its windows, in rows."""
    found = []
    for span in speech:
        start, stop = (round(x * ROWS_PER_S) for x in span)
        if stop - start >= SHORTEST:
            found.append(voice.windows_within(start, stop))
    return found


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
