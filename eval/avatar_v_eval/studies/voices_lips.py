"""Lips of avatars that speak in voices of models, beside the same with true recordings.

TEST persons of the world say the sentences. The truth is what their mouths do with the phonemes as
they were said in time, in their own style; a held-out critic reads the pixels.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from avatar_v.types import FRAME_RATE_HZ, SAMPLES_PER_FRAME
from avatar_v.voices.phonemes import SILENT
from avatar_v.world.lexicon import PHONEME_ID
from avatar_v.world.motion import motion_track
from avatar_v.world.speech import Speech
from avatar_v.world.style import sample_style
from avatar_v.world.timing import Segment, split_phases
from avatar_v_eval.cases import Case, make_cases
from avatar_v_eval.generated import generate
from avatar_v_eval.intervals import mean_interval
from avatar_v_eval.records import Number
from avatar_v_eval.rollout import Rollout
from avatar_v_eval.study_metrics import StudyMetrics

LEAST, MOST = 33, 97
"""Frames of a video."""
KEYS = {"mouth": "mouth r", "sync": "sync confidence"}

Said = Sequence[tuple[Sequence[str], Sequence[tuple[int, int]], Float[Tensor, " s"]]]
"""Of each speaker: phonemes, their frames, and the sound."""


def lips(
    rollout: Rollout, said: Mapping[str, Said], *, first: int, reference_frames: int = 97
) -> dict[str, Number]:
    """Of each voice, and of all but the first the difference from it, person by person."""
    num = len(next(iter(said.values())))
    cases = make_cases(
        "test", num, first=first, num_frames=1, reference_frames=reference_frames,
        size=rollout.size,
    )  # fmt: skip
    metrics, found = StudyMetrics.held_out(), {}
    for name, sounds in said.items():
        rows = []
        for case, (phonemes, spans, sound) in zip(cases, sounds, strict=True):
            own = spoken_case(case, phonemes, spans, sound)
            rows.append(metrics.read(own, generate(rollout, own, reference_frames).video))
        found[name] = {key: np.array([row[key] for row in rows], float) for key in KEYS}
    numbers, names = {}, list(found)
    for key, words in KEYS.items():
        for name in names:
            values = found[name][key]
            numbers[f"{key}_{name}"] = mean_interval(values).described(f"{words}: {name}")
        for name in names[1:]:
            differ = found[name][key] - found[names[0]][key]
            numbers[f"{key}_{name}_less_{names[0]}"] = mean_interval(differ).described(
                f"{words}: {name} less {names[0]}"
            )
    return numbers


def spoken_case(
    case: Case,
    phonemes: Sequence[str],
    spans: Sequence[tuple[int, int]],
    sound: Float[Tensor, " s"],
) -> Case:
    """The case with another sound, and the motion that its phonemes make. ValueError for a sound of
    less than `LEAST` frames, and for phonemes that the world does not know."""
    num = min(len(sound) // SAMPLES_PER_FRAME, MOST)
    num = (num - 1) // 4 * 4 + 1
    if num < LEAST:
        raise ValueError(f"a sentence of {num} frames is too short")
    segments = [
        Segment(name, start / FRAME_RATE_HZ, stop / FRAME_RATE_HZ, 0.0, 0.0, False, 0.0, -1)
        for name, (start, stop) in zip(phonemes, spans, strict=True)
        if stop > start
    ]
    segments[-1] = replace(segments[-1], end_s=max(segments[-1].end_s, num / FRAME_RATE_HZ))
    index = torch.zeros(num, dtype=torch.long)
    for name, (start, stop) in zip(phonemes, spans, strict=True):
        index[start:stop] = PHONEME_ID[name]
    speech = Speech(
        case.ids.sentence,
        F.pad(sound, (0, max(num * SAMPLES_PER_FRAME - len(sound), 0)))[: num * SAMPLES_PER_FRAME],
        index,
        torch.zeros(num),
        tuple(segments),
        (),
        split_phases(tuple(segments)),
    )
    motion = motion_track(speech, sample_style(case.person_id), seed=case.target.seed)
    target = replace(
        case.target, audio=speech.audio, motion=motion, phonemes=index, video=None,
        face_box=None, mouth_box=None, landmarks=None, valid=torch.ones(num, dtype=torch.bool),
    )  # fmt: skip
    return replace(case, target=target)


def can_speak(phonemes: Sequence[str], num_frames: int) -> bool:
    """Whether a sentence is long enough, and of phonemes that the world knows."""
    return num_frames >= LEAST and all(name in PHONEME_ID or name in SILENT for name in phonemes)
