"""The figure of the study `personality`: each measure by the length of the reference, with 95 %
intervals, between that of the true video through the VAE and that of other weights."""

from collections.abc import Mapping

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from avatar_v_eval.plots import BLUE, GREY, RED, panels
from avatar_v_eval.records import Number
from avatar_v_eval.reference_lengths import BASELINE, LENGTHS

PANELS = {
    "mouth_amplitude": "mouth amplitude, r over persons",
    "sway_yaw": "sway, r over persons",
    "blink_rate_hz": "blink rate, r over persons",
    "identity": "face similarity in a third scene",
}
TICKS = {"none": "none", "image": "1 frame", "one_s": "1 s", "four_s": "4 s", "video": "16 s",
         "minute": "1 min"}  # fmt: skip


def draw(numbers: Mapping[str, Number]) -> Figure:
    """A panel for each measure. ValueError where the numbers hold no length of a reference."""
    names = [name for name in reversed(LENGTHS) if f"identity_{name}" in numbers]
    if not names:
        raise ValueError(f"the numbers hold none of the conditions {', '.join(LENGTHS)}")
    figure, axes = panels(len(PANELS), width=11, height=3.2)
    for ax, (measure, title) in zip(axes, PANELS.items(), strict=True):
        _panel(ax, numbers, measure, names)
        ax.set_title(title, fontsize=9)
        if title.endswith("over persons"):
            ax.set_ylim(-0.5, 1)
    figure.supxlabel("the part of the reference video that the model reads", fontsize=9)
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=3, fontsize=8, frameon=False)
    return figure


def _panel(ax: Axes, numbers: Mapping[str, Number], measure: str, names: list[str]) -> None:
    shown = [numbers[f"{measure}_{name}"] for name in names]
    values = [number.value for number in shown]
    below = [number.value - _or(number.low, number.value) for number in shown]
    above = [_or(number.high, number.value) - number.value for number in shown]
    places = range(len(names))
    ax.errorbar(
        places, values, [below, above], color=BLUE, marker="o", capsize=3, label="generated"
    )
    for key, colour, style in (("ceiling", GREY, "--"), (BASELINE, RED, ":")):
        if number := numbers.get(f"{measure}_{key}"):
            words = number.label.partition(": ")[2].replace("it through", "true video through")
            ax.axhline(number.value, color=colour, linestyle=style, linewidth=1, label=words)
    ax.set_xticks(list(places), [TICKS[name] for name in names], fontsize=8)


def _or(value: float | None, otherwise: float) -> float:
    return otherwise if value is None else value
