"""VideoVAE against diffusers, streams against whole clips, and the norm against autograd."""

import pytest
import torch
import torch.nn.functional as F
from diffusers.models.autoencoders.autoencoder_kl_wan import AutoencoderKLWan, WanRMS_norm

from avatar_v.models import vae as vae_module
from avatar_v.models.vae import VideoVAE
from avatar_v.models.vae_config import VAEConfig
from avatar_v.models.vae_network import ChannelNorm, VAENetwork

TOLERANCE = 1e-5
"""fp32: the same sums in another order over about 20 layers, of values of order 1."""


@pytest.fixture(scope="module")
def vae() -> VideoVAE:
    """Tiny, with statistics that are not the identity, and norms that are not all ones."""
    torch.manual_seed(0)
    vae = VideoVAE.tiny().eval()
    for name, parameter in vae.named_parameters():
        if name.endswith("gamma"):
            parameter.data.uniform_(0.5, 1.5)
    vae.set_latent_stats(torch.linspace(-1, 1, 16).tolist(), torch.linspace(0.5, 2, 16).tolist())
    return vae.requires_grad_(False)


@pytest.fixture(scope="module")
def video() -> torch.Tensor:
    return torch.rand(2, 25, 3, 32, 16, generator=torch.Generator().manual_seed(1)) * 2 - 1


@pytest.fixture(scope="module")
def latents() -> torch.Tensor:
    return torch.randn(2, 7, 16, 4, 2, generator=torch.Generator().manual_seed(2))


@pytest.mark.parametrize(
    "config",
    [
        VAEConfig(base_dim=4),  # Wan 2.1, narrower
        VAEConfig(
            base_dim=4,
            decoder_base_dim=8,
            z_dim=16,
            is_residual=True,
            in_channels=12,
            out_channels=12,
            patch_size=2,
            scale_factor_spatial=16,
        ),  # Wan 2.2, narrower
        VideoVAE.tiny().core.config,
    ],
    ids=["2.1", "2.2", "tiny"],
)
def test_it_is_the_network_of_diffusers(config, video):
    """The same weights from one seed, names of parameters, latents and pictures."""
    torch.manual_seed(0)
    theirs = AutoencoderKLWan.from_config(config.to_json())
    assert isinstance(theirs, AutoencoderKLWan)
    torch.manual_seed(0)
    ours = VideoVAE(VAENetwork(config)).eval()
    mine = ours.core.state_dict()
    assert list(mine) == list(theirs.state_dict())
    for name, value in theirs.state_dict().items():
        torch.testing.assert_close(mine[name], value, atol=0, rtol=0)
        if name.endswith("gamma"):
            mine[name].uniform_(0.5, 1.5)
    theirs.load_state_dict(mine)
    with torch.no_grad():
        posterior = theirs.eval().encode(video.transpose(1, 2)).latent_dist
        mean, log_var = ours.posterior(video)
        for found, expected in ((mean, posterior.mean), (log_var, posterior.logvar)):
            torch.testing.assert_close(found, expected.transpose(1, 2), atol=TOLERANCE, rtol=0)
        raw = torch.randn(2, 5, 16, *mean.shape[-2:])
        pictures = theirs.decode(raw.transpose(1, 2)).sample.transpose(1, 2)
        made = ours.decode(ours.normalise(raw))
        torch.testing.assert_close(made, pictures, atol=10 * TOLERANCE, rtol=0)


@pytest.mark.parametrize("sizes", [[1] * 7, [3, 3, 1], [2, 5], [7], [1, 6]])
def test_streamed_decode_equals_whole(vae, latents, sizes):
    whole = vae.decode(latents)
    stream = vae.stream_decoder()
    pieces = [stream.push(piece) for piece in latents.split(sizes, dim=1)]
    assert [p.shape[1] for p in pieces] == [4 * n - 3 * (i == 0) for i, n in enumerate(sizes)]
    torch.testing.assert_close(torch.cat(pieces, 1), whole, atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize("sizes", [[1] * 25, [1, 4, 4, 8, 8], [3, 2, 7, 13], [25], [13, 12]])
def test_streamed_encode_equals_whole(vae, video, sizes):
    whole = vae.encode(video)
    stream = vae.stream_encoder()
    pieces = [stream.push(piece) for piece in video.split(sizes, dim=1)]
    seen = torch.tensor(sizes).cumsum(0)
    assert [p.shape[1] for p in pieces] == torch.diff(
        (seen + 3) // 4, prepend=torch.tensor([0])
    ).tolist()
    torch.testing.assert_close(torch.cat(pieces, 1), whole, atol=TOLERANCE, rtol=0)


def test_two_streams_do_not_disturb_each_other(vae, latents):
    other = latents.flip(0, 1)
    whole = vae.decode(latents)
    a, b = vae.stream_decoder(), vae.stream_decoder()
    pieces = []
    for i in range(7):
        pieces.append(a.push(latents[:, i : i + 1]))
        b.push(other[:, i : i + 1])
    torch.testing.assert_close(torch.cat(pieces, 1), whole, atol=TOLERANCE, rtol=0)


def test_the_cache_matters(vae, latents):
    """The streams above would also pass if the network forgot the past; it does not."""
    whole = vae.decode(latents)
    restarted = vae.decode(latents[:, 3:])
    assert (whole[:, -4:] - restarted[:, -4:]).abs().max() > 100 * TOLERANCE


def test_encoding_is_causal(vae, video):
    changed = video.clone()
    changed[:, 13:] = -changed[:, 13:]
    before, after = vae.encode(video), vae.encode(changed)
    torch.testing.assert_close(before[:, :4], after[:, :4], atol=TOLERANCE, rtol=0)
    assert (before[:, 4] - after[:, 4]).abs().max() > 100 * TOLERANCE


def test_size_of_a_pass_changes_nothing(vae, video, latents, monkeypatch):
    whole = vae.encode(video), vae.decode(latents)
    monkeypatch.setattr(vae_module, "PIXELS_PER_PASS", 1)
    torch.testing.assert_close(vae.encode(video), whole[0], atol=TOLERANCE, rtol=0)
    torch.testing.assert_close(vae.decode(latents), whole[1], atol=TOLERANCE, rtol=0)


def test_norm_and_its_gradients_are_those_of_the_wan_norm():
    generator = torch.Generator().manual_seed(3)
    theirs = WanRMS_norm(6, images=False).double()
    theirs.gamma.data.uniform_(0.5, 1.5, generator=generator)
    ours = ChannelNorm(6, activates=False).double()
    ours.gamma = theirs.gamma
    x = torch.randn(2, 6, 3, 4, 5, generator=generator, dtype=torch.float64, requires_grad=True)
    dy = torch.randn(2, 6, 3, 4, 5, generator=generator, dtype=torch.float64)
    expected = torch.autograd.grad(theirs(x), [x, theirs.gamma], dy)
    actual = torch.autograd.grad(ours(x), [x, theirs.gamma], dy)
    # fp64: the same formula in another order.
    torch.testing.assert_close(ours(x), theirs(x), atol=1e-12, rtol=1e-12)
    for a, e in zip(actual, expected, strict=True):
        torch.testing.assert_close(a, e, atol=1e-12, rtol=1e-12)


def test_norm_of_zeros_is_zero_with_a_finite_gradient():
    ours = ChannelNorm(4, activates=False)
    x = torch.zeros(1, 4, 1, 2, 2, requires_grad=True)
    y = ours(x)
    y.sum().backward()
    assert torch.equal(y, torch.zeros_like(y))
    assert x.grad is not None
    assert torch.isfinite(x.grad).all()
    assert torch.equal(y, F.normalize(x, dim=1))


def test_bf16_decode_stays_near_fp32(vae, latents):
    exact = vae.decode(latents)
    with torch.autocast("cpu", torch.bfloat16):
        rough = vae.decode(latents)
    # bf16 keeps 8 bits. Norm, activation and convolution of about 20 layers round, each by up to
    # 2^-8, and the errors add up as a random walk of 60 steps.
    assert rough.dtype == torch.float32
    assert (rough - exact).square().mean().sqrt() < 2**-8 * 60**0.5 * exact.std()
