"""VideoVAE: shapes, files, statistics and errors."""

import json

import pytest
import torch
from safetensors.torch import load_file

from avatar_v.models.vae import VideoVAE
from avatar_v.objectives.vae import latent_stats


@pytest.fixture
def vae() -> VideoVAE:
    torch.manual_seed(0)
    return VideoVAE.tiny().eval()


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize(("frames", "latents"), [(1, 1), (5, 2), (13, 4)])
def test_shapes(vae, frames, latents):
    video = torch.zeros(2, frames, 3, 16, 24)
    encoded = vae.encode(video)
    assert encoded.shape == (2, latents, 16, 2, 3)
    assert vae.decode(encoded).shape == video.shape


def test_decode_clamps_unless_told_otherwise(vae):
    latents = torch.randn(1, 1, 16, 2, 2, generator=seeded())
    with torch.no_grad():
        vae.core.decoder.conv_out.bias += 2
    raw = vae.decode(latents, clamp=False)
    assert raw.abs().max() > 1
    assert torch.equal(vae.decode(latents), raw.clamp(-1, 1))


@pytest.mark.parametrize("frames", [2, 4, 8])
def test_encode_refuses_lengths_that_are_not_4k_plus_1(vae, frames):
    with pytest.raises(ValueError, match=f"4k \\+ 1 .*got {frames}"):
        vae.encode(torch.zeros(1, frames, 3, 16, 16))


def test_encode_refuses_sizes_that_are_not_multiples_of_8(vae):
    with pytest.raises(ValueError, match="divisible by 8"):
        vae.encode(torch.zeros(1, 1, 3, 20, 16))


def test_decode_refuses_other_channels_and_nothing(vae):
    with pytest.raises(ValueError, match="c = 16"):
        vae.decode(torch.zeros(1, 1, 4, 2, 2))
    with pytest.raises(ValueError, match="l >= 1"):
        vae.decode(torch.zeros(1, 0, 16, 2, 2))


def test_save_and_load_give_the_same_hash_and_latents(vae, tmp_path):
    vae.set_latent_stats([0.5] * 16, [2.0] * 16)
    vae.save_pretrained(tmp_path)
    loaded = VideoVAE.from_pretrained(tmp_path)
    video = torch.rand(2, 9, 3, 16, 16, generator=seeded(5)) * 2 - 1
    assert loaded.hash() == vae.hash()
    assert torch.equal(loaded.encode(video), vae.encode(video))
    assert not loaded.training


def test_half_precision_files_are_read_as_float32(vae, tmp_path):
    vae.save_pretrained(tmp_path, torch.float16)
    stored = load_file(tmp_path / "model.safetensors")
    assert {value.dtype for value in stored.values()} == {torch.float16}
    assert VideoVAE.from_pretrained(tmp_path).dtype == torch.float32


def test_diffusers_weight_name_is_read(vae, tmp_path):
    vae.save_pretrained(tmp_path)
    (tmp_path / "model.safetensors").rename(tmp_path / "diffusion_pytorch_model.safetensors")
    assert VideoVAE.from_pretrained(tmp_path).hash() == vae.hash()


def test_hash_sees_weights_and_statistics(vae):
    before = vae.hash()
    vae.set_latent_stats([0.0] * 16, [2.0] * 16)
    changed_stats = vae.hash()
    with torch.no_grad():
        vae.core.decoder.conv_out.bias[0] += 1
    assert len({before, changed_stats, vae.hash()}) == 3


def test_loading_says_what_is_wrong(vae, tmp_path):
    with pytest.raises(FileNotFoundError):
        VideoVAE.from_pretrained(tmp_path / "nothing")
    vae.save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"base_dim": 8}))
    with pytest.raises(ValueError, match="do not fit the model"):
        VideoVAE.from_pretrained(tmp_path)
    wrong = {
        "attn_scales": ([0.5], "not supported"),
        "temperal_downsample": ([True], "one entry less than dim_mult, got 1 and 3"),
        "dim_mult": ([1, 2, 3], "cannot be shared"),
        "dropout": (2, "dropout is a finite number from 0 to 1"),
    }
    for name, (value, words) in wrong.items():
        (tmp_path / "config.json").write_text(json.dumps(config | {name: value}))
        with pytest.raises(ValueError, match=words):
            VideoVAE.from_pretrained(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(config | {"_class_name": "UNet"}))
    with pytest.raises(ValueError, match="expected AutoencoderKLWan, got UNet"):
        VideoVAE.from_pretrained(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(FileNotFoundError, match=r"model\.safetensors"):
        VideoVAE.from_pretrained(tmp_path)


def test_latent_stats_must_fit(vae):
    with pytest.raises(ValueError, match="16 means"):
        vae.set_latent_stats([0.0] * 4, [1.0] * 4)
    with pytest.raises(ValueError, match="positive"):
        vae.set_latent_stats([0.0] * 16, [0.0] * 16)


def test_published_sizes_are_built_without_memory():
    wan21, wan22 = VideoVAE.wan21(), VideoVAE.wan22()
    assert (wan21.latent_channels, wan21.spatial_factor) == (16, 8)
    assert (wan22.latent_channels, wan22.spatial_factor) == (48, 16)
    assert wan21.dtype == torch.float32
    assert next(wan22.parameters()).is_meta
    # 127 M and 705 M parameters: the sizes of Wan2.1_VAE.pth and Wan2.2_VAE.pth in fp32 / 4 bytes.
    assert sum(p.numel() for p in wan21.parameters()) == pytest.approx(127e6, rel=0.01)
    assert sum(p.numel() for p in wan22.parameters()) == pytest.approx(705e6, rel=0.01)


def test_normalised_latents_have_unit_variance_after_stats(vae):
    video = torch.rand(4, 5, 3, 32, 32, generator=seeded()) * 2 - 1
    with torch.no_grad():
        mean, std = latent_stats(vae, [video[:2], video[2:]])
        vae.set_latent_stats(mean, std)
        latents = vae.encode(video)
    assert latents.mean((0, 1, 3, 4)).abs().max() < 1e-4  # fp32 sums of 1e2 numbers
    assert (latents.std((0, 1, 3, 4), correction=0) - 1).abs().max() < 1e-4
