"""How much of a person a reference carries: ``python -m avatar_v_eval.personality_plot``.

One panel per measure of ``results/personality_NAME.json``: its value by how much of the reference
the model reads, with 95 % intervals, between what the true video through the VAE reaches and what
other weights reach. Of several results of the same people and weights (``--name default lengths
minute``) all conditions are drawn, under the first one's name. It measures nothing.
"""

import argparse
import dataclasses
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from avatar_v_eval.personality import BASELINE, LENGTHS
from avatar_v_eval.records import RESULTS_DIR, Result, as_command, read_result

PANELS = {
    "mouth_amplitude": "mouth amplitude, r over persons",
    "sway_yaw": "sway, r over persons",
    "blink_rate_hz": "blink rate, r over persons",
    "identity": "face similarity in a third scene",
}
TICKS = {"none": "none", "image": "1 frame", "one_s": "1 s", "four_s": "4 s", "video": "16 s",
         "minute": "1 min"}  # fmt: skip
OURS, CEILING, OTHER = "#1b6ca8", "#7a7a7a", "#c8553d"


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--name", nargs="+", default=["sft"], help="of the results: personality_NAME.json"
    )
    parser.add_argument("--folder", type=Path, default=RESULTS_DIR, help="of results and picture")
    options = parser.parse_args(arguments)
    paths = [options.folder / f"personality_{name}.json" for name in options.name]
    figure = draw(joined([read_result(path) for path in paths]))
    picture = paths[0].with_suffix(".png")
    figure.savefig(picture, dpi=150)
    print(picture)


def joined(results: list[Result]) -> Result:
    """The first result with the numbers of all. ValueError for other people, weights or ways of
    sampling."""
    first, *others = results
    for other in others:
        if _made_from(other) != _made_from(first):
            raise ValueError(
                f"{other.name} is of other weights, people or sampling than {first.name}"
            )
    numbers = {
        key: number for result in reversed(results) for key, number in result.numbers.items()
    }
    return dataclasses.replace(first, numbers=numbers)


def _made_from(result: Result) -> tuple[dict[str, str], list[str]]:
    weights = {k: v for k, v in result.weights.items() if not k.startswith(BASELINE)}
    return weights, [note.partition(f"; {BASELINE}")[0] for note in result.notes]


def draw(result: Result) -> Figure:
    """A panel for each measure. ValueError where the result holds no length of a reference."""
    names = [name for name in reversed(LENGTHS) if f"identity_{name}" in result.numbers]
    if not names:
        raise ValueError(f"{result.name} holds none of the conditions {', '.join(LENGTHS)}")
    figure = Figure(figsize=(11, 3.2), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(1, len(PANELS))
    for ax, (measure, title) in zip(axes, PANELS.items(), strict=True):
        _panel(ax, result, measure, names)
        ax.set_title(title, fontsize=9)
        if title.endswith("over persons"):
            ax.set_ylim(-0.5, 1)
    figure.supxlabel("what the model reads of the reference video", fontsize=9)
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=3, fontsize=8, frameon=False)
    return figure


def _panel(ax: Axes, result: Result, measure: str, names: list[str]) -> None:
    numbers = [result.numbers[f"{measure}_{name}"] for name in names]
    values = [number.value for number in numbers]
    below = [number.value - _or(number.low, number.value) for number in numbers]
    above = [_or(number.high, number.value) - number.value for number in numbers]
    places = range(len(names))
    ax.errorbar(
        places, values, [below, above], color=OURS, marker="o", capsize=3, label="generated"
    )
    for key, colour, style in (("ceiling", CEILING, "--"), (BASELINE, OTHER, ":")):
        if number := result.numbers.get(f"{measure}_{key}"):
            words = number.label.partition(": ")[2].replace("it through", "true video through")
            ax.axhline(number.value, color=colour, linestyle=style, linewidth=1, label=words)
    ax.set_xticks(list(places), [TICKS[name] for name in names], fontsize=8)
    ax.tick_params(axis="y", labelsize=8)
    ax.spines[["top", "right"]].set_visible(False)


def _or(value: float | None, otherwise: float) -> float:
    return otherwise if value is None else value


if __name__ == "__main__":
    as_command(main)
