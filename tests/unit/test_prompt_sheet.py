"""The sheet of people in the scenes of prompts: a column a person, with its prompt."""

import numpy as np
import torch

from avatar_v.generate.reference_clip import ReferenceClip
from avatar_v_eval.prompt_sheet import draw
from avatar_v_eval.shown import ShownCase


def case_of(grey: int) -> ShownCase:
    video = torch.full((5, 3, 8, 8), grey, dtype=torch.uint8)
    clip = ReferenceClip(video + 1, torch.ones(5, dtype=torch.bool), None, None)
    return ShownCase(
        person_id=grey, prompt=f"a person before a wall of grey {grey}", audio=torch.zeros(3200),
        video=video, motion=torch.zeros(5, 12), neutral=np.zeros(5), reference=clip,
        shown=(0, 0, 0), elsewhere=video,
    )  # fmt: skip


def test_a_column_shows_reference_truth_and_video_over_time() -> None:
    made = [torch.arange(5, dtype=torch.uint8).repeat_interleave(192).reshape(5, 3, 8, 8)] * 2
    figure = draw([case_of(100), case_of(200)], made)
    assert len(figure.axes) == 5 * 2
    second = [figure.axes[2 * row + 1] for row in range(5)]
    assert [int(ax.images[0].get_array()[0, 0, 0]) for ax in second] == [201, 200, 0, 2, 4]
    assert "grey 200" in second[-1].get_xlabel().replace("\n", " ")
    assert figure.axes[0].get_ylabel() == "reference"
