"""The picture of a personality result says what its lines are."""

import dataclasses

import pytest

from avatar_v_eval import records
from avatar_v_eval.personality_plot import PANELS, draw, joined
from avatar_v_eval.records import Number, Result

WORDS = {
    "video": "16 s of reference video",
    "image": "one reference frame",
    "ceiling": "it through the VAE",
    "baseline": "16 s without close-ups",
}


def result_of(conditions: list[str]) -> Result:
    numbers = {
        f"{measure}_{name}": Number(0.1 * i, 64, 0.0, 0.5).described(f"{title}: {WORDS[name]}")
        for measure, title in PANELS.items()
        for i, name in enumerate(conditions)
    }
    return records.make_result("personality_test", "test", numbers)


def test_lines_and_legend_are_those_of_the_result() -> None:
    figure = draw(result_of(["image", "video", "ceiling", "baseline"]))
    assert len(figure.axes) == len(PANELS)
    assert [tick.get_text() for tick in figure.axes[0].get_xticklabels()] == ["1 frame", "16 s"]
    legend = {text.get_text() for text in figure.legends[0].get_texts()}
    assert legend == {"generated", "true video through the VAE", "16 s without close-ups"}
    assert figure.axes[0].lines[0].get_ydata().tolist() == pytest.approx([0.0, 0.1])


def test_a_result_without_a_baseline_has_no_line_for_it() -> None:
    figure = draw(result_of(["image", "video", "ceiling"]))
    assert len(figure.legends[0].get_texts()) == 2


def test_results_of_the_same_people_are_drawn_together() -> None:
    one, other = result_of(["image", "ceiling"]), result_of(["video"])
    figure = draw(joined([one, other]))
    assert [tick.get_text() for tick in figure.axes[0].get_xticklabels()] == ["1 frame", "16 s"]
    with_baseline = dataclasses.replace(other, weights={"baseline dit": "1"})
    assert joined([one, with_baseline]).numbers.keys() == one.numbers.keys() | other.numbers.keys()
    for change in ({"weights": {"dit": "1"}}, {"notes": ("64 TEST persons", "24 steps")}):
        with pytest.raises(ValueError, match="other weights, people or sampling"):
            joined([one, dataclasses.replace(other, **change)])


def test_a_result_of_something_else_is_refused() -> None:
    with pytest.raises(ValueError, match="personality_test holds none of the conditions"):
        draw(result_of(["ceiling"]))
