"""The engines: videos driven by the drawn voice beside those driven by the world's own speech, and
the best of several first pictures beside the first of them.

TEST persons speak the same words twice: with the world's sound of their own voice, and with the
sound that the voice engine makes of the transcript, whose true mouth is that of the engine's
phonemes in the person's style. And for each person the scene engine makes ``--candidates`` pictures
of a prompt. Held-out critics score; the face critic that ranks the pictures does not. Where the
pack of the drawn voice is installed, its phonemes are compared with those of the world's lexicon.
"""

import argparse
import dataclasses
from dataclasses import dataclass
from functools import partial

import numpy as np

from avatar_v.base.seeds import derive
from avatar_v.engines.drawn_voice import DrawnVoice
from avatar_v.engines.pronunciation import PACK, by_letters, has_pack
from avatar_v.generate.scene import make_scene
from avatar_v.types import SAMPLES_PER_FRAME
from avatar_v.world.lexicon import LEXICON, Word
from avatar_v.world.motion import motion_track
from avatar_v.world.style import sample_style
from avatar_v_eval.cases import (
    Case,
    Video,
    add_case_options,
    asked_cases,
    cases_note,
    check_persons,
)
from avatar_v_eval.generated import generate, inputs_of
from avatar_v_eval.intervals import mean_of, rate
from avatar_v_eval.protocol import Findings, Reading, gains, means, read_cases, resumable
from avatar_v_eval.readers import MEASURES, Readers, mouth_r
from avatar_v_eval.records import Number
from avatar_v_eval.rollout import Rollout, add_sampling_options

REFERENCE_FRAMES = 49
SOUNDS = {"world": "the world's speech", "engine": "the voice engine's"}
LIPS = {name: MEASURES[name] for name in ("sync", "mouth")}
PICTURES = {
    "first": "the first candidate",
    "best": "the one that is chosen",
    "mean": "the mean of all candidates",
    "true": "the true first frame",
}


@dataclass(frozen=True)
class Spoken:
    """A video, and the case whose sound and motion are those that it was made of."""

    case: Case
    video: Video


def add_options(parser: argparse.ArgumentParser) -> None:
    add_case_options(parser, persons=16, frames=49, first=9600)
    add_sampling_options(parser)
    parser.add_argument("--candidates", type=int, default=8, help="pictures of a scene")


def measure(options: argparse.Namespace) -> Findings:
    check_persons(options, 2)
    rollout, readers = Rollout.load(options.weights, options), Readers.held_out()
    cases = asked_cases(options, reference_frames=REFERENCE_FRAMES, target_video=False)
    weights = {**rollout.hashes(), **readers.hashes()}
    kept = resumable(options, weights)
    how = {"num_workers": options.workers, "kept": kept}
    sounds = {"world": lambda case: case, "engine": said_by_engine}
    spoken = read_cases(
        cases,
        {name: partial(_spoken, rollout, sound) for name, sound in sounds.items()},
        lambda case, made: lips(readers, made),
        **how,
    )
    scenes = read_cases(
        cases,
        {"scene": lambda case: case},
        lambda case, made: likeness(rollout, readers, case, options.candidates),
        **how,
    )
    numbers = means(spoken, LIPS, SOUNDS) | gains(spoken, LIPS, SOUNDS, [("engine", "world")])
    for name, words in PICTURES.items():
        number = mean_of(scenes.values("scene", name))
        numbers[f"identity_{name}"] = number.described(f"face similarity: {words}")
    best, first = (scenes.values("scene", name) for name in ("best", "first"))
    numbers["identity_best_over_first"] = mean_of(best - first).described(
        "face similarity: the one that is chosen over the first candidate"
    )
    return Findings(
        "A script and a scene in place of a sound and a picture",
        numbers | spelling_numbers(),
        recipe=rollout.recipe,
        weights=weights,
        notes=[
            cases_note(options, "; intervals over persons"),
            rollout.described(),
            f"{options.candidates} candidates of a scene, ranked by the face critic `face`; scored "
            "by held-out critics in a third scene",
            f"letters to phonemes: {PACK}",
        ],
    )


def said_by_engine(case: Case) -> Case:
    """The case with its words said by the drawn voice; the true motion is that of its phonemes in
    the person's style. The words come twice, so that they fill the time."""
    text, style = case.target.transcript, sample_style(case.person_id)
    speech = DrawnVoice().speech(f"{text}. {text}.", seed=case.person_id)
    num = case.num_frames
    if speech.num_frames < num:
        raise ValueError(f"the engine says {text!r} twice in {speech.num_frames} frames, < {num}")
    motion = motion_track(speech, style, seed=case.target.seed)
    target = dataclasses.replace(
        case.target, audio=speech.audio[: num * SAMPLES_PER_FRAME], motion=motion[:num]
    )
    return dataclasses.replace(case, target=target)


def _spoken(rollout: Rollout, sound, case: Case) -> Spoken:
    heard = sound(case)
    return Spoken(heard, generate(rollout, heard, REFERENCE_FRAMES).video)


def lips(readers: Readers, made: Spoken) -> Reading:
    """Lips of a video against the sound and the motion that belong to it."""
    motion = readers.motion(made.video)
    return {
        "sync": readers.sync(made.video, made.case),
        "mouth": mouth_r(motion, made.case),
    }


def likeness(rollout: Rollout, readers: Readers, case: Case, num: int) -> Reading:
    """Face similarity, with the person in a third scene, of the pictures of a scene."""
    inputs = inputs_of(rollout, case, REFERENCE_FRAMES)
    asked = rollout.request_for(case.person_id, "")
    request = asked.changed(scene=case.prompt, num_candidates=num)
    scene = make_scene(rollout.pipeline, inputs, request)
    seeds = [candidate.seed for candidate in scene.candidates]
    first = seeds.index(derive("scene", request.sampling.seed, 0))
    person = readers.face.embed_clip(case.third_video)
    values = (readers.face.measure(scene.pictures).values @ person).double().numpy()
    true = readers.face.measure(case.image[None]).values @ person
    return {
        "first": float(values[first]),
        "best": float(values[0]),
        "mean": float(values.mean()),
        "true": float(true),
    }


def spelling_numbers() -> dict[str, Number]:
    """The pack's phonemes of the lexicon's words against the lexicon's; none without the pack."""
    if not has_pack():
        return {}
    words = {word.text: word for kind in LEXICON.values() for word in kind}.values()
    wrong = np.array([_distance(by_letters(word.text), word) for word in words])
    lengths = np.array([len(word.phonemes) for word in words])
    return {
        "phonemes_wrong": mean_of(wrong / lengths).described(
            "letters to phonemes: wrong ones of a word's phonemes, mean over words"
        ),
        "words_right": rate(int((wrong == 0).sum()), len(wrong)).described(
            "letters to phonemes: share of words said as in the lexicon"
        ),
    }


def _distance(said: Word, true: Word) -> int:
    """Levenshtein distance of their phonemes."""
    row = list(range(len(true.phonemes) + 1))
    for i, phoneme in enumerate(said.phonemes, 1):
        before, row[0] = row[0], i
        for j, other in enumerate(true.phonemes, 1):
            before, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, before + (phoneme != other))
    return row[-1]
