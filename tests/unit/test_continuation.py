"""training/continuation: prefixes and anchors in training are what generation makes of them."""

import dataclasses

import pytest
import torch

from avatar_v.motion.vectors import pack_motion
from avatar_v.parallel.mesh import step_generator
from avatar_v.training.continuation import (
    CONTEXT_LATENTS,
    Continuation,
    with_anchor,
    with_estimated_prefix,
)
from avatar_v.training.windows import Windows, bernoulli
from avatar_v.weights.presets import build
from avatar_v.weights.random import make_batch, motion_stats
from random_models import encode_clips, randomise, run

STATS = motion_stats()

WINDOWS = Windows(
    start=torch.tensor([0, 3, 5]),
    prefix=torch.tensor([1, 2, 1]),
    suffix=torch.tensor([0, 0, 1]),
    length=6,
)


@pytest.fixture(scope="module")
def parts():
    """A network, three clips with references, their windows' conditions, latents and motion."""
    dit, conditioner = build("tiny", seed=0, motion_stats=STATS)
    randomise(dit)
    batch = make_batch(3, 41, 32, latent_channels=16, has_reference=True)
    clean, cond = encode_clips(conditioner, batch)
    cond = dataclasses.replace(cond, audio=WINDOWS.crop(cond.audio))
    motion = WINDOWS.crop(pack_motion(batch.motion, STATS))
    return dit, cond, WINDOWS.crop(clean).detach(), motion


def estimated(parts, has_motion: bool = True, low: float = 0.3, high: float = 0.95):
    dit, cond, clean, motion = parts
    numbers = Continuation(estimate_share=1.0, min_estimate_t=low, max_estimate_t=high)
    cond = dataclasses.replace(cond, motion=motion if has_motion else None)
    generator, past = step_generator(0, 0, 0), dit.encode_reference(cond.reference)
    return with_estimated_prefix(dit, cond, WINDOWS, clean, numbers, generator, past=past)


@pytest.mark.parametrize("has_motion", [True, False])
def test_only_prefixes_inside_a_clip_are_estimated(parts, has_motion: bool) -> None:
    clean = parts[2]
    video = estimated(parts, has_motion)
    expected = torch.zeros(3, 6, dtype=torch.bool)
    expected[1, :2] = expected[2, :1] = True  # clip 0 starts with a picture that is given
    assert torch.equal((video != clean).flatten(2).any(-1), expected)
    assert not video.requires_grad
    other = estimated(parts, not has_motion)
    assert not torch.equal(video, other), "an estimate follows its motion"


def test_a_share_of_the_windows_keeps_the_truth(parts) -> None:
    dit, cond, clean, _ = parts
    num_estimated, past = 0, dit.encode_reference(cond.reference)
    for i in range(40):
        numbers, generator = Continuation(estimate_share=0.5), step_generator(0, 0, i)
        video = with_estimated_prefix(dit, cond, WINDOWS, clean, numbers, generator, past=past)
        num_estimated += int((video != clean).flatten(1).any(-1)[1:].sum())
    assert 25 < num_estimated < 55  # of 80 that continue a clip


def test_an_estimate_is_the_models_own_clean_prediction(parts) -> None:
    """x̂_0 = x_t - t v of the window's beginning, which is noised alike, prefix and all."""
    dit, cond, _, _ = parts
    seen = {}

    def spy(module, given, named):
        seen.update(x_t=given[0], t=given[1], audio=given[2].audio, motion=given[2].motion)

    hook = dit.register_forward_pre_hook(spy, with_kwargs=True)
    video = estimated(parts)
    hook.remove()
    assert seen["x_t"].shape[1] == CONTEXT_LATENTS
    assert bool((seen["t"] == seen["t"][:, :1]).all())
    assert bool(((seen["t"] >= 0.3) & (seen["t"] <= 0.95)).all())
    assert len(seen["t"].unique()) == 3  # each clip at a level of its own
    with torch.no_grad():
        start = dataclasses.replace(cond, audio=seen["audio"])
        start = dataclasses.replace(start, motion=seen["motion"])
        v = run(dit, seen["x_t"], seen["t"], start)
    t = seen["t"][..., None]
    expected = seen["x_t"] - t[..., None, None] * v
    torch.testing.assert_close(video[1, :2], expected[1, :2])


def test_little_noise_gives_almost_the_truth_and_much_does_not(parts) -> None:
    clean = parts[2]
    near, far = (estimated(parts, low=t, high=t) - clean for t in (1e-5, 0.95))
    assert near.abs().max() < 1e-2
    assert far[1, :2].abs().mean() > 100 * near[1, :2].abs().mean()


def test_an_anchor_stands_behind_the_reference(parts) -> None:
    _, cond, clean, motion = parts
    length = cond.reference.latents.shape[1]
    first = (clean[:, :1], cond.audio[:, :1], motion[:, :1])
    anchored = with_anchor(cond, WINDOWS, *first, STATS).reference
    assert torch.equal(anchored.latents[:, :length], cond.reference.latents)
    assert torch.equal(anchored.latents[:, length:], clean[:, :1])
    assert torch.equal(anchored.motion[:, length:], motion[:, :1])
    assert bool((anchored.segment[:, length] > cond.reference.segment.amax(1)).all())
    assert anchored.valid[:, length].tolist() == [False, True, True]  # clip 0 starts with it


def test_the_anchor_of_a_window_that_starts_its_clip_is_not_seen(parts) -> None:
    dit, cond, clean, motion = parts
    t = torch.full(clean.shape[:2], 0.5)
    shown = []
    for first in (clean[:, :1], -clean[:, :1]):
        anchored = with_anchor(cond, WINDOWS, first, cond.audio[:, :1], motion[:, :1], STATS)
        with torch.no_grad():
            shown.append(run(dit, clean, t, anchored))
    torch.testing.assert_close(shown[0][0], shown[1][0])
    assert bool((shown[0][1:] - shown[1][1:]).abs().amax((1, 2, 3, 4)).gt(1e-5).all())


def test_shares_are_kept_and_nothing_is_drawn_for_none() -> None:
    generator = step_generator(0, 0, 0)
    assert 220 < sum(bernoulli(0.5, generator) for _ in range(500)) < 280
    state = generator.get_state()
    assert not bernoulli(0.0, generator)
    assert torch.equal(generator.get_state(), state)


def test_numbers_that_cannot_be_are_refused() -> None:
    with pytest.raises(ValueError, match="anchor_share is in"):
        Continuation(anchor_share=1.5)
    with pytest.raises(ValueError, match="0 < min <= max"):
        Continuation(min_estimate_t=0.0)
