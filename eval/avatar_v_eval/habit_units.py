"""What the network's units of habits rest on: ``python -m avatar_v_eval.habit_units``.

How far people differ in each number of `style_statistics`, and what the average person's are, over
TRAIN persons, beside the constants of models/motion.py; and in which components the motion meter,
reading 16 s of VALIDATION persons, tells them apart as the truth does: what METER_HABITS of
critics/extractors.py names, and what it leaves out. Writes ``eval/results/habit_units.json``;
``--print`` also shows the constants as they would be written from these persons.
"""

import argparse
from functools import partial

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from avatar_v.critics.extractors import METER_HABITS, from_meter
from avatar_v.critics.motion import MotionMeter
from avatar_v.models.motion import (
    AVERAGE_STYLE,
    STYLE_SCALE,
    motion_moments,
    pack_motion,
    style_shrinking,
    style_statistics,
)
from avatar_v.types import MOTION_NAMES
from avatar_v.world.clip import make_clip
from avatar_v.world.splits import Split, persons, scenes, sentences
from avatar_v_eval import records
from avatar_v_eval.records import Number, as_command, correlation
from avatar_v_eval.workers import mapped

NUM_FRAMES = 401
FLOOR = 0.05
"""The least unit: numbers in which people hardly differ are not blown up."""
STATISTICS = ("mean", "spread", "change", "calm spread")


def main(arguments: list[str] | None = None) -> None:
    options = _options(arguments)
    people = mapped(partial(_moved, "train"), 2 * options.persons, "people", options.workers)
    motion = torch.stack([torch.from_numpy(one) for one in people])
    styles = _styles(motion)
    # the mean and the deviation over persons and their two clips
    average = (styles / style_shrinking(NUM_FRAMES + 3)).mean(0)
    spreads = styles.std(0).clamp_min(FLOOR)
    first = options.first
    pairs = mapped(lambda i: _read(first + i), options.read, "readings", options.workers)
    true, read = (_styles(torch.stack(side)) for side in zip(*pairs, strict=True))
    result = records.make_result(
        "habit_units",
        "How far people differ, and what the meter tells of it",
        {**_units(average, spreads, options.persons), **_told(true, read)},
        weights={"motion": MotionMeter.from_pretrained().hash()},
        notes=[
            f"{options.persons} TRAIN persons, two clips of {NUM_FRAMES} frames each; the meter: "
            f"{options.read} VALIDATION persons from number {first} on, {NUM_FRAMES} frames each",
            "r: over persons, a statistic of the meter's reading against that of the truth, "
            "Fisher's interval",
        ],
    )
    print(records.write_result(result, options.out))
    for number in result.numbers.values():
        print(f"{number.label:72s} {number.value:8.3f}  [{number.low}, {number.high}]")
    if options.print:
        for i, name in enumerate(MOTION_NAMES):
            rows = (x.unflatten(0, (4, -1))[:, i].tolist() for x in (spreads, average))
            print(name, *(tuple(round(x, 3) for x in row) for row in rows))


def _moved(split: Split, index: int) -> Float[np.ndarray, "f m"]:
    """The motion of clip ``index``, two of each person."""
    ids = (
        persons(split, 1, index // 2)[0],
        scenes(split, 1, index)[0],
        sentences(split, 1, index)[0],
    )
    return make_clip(*ids, num_frames=NUM_FRAMES, size=64, render_video=False).motion.numpy()


def _read(index: int) -> tuple[Float[Tensor, "f m"], Float[Tensor, "f m"]]:
    """The true motion of a VALIDATION person's clip and the meter's reading of it."""
    split: Split = "validation"
    ids = (persons(split, 1, index)[0], scenes(split, 1, index)[0], sentences(split, 1, index)[0])
    clip = make_clip(*ids, num_frames=NUM_FRAMES, size=64)
    assert clip.video is not None
    return clip.motion, from_meter(clip.video, None)


def _styles(motion: Float[Tensor, "n f m"]) -> Float[Tensor, "n s"]:
    packed = pack_motion(motion)
    seen = torch.ones(packed.shape[:2], dtype=torch.bool)
    return style_statistics(motion_moments(packed, seen))


def _units(average: Tensor, spreads: Tensor, num: int) -> dict[str, Number]:
    """How far the constants are from what these persons say."""
    ratio = (spreads / STYLE_SCALE)[STYLE_SCALE > FLOOR]
    off = (average - AVERAGE_STYLE).abs() / STYLE_SCALE
    words = "people's spread over the unit"
    return {
        "unit_lowest": Number(float(ratio.min()), num).described(f"{words}, lowest"),
        "unit_median": Number(float(ratio.median()), num).described(f"{words}, median"),
        "unit_highest": Number(float(ratio.max()), num).described(f"{words}, highest"),
        "average_off": Number(float(off.max()), num).described(
            "the average person against the constants, largest difference in units"
        ),
        "raw_range": Number(float(spreads.max() / spreads.min()), num).described(
            "largest spread of a statistic over the smallest, without units"
        ),
    }


def _told(true: Float[Tensor, "n s"], read: Float[Tensor, "n s"]) -> dict[str, Number]:
    """Of each statistic of each component that a network reads more of than its floor."""
    found = {}
    for kind, word in enumerate(STATISTICS):
        for i, name in enumerate(MOTION_NAMES):
            at = kind * len(MOTION_NAMES) + i
            if STYLE_SCALE[at] <= FLOOR or float(true[:, at].std()) == 0:
                continue
            r = correlation(read[:, at].double().numpy(), true[:, at].double().numpy())
            told = "told" if name in METER_HABITS else "left out"
            label = f"{name}, {word}, the meter against the truth, r ({told})"
            found[f"{word.replace(' ', '_')}_{name}"] = r.described(label)
    return found


def _options(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--persons", type=int, default=320, help="TRAIN persons, two clips each")
    parser.add_argument("--read", type=int, default=64, help="VALIDATION persons the meter reads")
    parser.add_argument("--first", type=int, default=0, help="number of the first of them")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--print", action="store_true", help="show the constants as well")
    parser.add_argument("--out", default=records.RESULTS_DIR, help="folder of the result")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    as_command(main)
