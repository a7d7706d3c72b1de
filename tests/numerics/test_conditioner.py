"""Conditioner and encoders: streams equal wholes, windows, dropout, loudness."""

import dataclasses

import pyloudnorm
import pytest
import torch

from avatar_v.media.sound import normalise_loudness
from avatar_v.models.audio import (
    LogMelEncoder,
    latent_windows,
    log_mel,
    mel_filters,
)
from avatar_v.models.conditioner import Conditioner, latent_validity, window
from avatar_v.types import SAMPLE_RATE_HZ, num_latents
from avatar_v.weights.presets import build_conditioner
from avatar_v.weights.random import make_batch, motion_stats
from random_models import encode_clips, randomise


@pytest.fixture(scope="module")
def conditioner() -> Conditioner:
    return build_conditioner("tiny", motion_stats=motion_stats())


def noise(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def test_audio_features_see_the_past_within_memory_and_no_future() -> None:
    encoder = LogMelEncoder(24, num_layers=3, num_mels=20)
    randomise(encoder)
    waveform = 0.1 * noise(1, 41 * 640)
    changed = waveform.clone()
    changed[:, 10 * 640 : 11 * 640] += 0.1
    change = (encoder(changed) - encoder(waveform)).abs().amax((0, 2))
    last = 10 + encoder.memory_frames
    assert (change[:10] < 1e-5).all()
    assert (change[last + 1 :] < 1e-5).all()
    assert change[10] > 1e-2
    assert change[last] > 1e-5, "memory_frames is larger than it needs to be"


def test_a_tone_lights_its_mel_band() -> None:
    seconds = torch.arange(SAMPLE_RATE_HZ) / SAMPLE_RATE_HZ
    bank = mel_filters(40)
    centres = (bank * torch.linspace(0, 8000, 257)[:, None]).sum(0) / bank.sum(0)
    for hz in (300.0, 1000.0, 3000.0):
        mel = log_mel(torch.sin(2 * torch.pi * hz * seconds)[None], bank)
        brightest = int(mel[0, 50].argmax())
        assert brightest == int((centres - hz).abs().argmin())
    assert (bank.amax(0) > 0.3).all(), "a band without a bin hears nothing"


def test_latent_windows_hold_four_frames_and_two_on_each_side() -> None:
    features = torch.arange(13.0)[None, :, None]
    expected = [
        [0, 0, 0, 0, 0, 0, 1, 2],  # the image latent: frame 0, clamped
        [0, 0, 1, 2, 3, 4, 5, 6],  # frames 1 … 4: -1 is clamped to 0
        [3, 4, 5, 6, 7, 8, 9, 10],
        [7, 8, 9, 10, 11, 12, 12, 12],  # 13 and 14 are clamped to the last frame
    ]
    assert latent_windows(features)[0, :, :, 0].tolist() == expected


def test_clean_latents_and_conditions_of_whole_clips(conditioner: Conditioner) -> None:
    batch = make_batch(2, 9, 16, has_reference=True)
    latents, cond = encode_clips(conditioner, batch)
    assert latents.shape == (2, 3, 16, 2, 2)
    assert cond.text.shape == (2, 64, 32)
    assert cond.audio is not None
    assert cond.audio.shape == (2, 3, 8, 32)
    reference = cond.reference
    assert reference is not None
    assert batch.reference is not None
    assert torch.equal(reference.latents, conditioner.vae.encode(batch.reference.video))
    assert reference.audio is not None
    assert torch.equal(reference.audio, conditioner.encode_audio(batch.reference.audio))
    assert reference.valid.all()
    assert reference.segment.tolist() == [[0, 0, 0]] * 2


def test_precomputed_latents_replace_the_video(conditioner: Conditioner) -> None:
    video = make_batch(2, 9, 16)
    stored = conditioner.clean_latents(video)
    batch = dataclasses.replace(video, video=None, latents=stored.half())
    # fp16 keeps 11 bits; latents are of order 1.
    torch.testing.assert_close(conditioner.clean_latents(batch), stored, atol=2e-3, rtol=1e-3)
    with pytest.raises(ValueError, match=r"batch \('0', '1'\) has neither video nor latents"):
        conditioner.clean_latents(dataclasses.replace(batch, latents=None))


def test_an_image_is_the_first_latent_of_its_video(conditioner: Conditioner) -> None:
    video = make_batch(2, 9, 16).video
    assert video is not None
    image = conditioner.encode_image(video[:, 0])
    assert image.shape == (2, 1, 16, 2, 2)
    # The VAE is causal; fp32 convolutions over another number of frames.
    torch.testing.assert_close(image, conditioner.encode_video(video)[:, :1], atol=1e-5, rtol=1e-5)


def test_a_latent_is_valid_when_all_its_frames_are() -> None:
    valid = torch.tensor([[1, 1, 1, 1, 1, 1, 0, 1, 1], [0, 1, 1, 1, 1, 0, 0, 0, 0]]).bool()
    assert latent_validity(valid).tolist() == [[True, True, False], [False, True, False]]


def test_dropout_marks_and_replaces_what_it_drops(conditioner: Conditioner) -> None:
    _, cond = encode_clips(conditioner, make_batch(2, 9, 16, has_reference=True))
    generator = torch.Generator().manual_seed(0)
    kept = conditioner.drop(cond, generator=generator)
    assert torch.equal(kept.text, cond.text)
    assert kept.audio_keep is not None
    assert kept.audio_keep.all()
    assert kept.reference_keep is None, "a mask of nothing costs the fast path"
    lost = conditioner.drop(cond, text=1.0, audio=1.0, reference=1.0, generator=generator)
    empty = conditioner.encode_text([""])
    assert torch.equal(lost.text, empty.expand_as(cond.text))
    assert (empty - cond.text).abs().max() > 1e-2
    assert lost.audio_keep is not None
    assert lost.reference_keep is not None
    assert not lost.audio_keep.any()
    assert not lost.reference_keep.any()
    twice = conditioner.drop(lost, generator=generator)
    assert twice.audio_keep is not None
    assert not twice.audio_keep.any(), "what was dropped stays dropped"


def test_dropout_has_its_rate_and_independent_streams(conditioner: Conditioner) -> None:
    _, cond = encode_clips(conditioner, make_batch(2, 9, 16))
    many = cond.map(lambda x: x[:1].expand(4000, *x.shape[1:]))
    generator = torch.Generator().manual_seed(0)
    dropped = conditioner.drop(many, text=0.3, audio=0.5, generator=generator)
    no_text = (dropped.text != many.text).flatten(1).any(1).float()
    assert dropped.audio_keep is not None
    no_audio = (~dropped.audio_keep).float()
    # Binomial of 4000: one standard deviation is below 0.008.
    assert no_text.mean() == pytest.approx(0.3, abs=0.03)
    assert no_audio.mean() == pytest.approx(0.5, abs=0.03)
    assert (no_text * no_audio).mean() == pytest.approx(0.15, abs=0.03)
    only = conditioner.drop(many, audio=0.5, generator=torch.Generator().manual_seed(0))
    assert torch.equal(only.audio_keep, dropped.audio_keep), "text dropout shifted audio's draws"  # pyright: ignore


def test_a_window_is_each_samples_own(conditioner: Conditioner) -> None:
    x = torch.arange(10).reshape(2, 5)
    assert window(x, torch.tensor([0, 2]), 3).tolist() == [[0, 1, 2], [7, 8, 9]]
    for start in (3, -1):
        with pytest.raises(ValueError, match="leave a clip of 5"):
            window(x, torch.tensor([0, start]), 3)


def test_tokens_of_windows_are_those_of_the_whole(conditioner: Conditioner) -> None:
    """At the clip's beginning, inside it, and at its end, where windows of features are clamped."""
    audio = make_batch(1, 161, 16).audio.expand(4, -1)
    whole = conditioner.encode_audio(audio)
    start = torch.tensor([0, 4, 20, 38])
    tokens = conditioner.encode_audio_windows(audio, start, 3)
    torch.testing.assert_close(tokens, window(whole, start, 3))
    short = conditioner.encode_audio_windows(audio[:, : 9 * 640], torch.tensor([0, 1, 2, 0]), 1)
    torch.testing.assert_close(short[2], conditioner.encode_audio(audio[:1, : 9 * 640])[0, 2:])
    with pytest.raises(ValueError, match="leave a clip"):
        conditioner.encode_audio_windows(audio, torch.tensor([0, 4, 20, 39]), 3)


def test_training_reaches_the_encoders_but_not_the_vae(conditioner: Conditioner) -> None:
    latents, cond = encode_clips(conditioner, make_batch(2, 9, 16))
    assert cond.audio is not None
    assert not latents.requires_grad
    (cond.text.square().sum() + cond.audio.square().sum()).backward()
    assert conditioner.text_encoder.byte_embed.weight.grad is not None
    assert conditioner.audio_encoder.embed.up.weight.grad is not None
    assert not any(p.requires_grad for p in conditioner.vae.parameters())
    assert not conditioner.train().vae.training


def test_a_waveform_must_fill_its_frames(conditioner: Conditioner) -> None:
    with pytest.raises(ValueError, match="whole number of video frames"):
        conditioner.encode_audio(torch.zeros(1, 641))
    with pytest.raises(ValueError, match="4k \\+ 1 frames"):
        conditioner.encode_audio(torch.zeros(1, 640 * 4))
    assert conditioner.encode_audio(torch.zeros(1, 640 * 5)).shape[1] == num_latents(5)


@pytest.mark.parametrize("gain", [0.01, 1.0])
def test_loudness_becomes_minus_23_lufs(gain: float) -> None:
    audio = gain * 0.1 * noise(3 * SAMPLE_RATE_HZ)
    louder = normalise_loudness(audio)
    loudness = pyloudnorm.Meter(SAMPLE_RATE_HZ).integrated_loudness(louder.double().numpy())
    assert loudness == pytest.approx(-23.0, abs=0.05)


def test_silence_keeps_its_loudness() -> None:
    for audio in (torch.zeros(16000), torch.zeros(0), 1e-5 * noise(16000)):
        assert torch.equal(normalise_loudness(audio), audio)


def test_short_audio_is_measured_as_a_repetition_of_itself() -> None:
    short = 0.01 * noise(1000)
    gain = normalise_loudness(short) / short
    long_gain = normalise_loudness(short.repeat(64)) / short.repeat(64)
    # BS.1770 gates in 400 ms blocks, which hold other parts of the repetition.
    assert float(gain.mean()) == pytest.approx(float(long_gain.mean()), rel=0.05)


def test_broken_samples_are_refused() -> None:
    with pytest.raises(ValueError, match="NaN or infinite"):
        normalise_loudness(torch.tensor([0.0, float("nan")]))
