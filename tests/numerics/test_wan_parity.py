"""AvatarDiT without audio and reference is diffusers' WanTransformer3DModel, both ways."""

import pytest
import torch
from diffusers import WanTransformer3DModel
from einops import rearrange
from torch import Tensor

from avatar_v.models.config import DiTConfig
from avatar_v.models.dit import AvatarDiT
from avatar_v.types import Cond
from avatar_v.weights.wan import config_from_wan, config_to_wan, dit_from_wan, key_map, state_to_wan
from random_models import make_cond, make_dit, randomise

# Outputs are of order 1; ten fp32 roundings in another order stay below 1e-5.
TOLERANCE = 1e-5

WAN = {
    "num_attention_heads": 2, "attention_head_dim": 24, "in_channels": 16, "out_channels": 16,
    "text_dim": 32, "freq_dim": 32, "ffn_dim": 96, "num_layers": 3,
}  # fmt: skip


@pytest.fixture
def wan() -> WanTransformer3DModel:
    model = WanTransformer3DModel(**WAN)
    randomise(model, seed=1)
    return model.eval()


@pytest.fixture
def ours(wan: WanTransformer3DModel) -> AvatarDiT:
    config = config_from_wan(
        {**wan.config, "_class_name": "WanTransformer3DModel"}, audio_dim=32, audio_every=2
    )
    return dit_from_wan(config, wan.state_dict(), where="test").eval()


def inputs(config: DiTConfig) -> tuple[Tensor, Tensor, Tensor]:
    """x_t "b l c h w" of a height unlike its width, one t per sample, text."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(2, 5, config.latent_channels, 4, 6, generator=generator)
    t = torch.tensor([0.137, 0.871])
    return x, t, torch.randn(2, 7, config.text_dim, generator=generator)


def run_wan(wan: WanTransformer3DModel, x: Tensor, timestep: Tensor, text: Tensor) -> Tensor:
    out = wan(rearrange(x, "b l c h w -> b c l h w"), timestep, text, return_dict=False)[0]
    return rearrange(out, "b c l h w -> b l c h w")


def test_text_to_video_layout(wan: WanTransformer3DModel, ours: AvatarDiT) -> None:
    x, t, text = inputs(ours.config)
    expected = run_wan(wan, x, t * 1000, text)
    cond = Cond(text=text)
    got = ours(x, t[:, None].expand(2, 5), cond)
    assert expected.std() > 0.1
    torch.testing.assert_close(got, expected, atol=TOLERANCE, rtol=TOLERANCE)


def test_text_and_image_to_video_layout_with_time_per_token(
    wan: WanTransformer3DModel, ours: AvatarDiT
) -> None:
    x, t, text = inputs(ours.config)
    per_frame = t[:, None].repeat(1, 5)
    per_frame[:, 0] = 0  # the clean image
    per_frame[1, 3] = 0.5
    tokens_per_frame = 2 * 3
    timestep = (per_frame * 1000).repeat_interleave(tokens_per_frame, dim=1)
    expected = run_wan(wan, x, timestep, text)
    got = ours(x, per_frame, Cond(text=text))
    torch.testing.assert_close(got, expected, atol=TOLERANCE, rtol=TOLERANCE)


def test_gradients_agree(wan: WanTransformer3DModel, ours: AvatarDiT) -> None:
    x, t, text = inputs(ours.config)
    weight = torch.randn(x.shape, generator=torch.Generator().manual_seed(2))
    (run_wan(wan, x, t * 1000, text) * weight).sum().backward()
    cond = Cond(text=text)
    (ours(x, t[:, None].expand(2, 5), cond) * weight).sum().backward()
    mine = {name: p.grad for name, p in ours.named_parameters() if p.grad is not None}
    theirs = {name: p.grad for name, p in wan.named_parameters()}
    for a, b in key_map(ours.config).items():
        expected = theirs[b]
        assert expected is not None
        scale = expected.abs().max()  # gradients sum over tokens: compare with the largest
        difference = (mine[a] - expected.reshape(mine[a].shape)).abs().max()
        assert difference <= 3e-5 * scale, f"{a}: {difference} of {scale}"


def test_our_state_in_wans_layout_gives_the_same_output(wan: WanTransformer3DModel) -> None:
    dit = make_dit(DiTConfig.tiny(), seed=3)
    model = WanTransformer3DModel(**config_to_wan(dit.config)).eval()
    model.load_state_dict(state_to_wan(dit))  # strict: every key of Wan, and no other
    x, t, text = inputs(dit.config)
    expected = dit(x, t[:, None].expand(2, 5), Cond(text=text))
    torch.testing.assert_close(
        run_wan(model, x, t * 1000, text), expected, atol=TOLERANCE, rtol=TOLERANCE
    )


def test_state_survives_the_round_trip(wan: WanTransformer3DModel, ours: AvatarDiT) -> None:
    state = state_to_wan(ours)
    assert state.keys() == wan.state_dict().keys()
    for key, value in wan.state_dict().items():
        assert torch.equal(state[key], value), key


def test_fresh_audio_modules_change_nothing(ours: AvatarDiT) -> None:
    x, t, text = inputs(ours.config)
    times = t[:, None].expand(2, 5)
    cond = make_cond(ours.config, 2, 5)
    without = ours(x, times, Cond(text=text))
    with_audio = ours(x, times, Cond(text=text, audio=cond.audio))
    assert torch.equal(with_audio, without)


def test_trained_audio_modules_change_the_output(ours: AvatarDiT) -> None:
    x, t, text = inputs(ours.config)
    times = t[:, None].expand(2, 5)
    audio = make_cond(ours.config, 2, 5).audio
    randomise(ours, seed=4)
    without = ours(x, times, Cond(text=text))
    assert (ours(x, times, Cond(text=text, audio=audio)) - without).abs().max() > 1e-2
