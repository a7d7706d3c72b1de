"""Chunk after chunk: seeds, first frames, interpolated transitions, streams equal to whole."""

import dataclasses

import pytest
import torch
from torch import Tensor

from avatar_v.generate.generator import audio_tokens, generate
from avatar_v.generate.pipeline import AvatarPipeline
from avatar_v.inputs.person import EncodedPerson
from avatar_v.sampling.chunks import Span, plan
from avatar_v.types import num_frames
from generating import SETTINGS, made, picture, sound, speaker

# --- chunks and streams ---


@pytest.mark.parametrize("frames", [1, 2, 17, 18, 40])
def test_as_many_frames_as_the_sound_has(pipe: AvatarPipeline, frames: int) -> None:
    assert made(pipe, sound(frames)).shape == (frames, 3, 32, 32)


def test_same_seed_same_frames(pipe: AvatarPipeline) -> None:
    first = made(pipe, sound(20))
    assert torch.equal(first, made(pipe, sound(20)))
    assert not torch.equal(first, made(pipe, sound(20), dataclasses.replace(SETTINGS, seed=4)))


def test_overshoot_comes_from_the_seed_and_leaves_the_start_alone(pipe: AvatarPipeline) -> None:
    starts = []

    def remember(module: object, args: tuple[Tensor, ...]) -> None:
        starts.append(args[0][0, -1].clone())  # the last latent is noise in every first step

    plain = made(pipe, sound(33))
    hook = pipe.dit.register_forward_pre_hook(remember)
    try:
        fresh = dataclasses.replace(SETTINGS, overshoot=0.5)
        first = made(pipe, sound(33), fresh)
        again = made(pipe, sound(33), dataclasses.replace(fresh, overshoot=1.0))
    finally:
        hook.remove()
    assert not torch.equal(first, plain)
    assert not torch.equal(first, again)
    assert torch.equal(first, made(pipe, sound(33), fresh))
    half = len(starts) // 2
    for step in range(0, half, SETTINGS.num_steps):  # each chunk starts from the same noise
        assert torch.equal(starts[step], starts[half + step])


def test_sound_and_words_change_the_frames(pipe: AvatarPipeline) -> None:
    first = made(pipe, sound(20))
    assert not torch.equal(first, made(pipe, sound(20, seed=1)))
    assert not torch.equal(first, made(pipe, sound(20), prompt="a forest"))


def test_first_frames_leave_before_the_second_chunk_is_sampled(pipe: AvatarPipeline) -> None:
    num_calls = 0

    def count(*args: object) -> None:
        nonlocal num_calls
        num_calls += 1

    hook = pipe.dit.register_forward_hook(count)
    try:
        blocks = generate(
            pipe.dit, pipe.conditioner, EncodedPerson(picture()), sound(60), "", SETTINGS
        )
        next(blocks)
        assert num_calls == SETTINGS.num_steps
        rest = list(blocks)
    finally:
        hook.remove()
    assert num_calls == SETTINGS.num_steps * len(plan(60, chunk_latents=5).chunks)
    assert all(len(block) <= 16 for block in rest)  # the pixels in memory do not grow


def test_a_longer_sound_begins_with_the_same_chunk(pipe: AvatarPipeline) -> None:
    """Nothing of a chunk depends on what comes more than 2 frames after it."""
    long = sound(80)
    first, second = made(pipe, long), made(pipe, long[: 640 * 50])
    assert torch.equal(first[:41], second[:41])


# --- interpolated transitions ---


@pytest.fixture
def pieces(pipe: AvatarPipeline, monkeypatch: pytest.MonkeyPatch) -> list[Tensor]:
    """Every latent that goes to the decoder."""
    latents: list[Tensor] = []
    stream_decoder = pipe.conditioner.vae.stream_decoder

    class Spy:
        def __init__(self, *, clamp: bool) -> None:
            self.stream = stream_decoder(clamp=clamp)

        def push(self, piece: Tensor) -> Tensor:
            latents.append(piece.clone())
            return self.stream.push(piece)

    monkeypatch.setattr(pipe.conditioner.vae, "stream_decoder", Spy)
    return latents


def test_an_i_chunk_joins_the_ends_of_two_n_chunks(
    pipe: AvatarPipeline, pieces: list[Tensor]
) -> None:
    """Chunks of 9 latents: the prefix of the next one lies behind the transition."""
    settings = dataclasses.replace(SETTINGS, chunk_latents=9, blend=False)
    person, calls = speaker(pipe), []

    def remember(module, args, kwargs, output) -> None:
        calls.append((args[0][:1].clone(), args[1][0].tolist(), args[2].motion[:1].clone()))

    plain = made(pipe, sound(84), settings, person=person)
    before = torch.cat(pieces, dim=1)
    pieces.clear()
    hook = pipe.dit.register_forward_hook(remember, with_kwargs=True)
    try:
        frames = made(
            pipe, sound(84), dataclasses.replace(settings, interpolate=True), person=person
        )
    finally:
        hook.remove()
    after = torch.cat(pieces, dim=1)
    assert frames.shape == plain.shape
    chunks = plan(84, chunk_latents=9).chunks  # 9 latents, 7 and 6 new ones
    assert [len(chunk.new_latents) for chunk in chunks] == [9, 7, 6]
    changed = (before != after).flatten(2).any(-1)[0]
    assert changed.nonzero().flatten().tolist() == [9, 10, 16, 17]
    assert len(calls) == settings.num_steps * 5  # N0, N1, I1, N2, I2
    latents, times, motion = calls[2 * settings.num_steps]
    assert times == [0.0, 0.0, 1.0, 1.0, 0.0]
    assert torch.equal(latents[:, :2], before[:, 7:9])
    assert torch.equal(latents[:, -1:], before[:, 11:12])
    _, _, start = calls[settings.num_steps]
    assert torch.equal(motion[:, -1:], start[:, 4:5])  # that of the latent it ends with
    noises = [calls[i * settings.num_steps][0][:, 2:4] for i in (1, 2)]
    assert not torch.equal(*noises)


def test_the_next_chunk_goes_on_from_the_transition_that_is_shown(
    pipe: AvatarPipeline, pieces: list[Tensor]
) -> None:
    """Chunks of 5 latents: the last two, prefix of the next chunk, hold one of the transition."""
    starts = []

    def remember(module: object, args: tuple[Tensor, ...]) -> None:
        starts.append((args[0][:1].clone(), args[1][0].tolist()))

    hook = pipe.dit.register_forward_pre_hook(remember)
    try:
        made(pipe, sound(41), dataclasses.replace(SETTINGS, interpolate=True))
    finally:
        hook.remove()
    latents = torch.cat(pieces, dim=1)
    assert latents.shape[1] == 11  # 5, 3 and 3 new ones
    assert len(starts) == SETTINGS.num_steps * 5
    x, times = starts[3 * SETTINGS.num_steps]
    assert times == [0.0, 0.0, 1.0, 1.0, 1.0]
    assert torch.equal(x[:, :2], latents[:, 6:8])


# --- decoding and hearing ---


def test_decoding_across_chunks_equals_decoding_whole(
    pipe: AvatarPipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    vae, pieces = pipe.conditioner.vae, []
    stream = vae.stream_decoder()

    class Spy:
        def push(self, latents: Tensor) -> Tensor:
            pieces.append(latents.clone())
            return stream.push(latents)

    monkeypatch.setattr(vae, "stream_decoder", lambda *, clamp: Spy())
    frames = made(pipe, sound(45))
    monkeypatch.undo()
    latents = torch.cat(pieces, dim=1)
    assert num_frames(latents.shape[1]) == 45
    with torch.no_grad():
        whole = vae.decode(latents)[0]
    # 1 grey level: the same value may round both ways
    assert float((frames.float() - (whole + 1) * 127.5).abs().max()) <= 1.0


@pytest.mark.parametrize(
    ("span", "total"), [((0, 5), 5), ((3, 8), 30), ((20, 25), 30), ((27, 30), 30)]
)
def test_audio_tokens_of_a_chunk_equal_those_of_the_whole(
    pipe: AvatarPipeline, span: tuple[int, int], total: int
) -> None:
    waveform = sound(num_frames(total))
    with torch.no_grad():
        whole = pipe.conditioner.encode_audio(waveform[None])
        part = audio_tokens(pipe.conditioner, waveform, total)(Span(*span))
    # fp32: the same sums over other lengths
    torch.testing.assert_close(part, whole[:, span[0] : span[1]], atol=1e-5, rtol=1e-5)


def test_bf16_is_close_to_fp32(pipe: AvatarPipeline) -> None:
    first = made(pipe, sound(17)).float()
    second = made(pipe, sound(17), dataclasses.replace(SETTINGS, bf16=True)).float()
    assert not torch.equal(first, second)
    # 8 bits of mantissa over a few layers: a few of 255 grey levels on average
    assert float((first - second).abs().mean()) < 4
