"""The motion stream: exact against one dense masked attention, one-way, and nothing at first."""

import dataclasses

import pytest
import torch
from torch import Tensor

from avatar_v.kernels.attention import attend_dense
from avatar_v.kernels.norm import rotate
from avatar_v.models.config import DiTConfig
from avatar_v.models.dit import AvatarDiT
from avatar_v.models.layers import gated_add, modulated_norm, rotary_table
from avatar_v.models.motion import CENTER, SCALE, STYLE_SCALE, motion_moments
from avatar_v.models.own_units import own_scale
from avatar_v.testing import make_cond, make_dit, make_reference
from avatar_v.types import MOTION_NAMES, Cond, Reference

# fp32; the two sides sum the same terms in another order, values are of order 1.
TOLERANCE = 1e-5
NUM_FRAMES, NUM_REFERENCE, SIZE = 3, 11, 4
VALID = torch.rand(2, NUM_REFERENCE, generator=torch.Generator().manual_seed(0)) > 0.3


@pytest.fixture(scope="module")
def dit() -> AvatarDiT:
    return make_dit(DiTConfig.tiny()).requires_grad_(False)


def target(config: DiTConfig) -> tuple[Tensor, Tensor, Tensor]:
    """x_t, motion_t and t."""
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


def test_an_injection_of_zero_leaves_the_video_as_it_was(dit: AvatarDiT) -> None:
    x_t, motion_t, t = target(dit.config)
    cond = with_reference(dit.config)
    assert cond.reference is not None
    still = dataclasses.replace(cond, reference=dataclasses.replace(cond.reference, motion=None))
    quiet = silence(dit)
    video, motion = quiet(x_t, t, cond, motion_t=motion_t)
    assert torch.equal(video, quiet(x_t, t, still))
    assert float(motion.abs().max()) > 0.1
    video, _ = dit(x_t, t, cond, motion_t=motion_t)
    assert float((video - dit(x_t, t, cond)).abs().max()) > 0.01, "the test is blind"


def test_a_new_model_starts_with_that_injection_and_no_motion_velocity() -> None:
    new = AvatarDiT(DiTConfig.tiny())
    started = [p for name, p in new.named_parameters() if "motion_inject" in name]
    started.append(new.style_embed)
    assert started
    assert not any(bool(p.any()) for p in started)
    x_t, motion_t, t = target(new.config)
    _, motion = new(x_t, t, with_reference(new.config), motion_t=motion_t)
    assert torch.equal(motion, torch.zeros_like(motion_t))


def test_equal_to_dense_masked_attention(dit: AvatarDiT) -> None:
    x_t, motion_t, t = target(dit.config)
    cond = with_reference(dit.config)
    got_video, got_motion = dit(x_t, t, cond, motion_t=motion_t)
    video, motion = dense_forward(dit, x_t, motion_t, t, t, cond)
    torch.testing.assert_close(got_video, video, atol=TOLERANCE, rtol=TOLERANCE)
    torch.testing.assert_close(got_motion, motion, atol=TOLERANCE, rtol=TOLERANCE)


def test_motion_at_times_of_its_own_is_equal_to_dense_attention_too(dit: AvatarDiT) -> None:
    x_t, motion_t, t = target(dit.config)
    cond = with_reference(dit.config)
    same = dit(x_t, t, cond, motion_t=motion_t)
    told = dit(x_t, t, cond, motion_t=motion_t, t_motion=t)
    assert all(torch.equal(a, b) for a, b in zip(same, told, strict=True))
    t_motion = t * torch.tensor([[0.0], [0.4]])  # known in the first sample, ahead in the second
    got = dit(x_t, t, cond, motion_t=motion_t, t_motion=t_motion)
    expected = dense_forward(dit, x_t, motion_t, t, t_motion, cond)
    for a, b, other in zip(got, expected, same, strict=True):
        torch.testing.assert_close(a, b, atol=TOLERANCE, rtol=TOLERANCE)
        assert float((a - other).abs().max()) > 1e-3, "the test is blind"
    with pytest.raises(ValueError, match="without motion_t"):
        dit(x_t, t, cond, t_motion=t_motion)


def test_motion_without_video_is_equal_to_dense_attention(dit: AvatarDiT) -> None:
    _, motion_t, t = target(dit.config)
    cond = with_reference(dit.config)
    video, got = dit(None, t, cond, motion_t=motion_t)
    assert video is None
    expected = dense_motion_alone(dit, motion_t, t, cond)
    torch.testing.assert_close(got, expected, atol=TOLERANCE, rtol=TOLERANCE)
    silent = dataclasses.replace(cond, audio_keep=torch.tensor([True, False]))
    silent = dit(None, t, silent, motion_t=motion_t)[1]
    torch.testing.assert_close(silent[0], got[0], atol=TOLERANCE, rtol=TOLERANCE)
    assert float((silent[1] - got[1]).abs().max()) > 1e-3, "sound is heard"


def test_motion_without_video_reads_habits_of_the_reference_alone(dit: AvatarDiT) -> None:
    _, motion_t, t = target(dit.config)
    cond = with_reference(dit.config)
    reference = cond.reference
    assert reference is not None
    assert reference.motion is not None
    without = dataclasses.replace(cond, reference=None)
    got, none = (dit(None, t, c, motion_t=motion_t)[1] for c in (cond, without))
    assert float((got - none).abs().max()) > 1e-3, "the test is blind"
    others = dataclasses.replace(reference, latents=-reference.latents)
    cache, moments = dit.encode_reference(reference), motion_moments(reference.motion, VALID)
    unkept = dataclasses.replace(cond, reference_keep=torch.zeros(2, dtype=torch.bool))
    dropped = dit(None, t, unkept, motion_t=motion_t)[1]
    habits = style_of(reference) @ dit.style_embed
    expected = dense_motion_alone(dit, motion_t, t, cond, torch.zeros_like(habits))
    # the person's scale is known, in which the network's velocity of habits is left out
    torch.testing.assert_close(dropped, expected, atol=TOLERANCE, rtol=TOLERANCE)
    for expected, given, named in (
        (got, dataclasses.replace(cond, reference=others), {}),
        (got, without, {"reference_cache": cache}),
        (got, without, {"moments": moments}),
        (dropped, unkept, {"moments": moments}),
        (none, dataclasses.replace(without, reference_keep=unkept.reference_keep), {}),
    ):
        assert torch.equal(dit(None, t, given, motion_t=motion_t, **named)[1], expected)


def test_a_pass_without_video_needs_motion_alone(dit: AvatarDiT) -> None:
    x_t, motion_t, t = target(dit.config)
    cond = with_reference(dit.config)
    for named in ({}, {"motion_t": motion_t, "t_motion": t}):
        with pytest.raises(ValueError, match="denoises motion alone"):
            dit(None, t, cond, **named)
    with pytest.raises(ValueError, match="moments are for a pass without video"):
        dit(x_t, t, cond, motion_t=motion_t, moments=torch.zeros(2, 65))
    low = dataclasses.replace(cond, low=x_t)
    refiner = make_dit(dataclasses.replace(dit.config, refines_from=0.6))
    with pytest.raises(ValueError, match="no refiner"):
        refiner(None, t, low, motion_t=motion_t)


def test_reference_motion_is_read_from_the_cache(dit: AvatarDiT) -> None:
    x_t, motion_t, t = target(dit.config)
    cond = with_reference(dit.config)
    assert cond.reference is not None
    cache = dit.encode_reference(cond.reference)
    without = dataclasses.replace(cond, reference=None)
    got = dit(x_t, t, without, motion_t=motion_t, reference_cache=cache)
    expected = dit(x_t, t, cond, motion_t=motion_t)
    assert all(torch.equal(a, b) for a, b in zip(got, expected, strict=True))
    reference = dataclasses.replace(cond.reference, motion=-cond.reference.motion)
    other = dit(x_t, t, dataclasses.replace(cond, reference=reference), motion_t=motion_t)
    assert float((other[0] - expected[0]).abs().max()) > 1e-3


def test_motion_of_invalid_frames_is_not_read(dit: AvatarDiT) -> None:
    x_t, motion_t, t = target(dit.config)
    cond = with_reference(dit.config)
    assert cond.reference is not None
    assert cond.reference.motion is not None
    broken = torch.where(VALID[..., None], cond.reference.motion, float("nan"))
    got = dit(x_t, t, with_reference(dit.config, motion=broken), motion_t=motion_t)
    expected = dit(x_t, t, cond, motion_t=motion_t)
    assert all(torch.equal(a, b) for a, b in zip(got, expected, strict=True))


def test_motion_without_a_valid_frame_is_no_reference(dit: AvatarDiT) -> None:
    x_t, motion_t, t = target(dit.config)
    cond = with_reference(dit.config)
    assert cond.reference is not None
    assert cond.reference.motion is not None
    blind = dataclasses.replace(
        cond.reference,
        valid=torch.zeros_like(cond.reference.valid),
        motion=torch.full_like(cond.reference.motion, float("nan")),
    )
    got = dit(x_t, t, dataclasses.replace(cond, reference=blind), motion_t=motion_t)
    expected = dit(x_t, t, dataclasses.replace(cond, reference=None), motion_t=motion_t)
    for one, other in zip(got, expected, strict=True):
        torch.testing.assert_close(one, other, atol=TOLERANCE, rtol=TOLERANCE)


def test_shapes_that_do_not_fit_are_refused(dit: AvatarDiT) -> None:
    x_t, motion_t, t = target(dit.config)
    cond = with_reference(dit.config)
    with pytest.raises(ValueError, match=r"motion_t must have shape \(2, 3, 64\)"):
        dit(x_t, t, cond, motion_t=motion_t[..., :16])
    with pytest.raises(ValueError, match=r"reference\.motion must have shape"):
        dit(x_t, t, with_reference(dit.config, motion=torch.zeros(2, NUM_REFERENCE, 16)))


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
) -> tuple[Tensor, Tensor]:
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
    motion = dit.motion_head(streams[1], embedding[:, _frames(sizes)[1]])
    return dit._to_latents(video, *grid), motion.squeeze(2)


def scale_of(reference: Reference) -> tuple[Tensor, Tensor]:
    """How far each person moves each of the 64 numbers, and where that leaves a face at rest."""
    own = own_scale(motion_moments(reference.motion, reference.valid)).repeat(1, 4)[:, None]
    return own, (1 - own) * (CENTER / SCALE).repeat(4)


def dense_motion_alone(
    dit: AvatarDiT, motion_t: Tensor, t: Tensor, cond: Cond, habits: Tensor | None = None
) -> Tensor:
    """The specification: motion tokens see each other, and read text and sound themselves. The
    network's state is that of a person who moves as far as all do."""
    assert cond.reference is not None
    if habits is None:
        habits = style_of(cond.reference) @ dit.style_embed
    embedding, modulation = dit.time_embed(t, habits)
    own, rest = scale_of(cond.reference)
    there = 1 - t[..., None]
    size = t[..., None] + there * own
    state, tau = (motion_t + there * rest) / size, t[..., None] / size
    rotary = rotary_table(torch.arange(NUM_FRAMES)[None], 1, 1, dit.config.head_dim)
    text, audio = dit._embed_text(cond.text), dit._embed_audio(cond.audio).flatten(0, 1)
    x = dit._embed_motion(state)
    all_seen = torch.ones(2, NUM_FRAMES, NUM_FRAMES, dtype=torch.bool)
    for block in dit.blocks:
        parts = (block.modulation + modulation).unsqueeze(-2).unbind(2)
        flat = modulated_norm(x, parts[0], parts[1], block.eps).flatten(1, 2)
        attention = block.self_attention
        key, value = attention.project_keys(flat)
        query, key = (rotate(y, rotary) for y in (attention.project_query(flat), key))
        out = attention.merge(attend_dense(query, key, value, all_seen))
        x = gated_add(x, out.unsqueeze(2), parts[2])
        x = x + block.text_attention(block.text_norm(x).flatten(1, 2), text).unsqueeze(2)
        heard = block.audio_attention(block.audio_norm(x).flatten(0, 1), audio)
        x = x + heard.unflatten(0, x.shape[:2])
        x = gated_add(x, block.ffn(modulated_norm(x, parts[3], parts[4], block.eps)), parts[5])
    v = dit.motion_head(x, embedding).squeeze(2)
    noise, clean = state + (1 - tau) * v, state - tau * v  # of that person
    return noise - (own * clean - rest)


def _frames(sizes: tuple[int, ...]) -> list[slice]:
    ends = [sum(sizes[: i + 1]) for i in range(len(sizes))]
    return [slice(end - size, end) for size, end in zip(sizes, ends, strict=True)]
