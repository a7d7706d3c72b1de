"""Does a reference video carry more of a person than a picture? Style, identity and lips by how
much of the reference the model reads.

``python -m avatar_v_eval.personality --weights small`` lets TEST persons speak in one scene, shown
through a clip of another scene with other words: 16 s of it, 4 s, 1 s, one frame, nothing. The
first frame and the sound are the same in all of them, so what differs comes from the reference.
Habits (style.py) are read from the generated pixels and compared with the habits that made the
person. ``--baseline FOLDER`` puts other weights beside them, paired over persons. Writes
``eval/results/personality_NAME.json``.
"""

import argparse
import dataclasses
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, UInt8
from rich.progress import track
from torch import Tensor

from avatar_v.critics.extractors import from_meter
from avatar_v.critics.face import FaceCritic
from avatar_v.critics.motion import MOUTH_OPEN, MotionMeter
from avatar_v.critics.world_sync import WorldSyncNet
from avatar_v.generate.inputs import Inputs
from avatar_v.generate.reference_clip import ReferenceClip
from avatar_v.loudness import normalise_loudness
from avatar_v.models.motion import motion_moments, pack_motion, style_statistics
from avatar_v.types import SAMPLES_PER_FRAME
from avatar_v.world.clip import make_clip
from avatar_v.world.splits import Split, persons, scenes, sentences
from avatar_v.world.style import sample_style
from avatar_v_eval import records
from avatar_v_eval.records import Number, bootstrap_mean, correlation, pearson
from avatar_v_eval.rollout import Rollout, add_sampling_options, through_vae, with_close_ups
from avatar_v_eval.style import HABITS, habits, neutral_opening

LENGTHS = {"video": 401, "four_s": 101, "one_s": 25, "image": 1, "none": 0}
"""Frames of the reference that each condition reads."""
WORDS = {
    "video": "16 s of reference video",
    "four_s": "4 s of reference video",
    "one_s": "1 s of reference video",
    "image": "one reference frame",
    "none": "no reference",
}
BASELINE = "baseline"
MEASURES = {
    "identity": "face similarity in a third scene",
    "mouth": "mouth r",
    "sync": "sync confidence",
    "distance": "distance of motion statistics from the true video's",
}
HABIT_WORDS = {
    "mouth_amplitude": "mouth amplitude",
    "blink_rate_hz": "blink rate",
    "sway_yaw": "sway",
}
MOTIONS = ("truth", "meter", "target", "none")
"""Of the reference and the first frame: the world's own, read from pixels, of the first frame
alone, unknown."""

Video = UInt8[Tensor, "f 3 h w"]


@dataclass(frozen=True)
class Case:
    """A TEST person in one scene, and a clip of theirs from another scene to be shown through."""

    person_id: int
    prompt: str
    audio: Float[Tensor, " s"]
    video: Video  # the truth of that sound
    motion: Float[Tensor, "f m"]
    neutral: Float[np.ndarray, " f"]  # its mouth opening if the person's amplitude were 1
    reference: ReferenceClip
    shown: tuple[int, int, int]  # person, scene and speech of the reference
    elsewhere: Video  # a third scene, for the judge alone


@dataclass(frozen=True)
class Score:
    """What is read from one video of a case."""

    habits: dict[str, float]
    mouth: float  # r of the opening with the truth
    identity: float  # similarity with the person in the third scene
    sync: float  # confidence of the sync critic
    style: Float[np.ndarray, " s"]  # motion statistics
    distance: float = 0.0  # of them from the true video's, root mean square


def main(arguments: list[str] | None = None) -> None:
    options = _options(arguments)
    torch.manual_seed(0)  # nothing below draws from it
    rollout = Rollout.load(options.weights, options)
    judges = Judges(
        MotionMeter.from_pretrained(), FaceCritic.from_pretrained(), WorldSyncNet.from_pretrained()
    )
    cases = make_cases(options)
    scores = {
        "truth": [judges.score(case, case.video) for case in cases],
        "ceiling": [judges.score(case, through_vae(rollout.vae, case.video)) for case in cases],
    }
    for name in options.conditions:
        videos = track(cases, f"generating, {WORDS[name]}", transient=True)
        made = (generate(rollout, case, LENGTHS[name], options.motion) for case in videos)
        scores[name] = [judges.score(*pair) for pair in zip(cases, made, strict=True)]
    shown = max(options.conditions, key=lambda name: LENGTHS[name])
    weights = {**rollout.hashes(), **judges.hashes()}
    if options.baseline is not None:
        other = Rollout.load(options.baseline, options)
        videos = track(cases, "generating, other weights", transient=True)
        motion = options.baseline_motion or options.motion
        made = (generate(other, case, LENGTHS[shown], motion) for case in videos)
        scores[BASELINE] = [judges.score(*pair) for pair in zip(cases, made, strict=True)]
        weights["baseline dit"] = other.hashes()["dit"]
    words = {**WORDS, BASELINE: options.baseline_words}
    scores = {
        name: [measured(score, true) for score, true in zip(rows, scores["ceiling"], strict=True)]
        for name, rows in scores.items()
    }
    numbers = style_numbers(cases, scores, words) | person_numbers(scores, words, shown)
    result = records.make_result(
        f"personality_{options.name}",
        f"How much of a person a reference carries, {options.name}",
        numbers,
        recipe=rollout.recipe,
        weights=weights,
        notes=[
            f"{options.persons} {options.split.upper()} persons from number {options.first} on, "
            f"{options.frames} frames of speech each; the reference shows another scene",
            rollout.described(),
            f"motion of the reference: {options.motion}; first frame and its motion are given",
            "style r: over persons, habit read from the pixels against the habit that made the "
            "person, Fisher's interval; other intervals bootstrapped over persons",
        ],
    )
    print(records.write_result(result, options.out))
    for number in numbers.values():
        print(f"{number.label:72s} {number.value:8.3f}  [{number.low}, {number.high}]")


@dataclass(frozen=True)
class Judges:
    """The frozen networks that read the pixels."""

    meter: MotionMeter
    face: FaceCritic
    lips: WorldSyncNet

    def hashes(self) -> dict[str, str]:
        critics = {"motion": self.meter, "face": self.face, "sync": self.lips}
        return {name: critic.hash() for name, critic in critics.items()}

    def score(self, case: Case, video: Video) -> Score:
        """Of every frame but the first, which is given."""
        motion = self.meter.measure(video[1:]).values.double().numpy()
        truth = case.motion[1:, MOUTH_OPEN].double().numpy()
        packed = pack_motion(torch.from_numpy(motion[3:]).float()[None])  # 4k + 1 vectors
        moments = motion_moments(packed, torch.ones(packed.shape[:2], dtype=torch.bool))
        own, there = self.face.embed_clip(video[1:]), self.face.embed_clip(case.elsewhere)
        return Score(
            habits(motion, case.neutral[1:]),
            pearson(motion[:, MOUTH_OPEN], truth),
            float(own @ there),
            self.lips.measure(video, case.audio).confidence,
            style_statistics(moments)[0].numpy(),
        )


def measured(score: Score, true: Score) -> Score:
    """The score with its distance from that of the true video through the VAE."""
    distance = float(np.sqrt(np.mean((score.style - true.style) ** 2)))
    return dataclasses.replace(score, distance=distance)


def generate(rollout: Rollout, case: Case, num_frames: int, motion: str) -> Video:
    """The case's speech, shown through the first ``num_frames`` frames of its reference."""
    card, clips, first_motion = rollout.pipeline.card, (), None
    if card.reference and num_frames:
        known = motion if card.motion and motion != "target" else "none"
        clip = shortened(case.reference, num_frames, known)
        assert case.reference.motion is not None
        if card.faces:
            clip = with_close_ups(clip, case.shown, case.reference.motion)
        clips = (clip,)
    if card.motion and motion != "none":
        first_motion = from_meter(case.video[:1], None)[0] if motion == "meter" else case.motion[0]
    inputs = Inputs(
        image=case.video[0],
        audio=case.audio,
        num_frames=len(case.video),
        reference_frame=None,
        warnings=(),
        clips=clips,
        motion=first_motion,
    )
    request = dataclasses.replace(rollout.request, prompt=case.prompt)
    return torch.cat(list(rollout.pipeline.stream(inputs, request)))


def shortened(clip: ReferenceClip, num_frames: int, motion: str) -> ReferenceClip:
    """The clip's beginning, with its motion as it is known: the truth, read by the meter, none."""
    video, audio, track_ = clip.video[:num_frames], clip.audio, None
    assert audio is not None
    assert clip.motion is not None
    if motion != "none":
        track_ = clip.motion[:num_frames] if motion == "truth" else from_meter(video, None)
    sound = audio[: num_frames * SAMPLES_PER_FRAME]
    return ReferenceClip(video, clip.valid[:num_frames], sound, track_)


def style_numbers(
    cases: list[Case], scores: dict[str, list[Score]], words: dict[str, str]
) -> dict[str, Number]:
    """Habits of generated videos against those of the persons, and how far they are off."""
    styles = [sample_style(case.person_id) for case in cases]
    numbers = {}
    for habit in HABITS:
        true = np.array([getattr(style, habit) for style in styles])
        read = {key: np.array([s.habits[habit] for s in rows]) for key, rows in scores.items()}
        word = HABIT_WORDS[habit]
        for key, label in (("truth", "the true video"), ("ceiling", "it through the VAE")):
            numbers[f"{habit}_{key}"] = correlation(read[key], true).described(
                f"{word}, r over persons: {label}"
            )
        target = "≥ 0.6" if habit == "mouth_amplitude" else "≥ 0.4"
        for key in (key for key in (*LENGTHS, BASELINE) if key in scores):
            numbers[f"{habit}_{key}"] = correlation(read[key], true).described(
                f"{word}, r over persons: {words[key]}", target=target if key == "video" else ""
            )
            off = np.abs(read[key] - read["ceiling"])
            numbers[f"{habit}_{key}_error"] = bootstrap_mean(off).described(
                f"{word}, error against the true video through the VAE: {words[key]}"
            )
    return numbers


def person_numbers(
    scores: dict[str, list[Score]], words: dict[str, str], shown: str
) -> dict[str, Number]:
    """Identity, lips and motion, each condition alone, and paired differences: ``shown``, the
    longest reference, over one frame and over the baseline."""
    numbers = {}
    for name, word in MEASURES.items():
        rows = {key: np.array([getattr(s, name) for s in all_]) for key, all_ in scores.items()}
        for key in rows:
            label = {"truth": "true video", "ceiling": "it through the VAE", **words}[key]
            numbers[f"{name}_{key}"] = bootstrap_mean(rows[key]).described(f"{word}: {label}")
        for key, other in ((shown, "image"), ("image", "none"), (shown, BASELINE)):
            if key != other and key in rows and other in rows:
                gain = bootstrap_mean(rows[key] - rows[other])
                label = f"{word}: {words[key]} over {words[other]}"
                numbers[f"{name}_{key}_over_{other}"] = gain.described(label)
    return numbers


def make_cases(options: argparse.Namespace) -> list[Case]:
    """Each with its own person, three scenes and two sentences of the split."""
    split: Split = options.split
    people = persons(split, options.persons, options.first)
    places = scenes(split, 3 * options.persons, 3 * options.first)
    speeches = sentences(split, 2 * options.persons, 2 * options.first)
    cases, longest = [], max(1, *(LENGTHS[name] for name in options.conditions))
    for i, person in enumerate(track(people, "rendering cases", transient=True)):
        here, there, elsewhere = places[3 * i : 3 * i + 3]
        said, other = speeches[2 * i : 2 * i + 2]
        target = make_clip(person, here, said, num_frames=options.frames, size=64)
        shown = make_clip(person, there, other, num_frames=longest, size=64)
        third = make_clip(person, elsewhere, other, num_frames=13, size=64)
        cases.append(
            Case(
                person_id=person,
                prompt=target.text,
                audio=target.audio,
                video=_of(target.video),
                motion=target.motion,
                neutral=neutral_opening(person, said, options.frames),
                reference=ReferenceClip(
                    _of(shown.video),
                    _of(shown.valid),
                    normalise_loudness(shown.audio),
                    shown.motion,
                ),
                shown=(person, there, other),
                elsewhere=_of(third.video),
            )
        )
    return cases


def _of(tensor: Tensor | None) -> Tensor:
    assert tensor is not None  # the clips are rendered
    return tensor


def _options(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--weights", default="small", help="folder, or the name of shipped weights")
    parser.add_argument("--name", default="sft", help="of the result: personality_NAME.json")
    parser.add_argument("--persons", type=int, default=64)
    parser.add_argument("--first", type=int, default=0, help="number of the first person")
    parser.add_argument("--split", default="test", choices=("test", "validation"))
    parser.add_argument("--frames", type=int, default=201, help="of video per person, 4k + 1")
    parser.add_argument("--conditions", nargs="+", default=list(LENGTHS), choices=list(LENGTHS))
    parser.add_argument(
        "--baseline", metavar="DIR", help="other weights, shown the longest of them"
    )
    parser.add_argument("--baseline-motion", choices=MOTIONS, help="where it is not --motion")
    parser.add_argument("--baseline-words", default="other weights", help="what they are")
    parser.add_argument("--motion", default="truth", choices=MOTIONS, help="of the reference")
    parser.add_argument("--out", default=records.RESULTS_DIR, help="folder of the result")
    add_sampling_options(parser)
    return parser.parse_args(arguments)


if __name__ == "__main__":
    main()
