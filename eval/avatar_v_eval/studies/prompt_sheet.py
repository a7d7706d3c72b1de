"""A picture of people in the scenes of prompts; it measures nothing.

TEST persons speak from a prompt, a sound and a clip of another scene, without a first frame. A
column each: a frame of the clip, the true video, whose scene the prompt tells, and the generated
one at its start, middle and end.
"""

import argparse
import textwrap

from matplotlib.figure import Figure

from avatar_v_eval.cases import Case, Video, add_case_options, asked_cases, video_of
from avatar_v_eval.generated import generate
from avatar_v_eval.picture_grid import picture_grid
from avatar_v_eval.protocol import Findings
from avatar_v_eval.rollout import Rollout, add_sampling_options

REFERENCE_FRAMES = 101
WIDTH = 30
"""Characters of a line of a prompt."""


def add_options(parser: argparse.ArgumentParser) -> None:
    add_case_options(parser, persons=7, frames=97, first=5800)
    add_sampling_options(parser)


def measure(options: argparse.Namespace) -> Findings:
    rollout = Rollout.load(options.weights, options).from_prompt()
    cases = asked_cases(options, reference_frames=REFERENCE_FRAMES)
    made = [generate(rollout, case, REFERENCE_FRAMES).video for case in cases]
    return Findings("People in the scenes of prompts", {}, figures={"": draw(cases, made)})


def draw(cases: list[Case], made: list[Video]) -> Figure:
    """A column for each case, its prompt below."""
    rows = {
        "reference": [video_of(case.reference)[0] for case in cases],
        "true": [case.video[-1] for case in cases],
        "made, start": [video[0] for video in made],
        "middle": [video[len(video) // 2] for video in made],
        "end": [video[-1] for video in made],
    }
    return picture_grid(
        list(rows.values()),
        row_labels=list(rows),
        below=[textwrap.fill(case.prompt, WIDTH) for case in cases],
    )
