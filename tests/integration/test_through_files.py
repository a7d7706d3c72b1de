"""The study of likeness through files: what `generate` reads and writes, from the cases of it."""

import argparse
from collections.abc import Iterator

import pytest
import torch

from avatar_v.generate.pipeline import AvatarPipeline
from avatar_v.inputs.inputs import Inputs
from avatar_v.request.request import Request
from avatar_v_eval.cases import Case, make_cases, rendered_video
from avatar_v_eval.generated import generate_from_files
from avatar_v_eval.rollout import Rollout, add_sampling_options
from eval_cases import measured


@pytest.fixture(scope="module")
def case() -> Case:
    (case,) = make_cases("validation", 1, first=30, num_frames=5, reference_frames=29)
    return case


@pytest.fixture(scope="module")
def rollout() -> Rollout:
    parser = argparse.ArgumentParser()
    add_sampling_options(parser)
    return Rollout.load("small", parser.parse_args(["--steps", "1"]))


@pytest.mark.parametrize(
    ("from_prompt", "num_frames", "shown"), [(True, 1, 1), (True, 25, 25), (False, 25, 25)]
)
def test_a_case_is_asked_for_and_comes_back_as_files(
    case: Case,
    rollout: Rollout,
    monkeypatch: pytest.MonkeyPatch,
    from_prompt: bool,
    num_frames: int,
    shown: int,
) -> None:
    asked: list[tuple[Inputs, Request]] = []

    def stream(self: AvatarPipeline, inputs: Inputs, request: Request) -> Iterator[torch.Tensor]:
        asked.append((inputs, request))
        yield case.video

    monkeypatch.setattr(AvatarPipeline, "stream", stream)
    rollout = rollout.from_prompt() if from_prompt else rollout
    made = generate_from_files(rollout, case, num_frames)
    (inputs, request), *_ = asked
    assert (request.person.from_prompt, request.person.prompt) == (from_prompt, case.prompt)
    assert (inputs.num_frames, inputs.clips[0].num_frames) == (5, shown)
    # The reference went through lossy files, and the first frame, a PNG, did not.
    frames = rendered_video(case.reference).float()
    off = (frames - inputs.clips[0].video[:1].float()).abs().mean((1, 2, 3)).min()
    assert 0 < float(off) < 6
    assert torch.equal(inputs.image, case.video[0]) is not from_prompt
    assert 0 < float((made.video.float() - case.video.float()).abs().mean()) < 6


def test_what_files_cannot_show_is_refused_at_once() -> None:
    words = ["--references", "video", "none", "--starts", "prompt"]
    with pytest.raises(ValueError, match="--through-files takes a reference in every condition"):
        measured("study", "systems", "--through-files", *words)
