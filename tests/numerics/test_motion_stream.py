"""The motion stream: exact against one dense masked attention, one-way, and nothing at first."""

import dataclasses

import pytest
import torch
from torch import Tensor

from avatar_v.kernels.norm import rotate
from avatar_v.kernels.residual import gated_add, modulated_norm
from avatar_v.models.config import DiTConfig
from avatar_v.models.dit import AvatarDiT
from avatar_v.models.layers import rotary_table
from avatar_v.types import MOTION_NAMES, Cond, Reference
from avatar_v.weights.random import motion_stats
from naive_attention import attend_dense
from random_models import make_cond, make_dit, make_reference, run

STATS = motion_stats()
STYLE_SCALE = STATS.style_deviation

# fp32; the two sides sum the same terms in another order, values are of order 1.
TOLERANCE = 1e-5
NUM_FRAMES, NUM_REFERENCE, SIZE = 3, 11, 4
VALID = torch.rand(2, NUM_REFERENCE, generator=torch.Generator().manual_seed(0)) > 0.3


@pytest.fixture(scope="module")
def dit() -> AvatarDiT:
    return make_dit(DiTConfig.tiny()).requires_grad_(False)


def target(config: DiTConfig) -> tuple[Tensor, Tensor, Tensor]:
    """x_t, motion and t."""
    generator = torch.Generator().manual_seed(5)
    shape = (2, NUM_FRAMES, config.latent_channels, SIZE, SIZE)
    return (
        torch.randn(shape, generator=generator),
        torch.randn(2, NUM_FRAMES, config.motion_dim, generator=generator),
        torch.rand(2, NUM_FRAMES, generator=generator),
    )


def with_reference(config: DiTConfig, **changes: object) -> Cond:
    reference = make_reference(config, VALID, size=SIZE, has_motion=True)
    reference = dataclasses.replace(reference, **changes)
    return make_cond(config, 2, NUM_FRAMES, reference=reference)


def silence(dit: AvatarDiT) -> AvatarDiT:
    """The same weights with the injection as it starts."""
    quiet = make_dit(dit.config).requires_grad_(False)
    for name, parameter in quiet.named_parameters():
        if "motion_inject" in name or name == "style_embed":
            parameter.zero_()
    return quiet


def followed(cond: Cond, motion: Tensor | None) -> Cond:
    return dataclasses.replace(cond, motion=motion)


def test_an_injection_of_zero_leaves_the_video_as_it_was(dit: AvatarDiT) -> None:
    x_t, motion, t = target(dit.config)
    cond = with_reference(dit.config)
    assert cond.reference is not None
    still = dataclasses.replace(cond, reference=dataclasses.replace(cond.reference, motion=None))
    quiet = silence(dit)
    assert torch.equal(run(quiet, x_t, t, followed(cond, motion)), run(quiet, x_t, t, still))
    video = run(dit, x_t, t, followed(cond, motion))
    assert float((video - run(dit, x_t, t, cond)).abs().max()) > 0.01, "the test is blind"


def test_a_new_model_starts_with_that_injection() -> None:
    new = AvatarDiT(DiTConfig.tiny(), STATS)
    started = [p for name, p in new.named_parameters() if "motion_inject" in name]
    started.append(new.style_embed)
    assert started
    assert not any(bool(p.any()) for p in started)
    assert not any("motion_head" in name for name in new.state_dict())


@pytest.mark.parametrize("is_refiner", [False, True])
def test_equal_to_dense_masked_attention(is_refiner: bool) -> None:
    """Motion is clean, at t = 0; a refiner's motion tokens have the times of its video."""
    config = dataclasses.replace(DiTConfig.tiny(), refines_from=0.6 if is_refiner else None)
    dit = make_dit(config).requires_grad_(False)
    x_t, motion, t = target(config)
    cond = with_reference(config)
    cond = dataclasses.replace(cond, low=torch.zeros_like(x_t) if is_refiner else None)
    got = run(dit, x_t, t, followed(cond, motion))
    if is_refiner:  # low latents of zero add a bias
        assert dit.low_embed is not None
        dit.low_embed.bias.zero_()
        got = run(dit, x_t, t, followed(cond, motion))
    t_motion = t if is_refiner else torch.zeros_like(t)
    video = dense_forward(dit, x_t, motion, t, t_motion, cond)
    torch.testing.assert_close(got, video, atol=TOLERANCE, rtol=TOLERANCE)
    other = dense_forward(dit, x_t, motion, t, t - t_motion, cond)
    assert float((got - other).abs().max()) > 1e-4, "the test is blind"


def test_reference_motion_is_read_from_cache_and_moments(dit: AvatarDiT) -> None:
    x_t, motion, t = target(dit.config)
    cond = followed(with_reference(dit.config), motion)
    assert cond.reference is not None
    cache = dit.encode_reference(cond.reference)
    without = dataclasses.replace(
        cond, reference=None, moments=dit.reference_moments(cond.reference)
    )
    expected = run(dit, x_t, t, cond)
    assert torch.equal(dit(x_t, t, without, past=cache), expected)
    reference = dataclasses.replace(cond.reference, motion=-cond.reference.motion)
    other = run(dit, x_t, t, dataclasses.replace(cond, reference=reference))
    assert float((other - expected).abs().max()) > 1e-3


def test_motion_of_invalid_frames_is_not_read(dit: AvatarDiT) -> None:
    x_t, motion, t = target(dit.config)
    cond = with_reference(dit.config)
    assert cond.reference is not None
    assert cond.reference.motion is not None
    broken = torch.where(VALID[..., None], cond.reference.motion, float("nan"))
    got = run(dit, x_t, t, followed(with_reference(dit.config, motion=broken), motion))
    assert torch.equal(got, run(dit, x_t, t, followed(cond, motion)))


def test_motion_without_a_valid_frame_is_no_reference(dit: AvatarDiT) -> None:
    x_t, motion, t = target(dit.config)
    cond = followed(with_reference(dit.config), motion)
    assert cond.reference is not None
    assert cond.reference.motion is not None
    blind = dataclasses.replace(
        cond.reference,
        valid=torch.zeros_like(cond.reference.valid),
        motion=torch.full_like(cond.reference.motion, float("nan")),
    )
    got = run(dit, x_t, t, dataclasses.replace(cond, reference=blind))
    expected = run(dit, x_t, t, dataclasses.replace(cond, reference=None))
    torch.testing.assert_close(got, expected, atol=TOLERANCE, rtol=TOLERANCE)


def test_shapes_that_do_not_fit_are_refused(dit: AvatarDiT) -> None:
    x_t, motion, t = target(dit.config)
    cond = with_reference(dit.config)
    with pytest.raises(ValueError, match=r"cond\.motion must have shape \(2, 3, 64\)"):
        run(dit, x_t, t, followed(cond, motion[..., :16]))
    with pytest.raises(ValueError, match=r"reference\.motion must have shape"):
        run(dit, x_t, t, with_reference(dit.config, motion=torch.zeros(2, NUM_REFERENCE, 16)))


def dense_mask(valid: Tensor, segment: Tensor, num_tokens: int) -> Tensor:
    """Over [video G, motion M, reference R, its motion N]: G sees G, R; M sees M, G, R; R sees R of
    its segment; N sees N and R of its segment; whatever is invalid is seen by itself alone."""
    num_g, num_m = NUM_FRAMES * num_tokens, NUM_FRAMES
    valid_r, segment_r = (x.repeat_interleave(num_tokens, dim=1) for x in (valid, segment))
    seen = torch.cat([valid_r, valid], dim=1)
    place = torch.cat([segment_r, segment], dim=1)
    is_motion = torch.cat([torch.zeros_like(valid_r), torch.ones_like(valid)], dim=1)
    same = (place[:, :, None] == place[:, None, :]) & seen[:, None]
    same &= is_motion[:, :, None] | ~is_motion[:, None, :]
    size = num_g + num_m + seen.shape[1]
    mask = torch.zeros(len(valid), size, size, dtype=torch.bool)
    mask[:, : num_g + num_m, :num_g] = True
    mask[:, num_g : num_g + num_m, num_g : num_g + num_m] = True
    mask[:, : num_g + num_m, num_g + num_m :] = (seen & ~is_motion)[:, None]
    mask[:, num_g + num_m :, num_g + num_m :] = same
    diagonal = torch.arange(size)
    mask[:, diagonal, diagonal] = True
    return mask


def style_of(reference: Reference) -> Tensor:
    """The statistics in words: over the vectors of valid frames, shrunk by n / (n + 25), and by
    n / (n + 400) for habits that show a few times a minute: blinks, looks away, smiles; in units of
    how far people differ."""
    assert reference.motion is not None
    rows = []
    for motion, valid in zip(reference.motion, reference.valid, strict=True):
        latents = motion[valid].reshape(-1, 4, len(MOTION_NAMES))
        frames = latents.flatten(0, 1)
        change = (latents[:, 1:] - latents[:, :-1]).square().mean((0, 1)).sqrt()
        calm = frames.clamp(-1, 1).square().mean(0).sqrt() - 0.7185
        row = torch.cat([frames.mean(0), frames.std(0, correction=0) - 1, change, calm])
        rare = ("corner_raise", "eye_open", "gaze_x", "gaze_y")
        prior = torch.tensor([400 if name in rare else 25 for name in MOTION_NAMES] * 4)
        rows.append(row * len(frames) / (len(frames) + prior) / STYLE_SCALE)
    return torch.stack(rows)


def dense_forward(
    dit: AvatarDiT, x_t: Tensor, motion_t: Tensor, t: Tensor, t_motion: Tensor, cond: Cond
) -> Tensor:
    """The specification: all tokens in one sequence under a full mask, streams cut out of it."""
    reference = cond.reference
    assert reference is not None
    grid, num_tokens = (SIZE // 2, SIZE // 2), (SIZE // 2) ** 2
    sizes = (NUM_FRAMES, NUM_FRAMES, NUM_REFERENCE, NUM_REFERENCE)  # latent frames of G, M, R, N
    per_frame = (num_tokens, 1, num_tokens, 1)
    lengths = [n * k for n, k in zip(sizes, per_frame, strict=True)]
    times = torch.zeros(2, NUM_REFERENCE)
    style = style_of(reference) @ dit.style_embed  # the generated frames alone have it
    generated = torch.cat([t, t_motion], dim=1)
    parts = dit.time_embed(generated, style), dit.time_embed(times.repeat(1, 2))
    embedding, modulation = (torch.cat(both, dim=1) for both in zip(*parts, strict=True))
    audio = dit._embed_audio(torch.cat([cond.audio, cond.audio, *[reference.audio] * 2], dim=1))
    text = dit._embed_text(cond.text)
    offset = -dit.config.reference_gap - NUM_REFERENCE + 1
    here, there = torch.arange(NUM_FRAMES)[None], offset + torch.arange(NUM_REFERENCE)[None]
    head_dim = dit.config.head_dim
    rotary = torch.cat(
        [
            rotary_table(here, *grid, head_dim),
            rotary_table(here, 1, 1, head_dim),
            rotary_table(there, *grid, head_dim),
            rotary_table(there, 1, 1, head_dim),
        ],
        dim=1,
    )
    mask = dense_mask(reference.valid, reference.segment, num_tokens)
    streams = [
        dit._embed_patches(x_t),
        dit._embed_motion(motion_t),
        dit._embed_patches(reference.latents),
        dit._embed_motion(reference.motion),
    ]
    for block in dit.blocks:
        parts = (block.modulation + modulation).unsqueeze(-2).unbind(2)
        part_of = [[p[:, i] for p in parts] for i in _frames(sizes)]
        y = [
            modulated_norm(x, p[0], p[1], block.eps) for x, p in zip(streams, part_of, strict=True)
        ]
        attention = block.self_attention
        flat = torch.cat([stream.flatten(1, 2) for stream in y], dim=1)
        key, value = attention.project_keys(flat)
        query = rotate(attention.project_query(flat), rotary)
        out = attention.merge(attend_dense(query, rotate(key, rotary), value, mask))
        before = streams
        streams = []
        for k, (x, p, change) in enumerate(
            zip(before, part_of, out.split(lengths, 1), strict=True)
        ):
            x = gated_add(x, change.unflatten(1, (sizes[k], -1)), p[2])
            if k == 0:  # the target's video alone reads text
                y = block.text_attention(block.text_norm(x).flatten(1, 2), text)
                x = x + y.unflatten(1, (sizes[k], -1))
            heard = audio[:, _frames(sizes)[k]].flatten(0, 1)
            y = block.audio_attention(block.audio_norm(x).flatten(0, 1), heard)
            x = x + y.unflatten(0, x.shape[:2])
            if k in (0, 2):
                x = x + block.motion_inject(block.motion_norm(before[k + 1]))
            x = gated_add(x, block.ffn(modulated_norm(x, p[3], p[4], block.eps)), p[5])
            streams.append(x)
    video = dit.head(streams[0], embedding[:, _frames(sizes)[0]])
    return dit._to_latents(video, *grid)


def _frames(sizes: tuple[int, ...]) -> list[slice]:
    ends = [sum(sizes[: i + 1]) for i in range(len(sizes))]
    return [slice(end - size, end) for size, end in zip(sizes, ends, strict=True)]
