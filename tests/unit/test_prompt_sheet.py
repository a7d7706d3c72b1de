"""The sheet of people in the scenes of prompts: a column a person, with its prompt."""

import torch

from avatar_v_eval.cases import Case
from avatar_v_eval.studies.prompt_sheet import draw
from eval_cases import case_of


def grey_case(grey: int) -> Case:
    video = torch.full((5, 3, 8, 8), grey, dtype=torch.uint8)
    prompt = f"a person before a wall of grey {grey}"
    return case_of(grey, video, reference=video + 1, prompt=prompt)


def test_a_column_shows_reference_truth_and_video_over_time() -> None:
    made = [torch.arange(5, dtype=torch.uint8).repeat_interleave(192).reshape(5, 3, 8, 8)] * 2
    figure = draw([grey_case(100), grey_case(200)], made)
    assert len(figure.axes) == 5 * 2
    second = [figure.axes[2 * row + 1] for row in range(5)]
    assert [int(ax.images[0].get_array()[0, 0, 0]) for ax in second] == [201, 200, 0, 2, 4]
    assert "grey 200" in second[-1].get_xlabel().replace("\n", " ")
    assert figure.axes[0].get_ylabel() == "reference"
