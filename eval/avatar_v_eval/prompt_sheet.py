"""People in the scenes of prompts, to look at: ``python -m avatar_v_eval.prompt_sheet``.

TEST persons speak from a prompt, a sound and a clip of another scene, without a first frame. A
column each: a frame of the clip, the true video, whose scene the prompt tells, and the generated
one at its start, middle and end. Writes ``eval/results/prompt_sheet.png``; it measures nothing.
"""

import argparse
import textwrap
from pathlib import Path

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from avatar_v_eval import records
from avatar_v_eval.records import as_command
from avatar_v_eval.rollout import Rollout, add_sampling_options
from avatar_v_eval.sampling import REFERENCE_FRAMES
from avatar_v_eval.shown import ShownCase, Video, generate, make_shown_cases

WIDTH = 30
"""Characters of a line of a prompt."""


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--weights", default="small", help="folder, or the name of shipped weights")
    parser.add_argument("--persons", type=int, default=7)
    parser.add_argument("--first", type=int, default=5800, help="number of the first person")
    parser.add_argument("--frames", type=int, default=97, help="of each person, 4k + 1")
    parser.add_argument("--out", type=Path, default=records.RESULTS_DIR, help="of the picture")
    add_sampling_options(parser)
    options = parser.parse_args(arguments)
    rollout = Rollout.load(options.weights, options).from_prompt()
    cases = make_shown_cases(
        "test",
        options.persons,
        first=options.first,
        num_frames=options.frames,
        reference_frames=REFERENCE_FRAMES,
    )
    made = [generate(rollout, case, REFERENCE_FRAMES, "truth").video for case in cases]
    options.out.mkdir(parents=True, exist_ok=True)
    path = options.out / "prompt_sheet.png"
    draw(cases, made).savefig(path, dpi=150)
    print(path)


def draw(cases: list[ShownCase], made: list[Video]) -> Figure:
    """A column for each case, its prompt below."""
    rows = {
        "reference": [case.reference.video[0] for case in cases],
        "true": [case.video[-1] for case in cases],
        "made, start": [video[0] for video in made],
        "middle": [video[len(video) // 2] for video in made],
        "end": [video[-1] for video in made],
    }
    figure = Figure(figsize=(1.5 * len(cases) + 0.6, 1.5 * len(rows) + 0.9), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(len(rows), len(cases), squeeze=False)
    for line, (label, frames) in zip(axes, rows.items(), strict=True):
        for ax, frame in zip(line, frames, strict=True):
            ax.imshow(frame.movedim(0, -1).numpy())
            ax.set_xticks([])
            ax.set_yticks([])
            ax.spines[:].set_visible(False)
        line[0].set_ylabel(label, fontsize=8)
    for ax, case in zip(axes[-1], cases, strict=True):
        ax.set_xlabel(textwrap.fill(case.prompt, WIDTH), fontsize=5)
    return figure


if __name__ == "__main__":
    as_command(main)
