"""The motion statistics that the motion meter reads, against the truth.

In which components of motion the meter, reading 16 s of VALIDATION persons, tells people apart as
the truth does: METER_HABITS of motion/extractors.py names these components.
"""

import argparse

import torch
from jaxtyping import Float
from torch import Tensor

from avatar_v.base.options import at_once
from avatar_v.critics.motion import MotionMeter
from avatar_v.motion.extractors import METER_HABITS, from_meter
from avatar_v.motion.stats import MotionStats
from avatar_v.motion.style import motion_moments, style_statistics
from avatar_v.motion.vectors import pack_motion
from avatar_v.types import MOTION_NAMES
from avatar_v.weights.weights import find_stats
from avatar_v_eval.cases import drawn_clips, video_of
from avatar_v_eval.intervals import correlation
from avatar_v_eval.processes import mapped
from avatar_v_eval.protocol import Findings
from avatar_v_eval.records import Number

NUM_FRAMES = 401
FLOOR = 0.05
"""The least deviation over people of a statistic that is compared."""
STATISTICS = ("mean", "spread", "change", "calm spread")


def add_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--weights", default="small", help="weights whose motion statistics normalise motion")
    add("--persons", type=int, default=64, help="VALIDATION persons")
    add("--first", type=int, default=0, help="number of the first of them")
    add("--workers", type=at_once, default=2, help="processes of one thread each")


def measure(options: argparse.Namespace) -> Findings:
    stats, first = find_stats(options.weights), options.first
    pairs = mapped(lambda i: _motions(first + i), options.persons, "readings", options.workers)
    true, read = (_styles(torch.stack(side), stats) for side in zip(*pairs, strict=True))
    return Findings(
        "The motion statistics that the meter reads",
        numbers_of(true, read, stats),
        weights={"motion": MotionMeter.from_pretrained().hash()},
        notes=[
            f"{options.persons} VALIDATION persons from number {first} on, {NUM_FRAMES} frames",
            "r: over persons, a statistic of the meter's reading against that of the truth, "
            "Fisher's interval",
        ],
    )


def numbers_of(
    true: Float[Tensor, "n s"], read: Float[Tensor, "n s"], stats: MotionStats
) -> dict[str, Number]:
    """The correlation of each statistic of each component in which people differ."""
    found = {}
    for kind, word in enumerate(STATISTICS):
        for i, name in enumerate(MOTION_NAMES):
            at = kind * len(MOTION_NAMES) + i
            if stats.style_deviation[at] <= FLOOR or float(true[:, at].std()) == 0:
                continue
            r = correlation(read[:, at].double().numpy(), true[:, at].double().numpy())
            told = "told" if name in METER_HABITS else "left out"
            label = f"{name}, {word}, the meter against the truth, r ({told})"
            found[f"{word.replace(' ', '_')}_{name}"] = r.described(label)
    return found


def _motions(index: int) -> tuple[Float[Tensor, "f m"], Float[Tensor, "f m"]]:
    """The true motion of a VALIDATION person's clip and the meter's reading of it."""
    (clip,) = drawn_clips("validation", 1, first=index, num_frames=NUM_FRAMES)
    return clip.motion, from_meter(video_of(clip), None)


def _styles(motion: Float[Tensor, "n f m"], stats: MotionStats) -> Float[Tensor, "n s"]:
    packed = pack_motion(motion, stats)
    valid = torch.ones(packed.shape[:2], dtype=torch.bool)
    return style_statistics(motion_moments(packed, valid, stats))
