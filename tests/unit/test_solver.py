"""Prefix frames, determinism and edges of the sampler; weights, passes and edges of guidance."""

import dataclasses
from itertools import pairwise

import pytest
import torch
from torch import Tensor, nn

from avatar_v.flow import schedule
from avatar_v.models.dit import AvatarDiT
from avatar_v.sampling.guidance import guided, streams
from avatar_v.sampling.solver import normal, overshoot, sample, trajectory
from avatar_v.types import Cond
from avatar_v.weights.random import make_cond, make_dit, make_reference, run

SHAPE = (2, 5, 3, 2, 2)
TIMES = schedule(4, shift=2.0)


def towards_zero(x: Tensor, t: Tensor) -> Tensor:
    return x / t[..., None, None, None].clamp(min=1e-6)


def test_prefix_is_held_clean_at_time_zero_in_every_step() -> None:
    prefix, seen = torch.full((2, 2, 3, 2, 2), 3.0), []

    def velocity(x: Tensor, t: Tensor) -> Tensor:
        seen.append((x[:, :2].clone(), t.clone()))
        return towards_zero(x, t)

    out = sample(velocity, torch.randn(SHAPE), TIMES, prefix=prefix)
    assert torch.equal(out[:, :2], prefix)
    assert len(seen) == 4
    for (frames, t), expected in zip(seen, TIMES[:-1], strict=True):
        assert torch.equal(frames, prefix)
        assert torch.equal(t[:, :2], torch.zeros(2, 2))
        assert torch.equal(t[:, 2:], expected.expand(2, 3))


def test_same_generator_seed_same_sample_and_another_seed_another() -> None:
    noise = torch.randn(SHAPE)

    def run(seed: int) -> Tensor:
        generator = torch.Generator().manual_seed(seed)
        decay = lambda x, t: 0.5 * x  # noqa: E731
        return sample(decay, noise, TIMES, step=overshoot(0.5), draw=normal(generator))

    assert torch.equal(run(1), run(1))
    assert not torch.equal(run(1), run(2))


def test_state_stays_in_fp32_under_a_bf16_network() -> None:
    def velocity(x: Tensor, t: Tensor) -> Tensor:
        assert x.dtype == t.dtype == torch.float32
        return x.bfloat16()

    assert sample(velocity, torch.randn(SHAPE), TIMES).dtype == torch.float32


@pytest.mark.parametrize(
    ("times", "message"),
    [([1.0, 0.5], "end at 0"), ([0.5, 1.0, 0.0], "fall strictly"), ([0.0], "fall strictly")],
)
def test_times_that_do_not_fall_to_zero_are_refused(times: list[float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        sample(towards_zero, torch.randn(SHAPE), torch.tensor(times))


def test_bad_prefix_and_overshoot_are_refused() -> None:
    noise = torch.randn(SHAPE)
    with pytest.raises(ValueError, match="leaves nothing"):
        sample(towards_zero, noise, TIMES, prefix=noise)
    with pytest.raises(ValueError, match=r"at least 0, got -0\.1"):
        overshoot(-0.1)
    with pytest.raises(ValueError, match="needs a source of it"):
        sample(towards_zero, noise, TIMES, step=overshoot(0.1))


class Affine(nn.Module):
    """v = base, plus what text and audio add; counts its forwards and their batch size."""

    def __init__(self) -> None:
        super().__init__()
        self.batches: list[int] = []

    def forward(self, x_t: Tensor, t: Tensor, cond: Cond, past: None) -> Tensor:
        self.batches.append(x_t.shape[0])
        add = 10 * cond.text.mean((1, 2))
        if cond.audio is not None:
            assert cond.audio_keep is not None
            add = add + 100 * cond.audio.mean((1, 2, 3)) * cond.audio_keep
        return x_t + add[:, None, None, None, None]


def cond_of(batch: int) -> Cond:
    """Text and audio whose means are 1 and 2, 3 … per sample."""
    values = 1.0 + torch.arange(batch)
    return Cond(
        text=values[:, None, None].expand(batch, 6, 4),
        audio=(1 + values)[:, None, None, None].expand(batch, 5, 2, 4),
    )


@pytest.mark.parametrize(
    ("text", "audio", "passes"),
    [(1.0, 1.0, 1), (1.0, 2.0, 2), (3.0, 1.0, 3), (2.0, 2.0, 2), (1.0, 0.0, 1), (0.0, 0.0, 1)],
)
def test_guidance_is_the_nested_sum_in_one_forward(text: float, audio: float, passes: int) -> None:
    dit, cond = Affine(), cond_of(2)
    x, t = torch.randn(SHAPE), torch.full(SHAPE[:2], 0.5)
    velocity = guided(dit, cond, text=text, audio=audio, no_text=torch.zeros_like(cond.text))
    v = velocity(x, t)
    nothing, words, sound = torch.zeros(2), 10 * torch.tensor([1.0, 2]), torch.tensor([2.0, 3])
    added = nothing + text * (words - nothing) + audio * 100 * sound
    # sums of a few hundreds in fp32
    torch.testing.assert_close(v, x + added[:, None, None, None, None], atol=1e-3, rtol=0)
    assert dit.batches == [2 * passes]


def test_samples_without_audio_stay_without_it_in_every_pass() -> None:
    cond = cond_of(2)
    silent = Cond(text=cond.text, audio=cond.audio, audio_keep=torch.tensor([True, False]))
    x, t = torch.zeros(SHAPE), torch.full(SHAPE[:2], 0.5)
    v = guided(Affine(), silent, text=1.0, audio=3.0)(x, t)
    torch.testing.assert_close(v[:, 0, 0, 0, 0], torch.tensor([10 + 3 * 200.0, 20.0]))


def test_a_request_without_audio_needs_no_audio_pass() -> None:
    assert [s.has_audio for s in streams(text=2.0, audio=5.0, has_audio=False)] == [False, False]
    dit = Affine()
    cond = Cond(text=torch.ones(2, 6, 4))
    guided(dit, cond, text=1.0, audio=5.0)(torch.zeros(SHAPE), torch.zeros(SHAPE[:2]))
    assert dit.batches == [2]


def test_text_guidance_needs_the_empty_text() -> None:
    cond = cond_of(2)
    with pytest.raises(ValueError, match="needs the encoding of the empty text"):
        guided(Affine(), cond, text=2.0, audio=1.0)
    with pytest.raises(ValueError, match=r"expected that of the text, \(2, 6, 4\)"):
        guided(Affine(), cond, text=2.0, audio=1.0, no_text=torch.zeros(2, 5, 4))


def test_the_reference_is_the_innermost_guidance() -> None:
    passes = streams(text=2.0, audio=3.0, reference=4.0, has_reference=True)
    given = [[s.has_reference, s.has_text, s.has_audio] for s in passes]
    assert given == [[True] * 3, [True, True, False], [True, False, False], [False] * 3]
    # w_aud, w_txt - w_aud, w_ref - w_txt, 1 - w_ref
    assert [s.factor for s in passes] == [3.0, -1.0, 2.0, -3.0]
    assert len(streams(text=1.0, audio=2.0, reference=1.0, has_reference=True)) == 2


@pytest.fixture
def avatar() -> tuple[AvatarDiT, Cond, Tensor, Tensor]:
    """A DiT with a reference and a motion in its Cond; x_t and t of one sample."""
    dit = make_dit().requires_grad_(False)
    valid = torch.ones(1, 5, dtype=torch.bool)
    reference = make_reference(dit.config, valid, has_motion=True)
    cond = make_cond(dit.config, 1, 3, reference=reference)
    generator = torch.Generator().manual_seed(1)
    x_t = torch.randn(1, 3, 16, 4, 4, generator=generator)
    motion = torch.randn(1, 3, dit.config.motion_dim, generator=generator)
    return dit, dataclasses.replace(cond, motion=motion), x_t, torch.full((1, 3), 0.5)


def test_guided_streams_are_what_the_model_says_pass_by_pass(avatar) -> None:
    dit, cond, x_t, t = avatar
    no_text, sizes = torch.zeros_like(cond.text), []
    hook = dit.register_forward_pre_hook(lambda _, given: sizes.append(len(given[1])))
    w = {"text": 1.5, "audio": 3.0, "reference": 2.0}
    got = guided(dit, cond, **w, no_text=no_text)(x_t, t)
    plain = guided(dit, cond, text=1.0, audio=1.0)(x_t, t)
    hook.remove()
    assert sizes == [4, 1]
    without_audio = dataclasses.replace(cond, audio_keep=torch.tensor([False]))
    seen = dataclasses.replace(without_audio, text=no_text)
    nothing = dataclasses.replace(seen, reference=None)
    every, words, person, none = (run(dit, x_t, t, c) for c in (cond, without_audio, seen, nothing))
    expected = none + 2.0 * (person - none) + 1.5 * (words - person) + 3.0 * (every - words)
    # fp32; a masked key costs the same sums in another order
    torch.testing.assert_close(got, expected, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(plain, every, atol=1e-4, rtol=1e-4)
    still = guided(dit, dataclasses.replace(cond, motion=None), text=1.0, audio=1.0)(x_t, t)
    assert float((still - plain).abs().max()) > 1e-3, "motion is read in every pass"


def test_a_cached_reference_guides_as_one_read_anew(avatar) -> None:
    dit, cond, x_t, t = avatar
    cache = dit.encode_reference(cond.reference)
    bare = dataclasses.replace(cond, reference=None, moments=dit.reference_moments(cond.reference))
    w = {"text": 1.0, "audio": 2.0, "reference": 2.0, "no_text": torch.zeros_like(cond.text)}
    cached = guided(dit, bare, **w, past=cache)(x_t, t)
    anew = guided(dit, cond, **w)(x_t, t)
    # a dropped reference is masked in one and not there at all in the other
    torch.testing.assert_close(cached, anew, atol=1e-4, rtol=1e-4)


def test_a_trajectory_begins_at_the_noise_and_every_move_where_the_last_ended() -> None:
    """Of motion, "b l md"; towards a point each Euler step is exact, so the end is that point."""
    generator = torch.Generator().manual_seed(0)
    noise, first = torch.randn(*SHAPE[:2], 7, generator=generator), torch.ones(SHAPE[0], 1, 7)

    def towards_two(x: Tensor, t: Tensor) -> Tensor:
        return (x - 2) / t.clamp_min(1e-6)[..., None]

    moves = list(trajectory(towards_two, noise, TIMES, prefix=first))
    assert [(move.t, move.t_next) for move in moves] == list(pairwise(TIMES.tolist()))
    assert torch.equal(moves[0].before, noise[:, 1:])
    for move, following in pairwise(moves):
        assert torch.equal(move.after, following.before)
    torch.testing.assert_close(moves[-1].after, torch.full_like(noise[:, 1:], 2.0))
    whole = sample(towards_two, noise, TIMES, prefix=first)
    assert torch.equal(whole, torch.cat([first, moves[-1].after], dim=1))


@pytest.mark.parametrize("has_prefix", [True, False])
def test_both_ends_are_held_clean_at_time_zero_in_every_step(has_prefix: bool) -> None:
    before, after = torch.full((2, 2, 3, 2, 2), 3.0), torch.full((2, 1, 3, 2, 2), -2.0)
    first, seen = 2 if has_prefix else 0, []

    def velocity(x: Tensor, t: Tensor) -> Tensor:
        seen.append((x.clone(), t.clone()))
        return towards_zero(x, t)

    out = sample(
        velocity,
        torch.randn(SHAPE),
        TIMES,
        prefix=before if has_prefix else None,
        suffix=after,
        step=overshoot(0.5),
        draw=normal(torch.Generator().manual_seed(0)),
    )
    assert torch.equal(out[:, -1:], after)
    assert torch.equal(out[:, :first], before[:, :first])
    for (x, t), expected in zip(seen, TIMES[:-1], strict=True):
        assert torch.equal(x[:, -1:], after)
        assert torch.equal(x[:, :first], before[:, :first])
        assert torch.equal(t[:, first:-1], expected.expand(2, 4 - first))
        assert not t[:, :first].any()
        assert not t[:, -1].any()


def test_bad_suffixes_are_refused() -> None:
    noise = torch.randn(SHAPE)
    with pytest.raises(ValueError, match="suffix of 5 latent frames leaves nothing"):
        sample(towards_zero, noise, TIMES, prefix=noise[:, :3], suffix=noise[:, :2])
