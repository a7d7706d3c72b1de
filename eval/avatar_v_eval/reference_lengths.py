"""Conditions of the studies that vary the length of the reference: their lengths, words and
options, and the bounds that chance sets to what a length can tell."""

import argparse
from collections.abc import Iterable

from avatar_v.types import FRAME_RATE_HZ
from avatar_v_eval.cases import add_case_options
from avatar_v_eval.motion_statistics import STATISTICS, best_blink_r, random_blink_error
from avatar_v_eval.records import Number
from avatar_v_eval.rollout import add_sampling_options

LENGTHS = {"minute": 1501, "video": 401, "four_s": 101, "one_s": 25, "image": 1, "none": 0}
"""Frames of the reference that each condition is given; a card may read a few of them."""
CONDITIONS = ("video", "four_s", "one_s", "image", "none")
"""The conditions that are generated unless others are asked for."""
WORDS = {
    "minute": "1 min of reference video",
    "video": "16 s of reference video",
    "four_s": "4 s of reference video",
    "one_s": "1 s of reference video",
    "image": "one reference frame",
    "none": "no reference",
}
BASELINE = "baseline"


def add_reference_options(parser: argparse.ArgumentParser, *, frames: int) -> None:
    """Options of cases, sampling, conditions and other weights."""
    add_case_options(parser, persons=64, frames=frames)
    add_sampling_options(parser)
    add = parser.add_argument
    add("--conditions", nargs="+", default=list(CONDITIONS), choices=list(LENGTHS))
    add("--baseline", metavar="DIR", help="other weights, with the longest of the references")
    add("--baseline-words", default="other weights", help="the other weights in words")


def longest(conditions: Iterable[str]) -> str:
    """The condition with the longest reference."""
    return max(conditions, key=lambda name: LENGTHS[name])


def blink_bounds(
    conditions: Iterable[str], words: dict[str, str], num_frames: int, n: int
) -> dict[str, Number]:
    """The best correlation and the error at random of blink rates after each of these references
    (best_blink_r, random_blink_error)."""
    word, generated_s = STATISTICS["blink_rate_hz"], num_frames / FRAME_RATE_HZ
    numbers = {}
    for name in conditions:
        reference_s = LENGTHS[name] / FRAME_RATE_HZ
        numbers[f"blink_rate_hz_{name}_at_best"] = Number(
            best_blink_r(reference_s, generated_s),
            n,
            label=f"{word}, r over persons: at best, {words[name]}",
        )
        numbers[f"blink_rate_hz_{name}_error_at_random"] = Number(
            random_blink_error(reference_s, generated_s),
            n,
            label=f"{word}, error of blinks at random at the best guess: {words[name]}",
        )
    return numbers
