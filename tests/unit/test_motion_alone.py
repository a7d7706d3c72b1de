"""stages/motion_alone: windows of motion, what they are shown, and when they are."""

import dataclasses

import pytest
import torch

from avatar_v.models.conditioner import Conditioner
from avatar_v.models.motion import AVERAGE_STYLE, MOTION_DIM, motion_moments, pack_motion
from avatar_v.models.presets import build
from avatar_v.stages.motion_alone import MotionWindows, draw_motion_windows
from avatar_v.stages.settings import Objective
from avatar_v.testing import make_batch
from avatar_v.types import MOTION_NAMES, Batch

NUM, CLIPS, LENGTH = 50, 4, 3
OBJECTIVE = Objective({0: LENGTH}, first_share=0.4, image_share=0.5, shift=3.0)


@pytest.fixture(scope="module")
def conditioner() -> Conditioner:
    return build("tiny", seed=0)[1]


@pytest.fixture(scope="module")
def batch() -> Batch:
    batch = make_batch(CLIPS, 25, 32, latent_channels=16, has_reference=True)
    valid = batch.valid.clone()
    valid[0, 6] = False  # of latent 2
    return dataclasses.replace(batch, valid=valid)


def drawn(conditioner: Conditioner, batch: Batch, *, most: int = 100) -> MotionWindows:
    _, cond = conditioner.encode(batch)
    keep = torch.tensor([True, False, True, True])
    cond = dataclasses.replace(cond, audio_keep=keep, reference_keep=~keep)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        return draw_motion_windows(
            NUM, batch, cond, conditioner, OBJECTIVE,
            length=LENGTH, max_reference_latents=most, generator=generator,
        )  # fmt: skip


def test_windows_are_cut_from_their_clips_with_the_sound_there(conditioner, batch) -> None:
    got = drawn(conditioner, batch)
    packed, audio = pack_motion(batch.motion), conditioner.encode_audio(batch.audio)
    assert got.motion.shape == (NUM * CLIPS, LENGTH, MOTION_DIM)
    starts = []
    for i, motion in enumerate(got.motion):
        runs = packed[i // NUM].unfold(0, LENGTH, 1).transpose(1, 2)  # every window of its clip
        (start,) = (k for k, run in enumerate(runs) if torch.equal(run, motion))
        starts.append(start)
        assert torch.equal(got.cond.audio[i], audio[i // NUM, start : start + LENGTH])
        hidden = got.t[i] > 0
        seen = [not (i < NUM and start + k == 2) for k in range(LENGTH)]  # the face is
        assert torch.equal(got.scored[i], hidden & torch.tensor(seen))
    assert set(starts) == set(range(len(runs)))
    assert torch.equal(
        got.cond.audio_keep, torch.tensor([True, False, True, True]).repeat_interleave(NUM)
    )
    assert torch.equal(got.cond.reference_keep, ~got.cond.audio_keep)
    assert torch.equal(got.cond.text[NUM], conditioner.encode_text(batch.text)[1])


def test_times_are_those_of_the_samplers_steps(conditioner, batch) -> None:
    t = drawn(conditioner, batch).t
    late = t.amax(1)
    assert ((t == late[:, None]) | (t == 0)).all(), "one time a window, 0 where it is given"
    assert 0 < late.min() < late.max() < 1
    # shift_time(1/2, 3) = 0.75: half of the steps lie above; five standard errors of 200 are 0.18
    assert (late > 0.75).float().mean().item() == pytest.approx(0.5, abs=0.18)


def test_habits_are_of_a_run_of_the_reference(conditioner, batch) -> None:
    packed = pack_motion(batch.reference.motion)
    whole = packed.shape[1]
    got = drawn(conditioner, batch)
    lengths = got.moments[:, 0] / 4
    assert set(lengths.tolist()) == set(range(1, whole + 1))
    for i, moments in enumerate(got.moments):
        length = int(lengths[i])
        runs = [packed[i // NUM, k : k + length] for k in range(whole - length + 1)]
        found = [motion_moments(run[None], torch.ones(1, length, dtype=torch.bool)) for run in runs]
        # fp32; sums over zeros besides
        assert any(torch.allclose(moments, other[0], atol=1e-4, rtol=1e-4) for other in found)
    assert drawn(conditioner, batch, most=2).moments[:, 0].max() == 8


def test_habits_of_components_that_were_not_read_are_an_average_person_s(
    conditioner, batch
) -> None:
    known = torch.ones(CLIPS, len(MOTION_NAMES), dtype=torch.bool)
    known[1] = False
    partly = dataclasses.replace(batch.reference, habits_known=known)
    got = drawn(conditioner, dataclasses.replace(batch, reference=partly)).moments
    whole = drawn(conditioner, batch).moments
    hidden = torch.arange(len(got)) // NUM == 1
    assert torch.equal(got[~hidden], whole[~hidden])
    means = got[hidden][:, 1 : 1 + len(MOTION_NAMES)] / got[hidden][:, :1]
    average = AVERAGE_STYLE[: len(MOTION_NAMES)].expand_as(means)
    torch.testing.assert_close(means, average, atol=1e-5, rtol=1e-5)
