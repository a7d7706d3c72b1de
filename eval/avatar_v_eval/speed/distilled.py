"""Guided steps and a student of few steps, in turns: seconds for the same video.

The first system is what the others are compared with. A system is NAME=WEIGHTS?FIELD=VALUE&…, as
in the study `distill`. Sampling is everything up to the latents: sound, reference, motion and video
steps. What is left of making the frames is the decoder, which distillation does not change.
"""

import argparse
from collections.abc import Callable

from avatar_v.base import checks
from avatar_v.types import FRAME_RATE_HZ, num_latents
from avatar_v_eval.cases import first_case
from avatar_v_eval.generated import inputs_of
from avatar_v_eval.intervals import median_of_repeats
from avatar_v_eval.protocol import Findings
from avatar_v_eval.records import Number
from avatar_v_eval.rollout import Rollout, add_sampling_options
from avatar_v_eval.systems import named, system_of
from avatar_v_eval.turns import in_turns, ratio, turns_note

SYSTEMS = (
    "guided_24=small?num_steps=24&guidance_text=2&guidance_audio=2&guidance_reference=2",
    "undistilled_4=small?num_steps=4",
    "undistilled_2=small?num_steps=2",
    "student=small_student",
)
MAX_FRAMES = 100_001
REFERENCE_FRAMES = 201
"""Of the reference clip: 8 s."""
PARTS = {"made": "frames", "sampled": "latents"}


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(name="speed_distilled")
    add_sampling_options(parser)
    add = parser.add_argument
    add("--systems", nargs="+", default=list(SYSTEMS), metavar="NAME=WEIGHTS[?FIELD=VALUE&…]")
    add("--frames", type=int, default=93, help="of the video (two chunks)")
    add("--repeats", type=int, default=5)


def measure(options: argparse.Namespace) -> Findings:
    checks.count("--frames", options.frames, least=5, most=MAX_FRAMES)
    num_latents(options.frames)
    checks.count("--repeats", options.repeats, most=1000)
    systems = {name: system_of(text, options) for name, text in named(options.systems)}
    if len(systems) < 2:
        raise ValueError("--systems names at least two, the slow one first")
    ways = {
        f"{name}_{part}": way
        for name, rollout in systems.items()
        for part, way in _ways(rollout, options.frames).items()
    }
    times = in_turns(ways, options.repeats)
    slow = next(iter(systems))
    numbers: dict[str, Number] = {}
    length_s = options.frames / FRAME_RATE_HZ
    for part, what in PARTS.items():
        for name in systems:
            each = [t / length_s for t in times[f"{name}_{part}"]]
            numbers[f"{part}_{name}"] = median_of_repeats(each).described(
                f"one second of {what}: {name}", unit="s"
            )
        for name in list(systems)[1:]:
            way, other = f"{slow}_{part}", f"{name}_{part}"
            numbers[f"{part}_{slow}_over_{name}"] = ratio(times, way, other).described(
                f"time to {what}: {slow} / {name}"
            )
    return Findings(
        "Speed of few steps",
        numbers,
        recipe=", ".join(sorted({rollout.recipe for rollout in systems.values()})),
        weights={f"dit of {name}": r.hashes()["dit"] for name, r in systems.items()},
        notes=[
            turns_note(options.repeats),
            f"a video of {options.frames} frames from files already read, {REFERENCE_FRAMES} frames"
            " of reference; latents: everything but the decoder",
            *(f"{name}: {rollout.described()}" for name, rollout in systems.items()),
        ],
    )


def _ways(rollout: Rollout, num_frames: int) -> dict[str, Callable[[], object]]:
    """Makes the frames of one TEST person, or the latents alone; files are read before."""
    case = first_case(num_frames=num_frames, reference_frames=REFERENCE_FRAMES, size=rollout.size)
    inputs = inputs_of(rollout, case, REFERENCE_FRAMES, "meter")
    request = rollout.request_for(case.person_id, case.prompt)
    pipeline = rollout.pipeline
    return {
        "made": lambda: list(pipeline.stream(inputs, request)),
        "sampled": lambda: list(pipeline.latents(inputs, request)),
    }
