"""What the study `systems` reads of a video, and the numbers that it makes of it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float

from avatar_v.critics.motion import MOUTH_OPEN
from avatar_v.faces.face import identification
from avatar_v.motion.habits import slope
from avatar_v.scoring.readings import style_distance
from avatar_v.scoring.sampling import pearson
from avatar_v.types import MOTION_NAMES
from avatar_v_eval.cases import Case, Video, loudness
from avatar_v_eval.generated import GeneratedClip
from avatar_v_eval.habits import habit_numbers
from avatar_v_eval.intervals import mean_interval, rate
from avatar_v_eval.motion_statistics import STATISTICS, motion_statistics
from avatar_v_eval.protocol import Reading, Readings, gains, means
from avatar_v_eval.records import Number
from avatar_v_eval.study_metrics import MEASURES, StudyMetrics, picture_shares, scene_distance

CEILING, SWAPPED = "ceiling", "swapped"
COLOURS = {
    "energy": "motion energy, share of the true video's through the VAE",
    "saturation": "saturation, share of the true video's through the VAE",
    "brightness": "brightness, share of the true video's through the VAE",
}
HELD_OUT = {
    f"held_out_{name}": f"{MEASURES[name]}, held-out critic"
    for name in ("mouth", "identity", "sync")
}
FOLLOWED = {"mouth_open": "mouth opening", "eye_open": "eye openness", "yaw": "yaw"}
"""Components that tell how closely a video follows the motion that was made for it."""
MEASURED = {
    **MEASURES,
    **HELD_OUT,
    **COLOURS,
    "style": "style distance from the true video's",
    "unrelated": "mouth r with the next person's speech",
}
FOLLOWING = {
    f"followed_{name}_{kind}": f"{word} of the pixels on the motion made for them, {kind}"
    for name, word in FOLLOWED.items()
    for kind in ("r", "slope")
}
MOUTH_TARGETS = {"mouth": "≥ 0.6", "unrelated": "|r| < 0.15"}


@dataclass(frozen=True)
class VideoReader:
    """Every measure of one person's video."""

    shipped: StudyMetrics
    held_out: StudyMetrics
    true: Mapping[int, Video]
    """Person → the true video through the VAE."""

    def __call__(self, case: Case, clip: GeneratedClip) -> Reading:
        video = clip.video
        case, true = case.shortened(len(video)), self.true[case.person_id][: len(video)]
        motion, seen = (of.motion(case, video) for of in (self.shipped, self.held_out))
        found: dict[str, float | np.ndarray] = {
            **self.shipped.read(case, video),
            **{f"held_out_{k}": v for k, v in self.held_out.read(case, video).items()},
            **picture_shares(case, video, true),
            **colour_shares(video, true),
            **motion_statistics(motion, case.neutral[1:]),
            "scene": scene_distance(video, case.video),
            "style": style_distance(motion, self.shipped.motion(case, true)),
            "mouth_open": motion[:, MOUTH_OPEN],
            "face": self.shipped.face.critic.embed_clip(video[1:]).double().numpy(),
            "elsewhere": self.shipped.face.critic.embed_clip(case.third_video).double().numpy(),
        }
        if clip.motion is not None:
            told = np.asarray(clip.motion)[-len(seen) :].astype(np.float64)
            for name in FOLLOWED:
                x, y = (track[:, MOTION_NAMES.index(name)] for track in (told, seen))
                found[f"followed_{name}_r"] = pearson(x, y)
                found[f"followed_{name}_slope"] = (
                    float(slope(*map(torch.as_tensor, (x, y)))) if x.std() > 1e-6 else 0.0
                )
        return found


def colour_shares(video: Video, true: Video) -> dict[str, float]:
    """Motion energy, saturation and brightness as shares of those of the true video: mean absolute
    difference of neighbouring frames, mean difference of the largest and least channel, mean."""

    def numbers(frames: Video) -> np.ndarray:
        x = frames[1:].float()
        saturation = (x.amax(1) - x.amin(1)).mean()
        return np.array([float(v) for v in (x.diff(dim=0).abs().mean(), saturation, x.mean())])

    return dict(zip(COLOURS, (numbers(video) / numbers(true)).tolist(), strict=True))


def summarise_readings(
    cases: Sequence[Case],
    readings: Readings,
    words: Mapping[str, str],
    pairs: Sequence[tuple[str, str]],
) -> dict[str, Number]:
    """Means over persons, differences of pairs, habits, and whose face is the nearest."""
    whole = Readings({key: rows for key, rows in readings.rows.items() if key != SWAPPED})
    whole = with_unrelated(whole, np.stack([case.mouth_open[1:] for case in cases]))
    numbers = means(whole, MEASURED, words)
    for (measure, target), key in ((x, key) for x in MOUTH_TARGETS.items() for key in whole.rows):
        old = numbers[f"{measure}_{key}"]
        numbers[f"{measure}_{key}"] = old.described(old.label, target=target)
    numbers |= gains(whole, MEASURED, words, pairs)
    followed = Readings({k: rows for k, rows in whole.rows.items() if "followed_yaw_r" in rows[0]})
    numbers |= means(followed, FOLLOWING, words) | gains(followed, FOLLOWING, words, pairs)
    values = {name: {key: whole.values(key, name) for key in whole.rows} for name in STATISTICS}
    numbers |= habit_numbers(cases, values, CEILING, words, pairs)
    loud = [
        pearson(loudness(c.audio, c.num_frames)[1:].double().numpy(), c.mouth_open[1:])
        for c in cases
    ]
    numbers["loudness"] = mean_interval(np.array(loud)).described(
        "mouth r: loudness alone, a shortcut"
    )
    return numbers | identity_numbers(readings, words)


def with_unrelated(readings: Readings, truth: Float[np.ndarray, "n f"]) -> Readings:
    """The readings with r of each mouth and the next person's true one."""
    others = np.roll(truth, 1, axis=0)
    return Readings(
        {
            key: [
                {**row, "unrelated": pearson(np.asarray(row["mouth_open"]), other)}
                for row, other in zip(rows, others, strict=True)
            ]
            for key, rows in readings.rows.items()
        }
    )


def identity_numbers(readings: Readings, words: Mapping[str, str]) -> dict[str, Number]:
    """How often a face is nearest to its person's clip in a third scene, of all persons and of two.
    Of a face after another person's reference: how often to its own, and to the given person's.

    Chance is 1 in n for the nearest of all and 1 in 2 for the nearer of two.
    """
    gallery = torch.from_numpy(readings.values(CEILING, "elsewhere"))
    numbers, n = {}, len(gallery)
    asked = [(key, key, gallery, "≥ 0.9") for key in readings.rows if key != SWAPPED]
    if SWAPPED in readings.rows:  # the next person's, as cases.rotated gives them
        given = gallery.roll(-1, 0)
        asked += [(SWAPPED, SWAPPED, gallery, "≤ 0.1"), ("follows", SWAPPED, given, "≥ 0.9")]
    for key, condition, faces, target in asked:
        shown = torch.from_numpy(readings.values(condition, "face"))
        nearest, pairwise = identification(shown, faces)
        whose = "the given person is nearest" if key == "follows" else "the speaker is nearest"
        label = f"{whose}, of {n}: {words[condition]}"
        numbers[f"nearest_{key}"] = rate(int(nearest.sum()), n).described(label, target=target)
        pairs = mean_interval(pairwise.double().numpy())
        numbers[f"nearer_{key}"] = pairs.described(f"{whose}, of two: {words[condition]}")
    return numbers
