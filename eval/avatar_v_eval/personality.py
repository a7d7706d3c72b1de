"""Does a reference video carry more of a person than a picture? Style, identity and lips by how
much of the reference the model reads.

``python -m avatar_v_eval.personality --weights small`` lets TEST persons speak in one scene, shown
through a clip of another scene with other words: 16 s of it, 4 s, 1 s, one frame, nothing (and a
minute, where ``--conditions`` asks for it). The first frame and the sound are the same in all of
them, so what differs comes from the reference; with ``--from-prompt`` no frame is given, and the
face comes from there alone. Habits (style.py) are read from the generated pixels
and compared with the habits that made the person. ``--baseline FOLDER`` puts other weights beside
them, paired over persons. Writes ``eval/results/personality_NAME.json``; the same command, called
again, goes on with the persons that are left.
"""

import argparse
import dataclasses
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from jaxtyping import Float

from avatar_v.critics.face import FaceCritic
from avatar_v.critics.motion import MOUTH_OPEN, MotionMeter
from avatar_v.critics.world_sync import WorldSyncNet
from avatar_v.models.motion import motion_moments, pack_motion, style_statistics
from avatar_v.types import FRAME_RATE_HZ, MOTION_NAMES
from avatar_v.world.style import sample_style
from avatar_v_eval import records
from avatar_v_eval.records import Number, as_command, bootstrap_mean, correlation, pearson
from avatar_v_eval.rollout import Rollout, add_sampling_options, through_vae
from avatar_v_eval.shown import (
    MOTIONS,
    Made,
    ShownCase,
    Video,
    generate,
    make_shown_cases,
)
from avatar_v_eval.style import HABITS, best_blink_r, habits, random_blink_error, slope
from avatar_v_eval.workers import forget, kept_folder, mapped

LENGTHS = {"minute": 1501, "video": 401, "four_s": 101, "one_s": 25, "image": 1, "none": 0}
"""Frames of the reference that each condition is given; a card may read a few of them."""
CONDITIONS = ("video", "four_s", "one_s", "image", "none")
"""Those that are generated unless others are asked for."""
ASKED = ("minute", "video")
"""Those of which something is asked."""
WORDS = {
    "minute": "1 min of reference video",
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
    "scene": "distance of the scene from the true one at the end, of 255",
    "distance": "distance of motion statistics from the true video's",
}
FOLLOWED = {"mouth_open": "mouth opening", "eye_open": "eye openness", "yaw": "yaw"}
"""Components by which it is seen how closely a video follows the motion that was made for it."""
HABIT_WORDS = {
    "mouth_amplitude": "mouth amplitude",
    "blink_rate_hz": "blink rate",
    "sway_yaw": "sway",
}


@dataclass(frozen=True)
class Score:
    """What is read from one video of a case."""

    habits: dict[str, float]
    said: dict[str, float] | None  # of the motion that belongs to the video (shown.Made)
    mouth: float  # r of the opening with the truth
    identity: float  # similarity with the person in the third scene
    sync: float  # confidence of the sync critic
    scene: float  # scene_distance from the true video
    style: Float[np.ndarray, " s"]  # motion statistics
    followed: dict[str, tuple[float, float]]  # r and slope of the video's motion on what is said
    distance: float = 0.0  # of them from the true video's, root mean square


def main(arguments: list[str] | None = None) -> None:
    options, state = _options(arguments), records.git_state()
    torch.manual_seed(0)  # nothing below draws from it
    rollout = _loaded(options.weights, options)
    other = None if options.baseline is None else _loaded(options.baseline, options)
    judges = Judges(
        MotionMeter.from_pretrained(), FaceCritic.from_pretrained(), WorldSyncNet.from_pretrained()
    )
    longest = max(1, *(LENGTHS[name] for name in options.conditions))
    cases = make_shown_cases(
        options.split,
        options.persons,
        first=options.first,
        num_frames=options.frames,
        reference_frames=longest,
        num_workers=options.workers,
    )
    vae = rollout.vae

    weights = {**rollout.hashes(), **judges.hashes()}
    if other is not None:
        weights["baseline dit"] = other.hashes()["dit"]
    loaded = [each for each in (rollout, other) if each is not None]
    kept = kept_folder(
        options.out,
        f"personality_{options.name}",
        state,
        weights=[weights, *(each.hashes() for each in loaded)],
        cards=[dataclasses.asdict(each.pipeline.card) for each in loaded],
        options={k: v for k, v in vars(options).items() if k not in ("out", "workers")},
    )

    def score(key: str, note: str, make: Callable[[ShownCase], Made]) -> list[Score]:
        fn = lambda i: judges.score(cases[i], make(cases[i]))  # noqa: E731
        here = None if kept is None else kept / key
        return mapped(fn, len(cases), note, options.workers, here)

    scores = {
        "truth": score("truth", "truth", lambda case: Made(case.video, case.motion)),
        "ceiling": score(
            "ceiling",
            "truth through the VAE",
            lambda case: Made(through_vae(vae, case.video), None),
        ),
    }
    for name in options.conditions:
        make = partial(generate, rollout, num_frames=LENGTHS[name], motion=options.motion)
        scores[name] = score(name, f"generating, {WORDS[name]}", make)
    shown = max(options.conditions, key=lambda name: LENGTHS[name])
    described = rollout.described()
    if other is not None:
        motion = options.baseline_motion or options.motion
        make = partial(generate, other, num_frames=LENGTHS[shown], motion=motion)
        scores[BASELINE] = score(BASELINE, "generating, other weights", make)
        described += f"; {options.baseline_words}: {other.described()}"
    words = {**WORDS, BASELINE: options.baseline_words}
    scores = {
        name: [measured(score, true) for score, true in zip(rows, scores["ceiling"], strict=True)]
        for name, rows in scores.items()
    }
    followed = {name: scores[name] for name in ("truth", shown, BASELINE) if name in scores}
    numbers = (
        style_numbers(cases, scores, words)
        | at_best(options.conditions, words, options.frames, len(cases))
        | person_numbers(scores, words, shown)
        | followed_numbers(followed, words)
    )
    result = records.make_result(
        f"personality_{options.name}",
        f"How much of a person a reference carries, {options.name}",
        numbers,
        recipe=rollout.recipe,
        weights=weights,
        notes=[
            f"{options.persons} {options.split.upper()} persons from number {options.first} on, "
            f"{options.frames} frames of speech each; the reference shows another scene",
            described,
            f"motion of the reference: {options.motion}; first frame and its motion are "
            + ("made, too" if options.from_prompt else "given"),
            "style r: over persons, habit read from the pixels against the habit that made the "
            "person, Fisher's interval; other intervals bootstrapped over persons",
        ],
    )
    print(records.write_result(result, options.out))
    forget(kept)
    for number in numbers.values():
        print(f"{number.label:72s} {number.value:8.3f}  [{number.low}, {number.high}]")


def _loaded(weights: str, options: argparse.Namespace) -> Rollout:
    rollout = Rollout.load(weights, options)
    return rollout.from_prompt() if options.from_prompt else rollout


@dataclass(frozen=True)
class Judges:
    """The frozen networks that read the pixels."""

    meter: MotionMeter
    face: FaceCritic
    lips: WorldSyncNet

    def hashes(self) -> dict[str, str]:
        critics = {"motion": self.meter, "face": self.face, "sync": self.lips}
        return {name: critic.hash() for name, critic in critics.items()}

    def score(self, case: ShownCase, made: Made) -> Score:
        """Of every frame but the first, which is given."""
        video, said, followed = made.video, None, {}
        motion = self.meter.measure(video[1:]).values.double().numpy()
        if made.motion is not None:
            meant = made.motion[1:].double().numpy()
            said = habits(meant, case.neutral[1:])
            for name in FOLLOWED:
                x, y = (track[:, MOTION_NAMES.index(name)] for track in (meant, motion))
                followed[name] = pearson(x, y), slope(x, y) if x.std() > 1e-6 else 0.0
        truth = case.motion[1:, MOUTH_OPEN].double().numpy()
        packed = pack_motion(torch.from_numpy(motion[3:]).float()[None])  # 4k + 1 vectors
        moments = motion_moments(packed, torch.ones(packed.shape[:2], dtype=torch.bool))
        own, there = self.face.embed_clip(video[1:]), self.face.embed_clip(case.elsewhere)
        return Score(
            habits(motion, case.neutral[1:]),
            said,
            pearson(motion[:, MOUTH_OPEN], truth),
            float(own @ there),
            self.lips.measure(video, case.audio).confidence,
            scene_distance(video, case.video),
            style_statistics(moments)[0].numpy(),
            followed,
        )


def scene_distance(video: Video, true: Video) -> float:
    """How far the colour of the upper corners, where no head comes, is from the true video's in the
    last second: mean absolute difference of their means, in grey levels of 255."""

    def corners(frames: Video) -> Float[torch.Tensor, "2 3"]:
        height, width = frames.shape[-2] // 4, frames.shape[-1] // 6
        last = frames[-FRAME_RATE_HZ:, :, :height].float()
        return torch.stack([x.mean((0, 2, 3)) for x in (last[..., :width], last[..., -width:])])

    return float((corners(video) - corners(true)).abs().mean())


def measured(score: Score, true: Score) -> Score:
    """The score with its distance from that of the true video through the VAE."""
    distance = float(np.sqrt(np.mean((score.style - true.style) ** 2)))
    return dataclasses.replace(score, distance=distance)


def style_numbers(
    cases: list[ShownCase], scores: dict[str, list[Score]], words: dict[str, str]
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
        for key, rows in scores.items():
            said = [score.said[habit] for score in rows if score.said is not None]
            if len(said) == len(true):
                label = "the true motion" if key == "truth" else f"the motion stream, {words[key]}"
                numbers[f"{habit}_{key}_said"] = correlation(np.array(said), true).described(
                    f"{word}, r over persons: {label}"
                )
        target = "≥ 0.6" if habit == "mouth_amplitude" else "≥ 0.4"
        for key in (key for key in (*LENGTHS, BASELINE) if key in scores):
            numbers[f"{habit}_{key}"] = correlation(read[key], true).described(
                f"{word}, r over persons: {words[key]}", target=target if key in ASKED else ""
            )
            off = np.abs(read[key] - read["ceiling"])
            numbers[f"{habit}_{key}_error"] = bootstrap_mean(off).described(
                f"{word}, error against the true video through the VAE: {words[key]}"
            )
    return numbers


def at_best(
    conditions: Iterable[str], words: dict[str, str], num_frames: int, n: int
) -> dict[str, Number]:
    """What correlation and error of blink rates can be after each of these references
    (best_blink_r, random_blink_error)."""
    word, generated_s = HABIT_WORDS["blink_rate_hz"], num_frames / FRAME_RATE_HZ
    numbers = {}
    for name in conditions:
        reference_s, ending = LENGTHS[name] / FRAME_RATE_HZ, f"at best, {words[name]}"
        numbers[f"blink_rate_hz_{name}_at_best"] = Number(
            best_blink_r(reference_s, generated_s), n, label=f"{word}, r over persons: {ending}"
        )
        numbers[f"blink_rate_hz_{name}_error_at_random"] = Number(
            random_blink_error(reference_s, generated_s),
            n,
            label=f"{word}, error of who blinks at random at the best guess: {words[name]}",
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


def followed_numbers(scores: dict[str, list[Score]], words: dict[str, str]) -> dict[str, Number]:
    """How closely the motion of a video, read from its pixels, follows the motion that belongs to
    it: r and slope over the frames of a person, means over persons."""
    numbers = {}
    for name, word in FOLLOWED.items():
        for key, rows in scores.items():
            pairs = [score.followed[name] for score in rows if name in score.followed]
            if len(pairs) < len(rows):
                continue
            label = {"truth": "true video", **words}[key]
            for kind, values in zip(("r", "slope"), np.array(pairs).T, strict=True):
                numbers[f"followed_{name}_{kind}_{key}"] = bootstrap_mean(values).described(
                    f"{word} of the pixels on the stream's, {kind}: {label}"
                )
    return numbers


def add_person_options(parser: argparse.ArgumentParser, *, name: str, frames: int) -> None:
    """Options of a measurement over persons by what their reference shows; see `parsed`."""
    parser.add_argument("--weights", default="small", help="folder, or the name of shipped weights")
    parser.add_argument("--name", default=name, help="of the result file, behind its kind")
    parser.add_argument("--persons", type=int, default=64)
    parser.add_argument("--first", type=int, default=0, help="number of the first person")
    parser.add_argument("--split", default="test", choices=("test", "validation"))
    parser.add_argument("--frames", type=int, default=frames, help="of each person, 4k + 1")
    parser.add_argument("--conditions", nargs="+", default=list(CONDITIONS), choices=list(LENGTHS))
    parser.add_argument(
        "--baseline", metavar="DIR", help="other weights, shown the longest of them"
    )
    parser.add_argument("--baseline-words", default="other weights", help="what they are")
    parser.add_argument("--workers", type=int, default=1, help="processes (%(default)s)")
    parser.add_argument("--out", default=records.RESULTS_DIR, help="folder of the result")
    add_sampling_options(parser)


def parsed(parser: argparse.ArgumentParser, arguments: list[str] | None) -> argparse.Namespace:
    """Arguments of a command with `add_person_options`, checked."""
    options = parser.parse_args(arguments)
    if options.persons < 4:
        parser.error(f"intervals of correlations need at least four persons, got {options.persons}")
    return options


def _options(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    add_person_options(parser, name="sft", frames=201)
    parser.add_argument("--baseline-motion", choices=MOTIONS, help="where it is not --motion")
    parser.add_argument("--motion", default="truth", choices=MOTIONS, help="of the reference")
    parser.add_argument(
        "--from-prompt", action="store_true", help="no first frame is given, either"
    )
    return parsed(parser, arguments)


if __name__ == "__main__":
    as_command(main)
