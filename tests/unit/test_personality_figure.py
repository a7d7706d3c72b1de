"""The figure of the study `personality` says what its lines are."""

import pytest

from avatar_v_eval.records import Number
from avatar_v_eval.studies.personality_figure import PANELS, draw

WORDS = {
    "video": "16 s of reference video",
    "image": "one reference frame",
    "ceiling": "it through the VAE",
    "baseline": "16 s without close-ups",
}


def numbers_of(conditions: list[str]) -> dict[str, Number]:
    return {
        f"{measure}_{name}": Number(0.1 * i, 64, 0.0, 0.5).described(f"{title}: {WORDS[name]}")
        for measure, title in PANELS.items()
        for i, name in enumerate(conditions)
    }


def test_lines_and_legend_are_those_of_the_numbers() -> None:
    figure = draw(numbers_of(["image", "video", "ceiling", "baseline"]))
    assert len(figure.axes) == len(PANELS)
    assert [tick.get_text() for tick in figure.axes[0].get_xticklabels()] == ["1 frame", "16 s"]
    legend = {text.get_text() for text in figure.legends[0].get_texts()}
    assert legend == {"generated", "true video through the VAE", "16 s without close-ups"}
    assert figure.axes[0].lines[0].get_ydata().tolist() == pytest.approx([0.0, 0.1])


def test_numbers_without_a_baseline_have_no_line_for_it() -> None:
    figure = draw(numbers_of(["image", "video", "ceiling"]))
    assert len(figure.legends[0].get_texts()) == 2


def test_numbers_of_something_else_are_refused() -> None:
    with pytest.raises(ValueError, match="none of the conditions"):
        draw(numbers_of(["ceiling"]))
