"""AvatarDiT: presets, shapes, what each input may reach, and errors at the edge."""

import copy
import dataclasses
import time

import pytest
import torch

from avatar_v.models.config import DiTConfig
from avatar_v.models.dit import AvatarDiT
from avatar_v.models.layers import narrow, rotary_split
from avatar_v.weights.presets import PRESETS, preset
from random_models import make_cond, make_dit, make_reference

# Published sizes: Wan 2.1 T2V 1.3B and 14B, Wan 2.2 TI2V 5B (without our audio and motion).
PUBLISHED = {"wan_1_3b": 1.42e9, "wan_14b": 14.29e9, "wan22_5b": 5.00e9}


def added_parameters(dit: AvatarDiT) -> int:
    names = ("audio", "motion")
    return sum(p.numel() for n, p in dit.named_parameters() if any(part in n for part in names))


@pytest.mark.parametrize("name", PRESETS)
def test_presets_build_on_the_meta_device_in_seconds(name: str) -> None:
    start = time.process_time()
    with torch.device("meta"):
        dit = AvatarDiT(preset(name).dit)
    assert time.process_time() - start < 10
    assert all(p.device.type == "meta" for p in dit.parameters())
    if name in PUBLISHED:
        wan = sum(p.numel() for p in dit.parameters()) - added_parameters(dit)
        assert wan == pytest.approx(PUBLISHED[name], rel=0.005)


def test_an_unknown_preset_names_those_there_are() -> None:
    with pytest.raises(ValueError, match="no preset 'big'; there are tiny, small"):
        preset("big")


def test_the_head_is_split_as_in_wan() -> None:
    assert rotary_split(128) == (44, 42, 42)
    assert rotary_split(64) == (24, 20, 20)


@pytest.fixture(scope="module")
def dit() -> AvatarDiT:
    return make_dit()


def x_and_t(num_frames: int = 3) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    shape = (2, num_frames, 16, 4, 6)
    return torch.randn(shape, generator=generator), torch.rand(2, num_frames, generator=generator)


def test_a_new_model_predicts_zero_velocity() -> None:
    x, t = x_and_t()
    dit = AvatarDiT(DiTConfig.tiny())
    assert torch.equal(dit(x, t, make_cond(dit.config)), torch.zeros_like(x))


def test_a_pass_runs_on_the_meta_device() -> None:
    """Shapes of a full-size pass can be known without its weights."""
    x, t = x_and_t()
    dit = AvatarDiT(DiTConfig.tiny()).to("meta")
    reference = make_reference(dit.config, torch.ones(2, 3) > 0)
    packing = {"valid": reference.valid, "segment": reference.segment}  # decides shapes: on the CPU
    past = dit.encode_reference(dataclasses.replace(reference.to("meta"), **packing))
    v = dit(x.to("meta"), t.to("meta"), make_cond(dit.config).to("meta"), past=past)
    assert (v.shape, v.device.type) == (x.shape, "meta")


def test_samples_of_a_batch_do_not_mix(dit: AvatarDiT) -> None:
    x, t = x_and_t()
    cond = make_cond(dit.config)
    alone = dit(x[:1], t[:1], cond.map(lambda y: y[:1]))
    # fp32: the same sums in products of another height.
    torch.testing.assert_close(dit(x, t, cond)[:1], alone, atol=1e-5, rtol=1e-5)


def test_every_frame_has_its_own_time(dit: AvatarDiT) -> None:
    x, t = x_and_t()
    cond = make_cond(dit.config)
    other = t.clone()
    other[:, 1] = 1 - other[:, 1]
    change = (dit(x, other, cond) - dit(x, t, cond)).abs().amax((0, 2, 3, 4))
    assert change[1] > 3 * change[0]  # attention carries a little of it to the other frames
    assert change[0] > 0


def test_audio_reaches_its_own_latent_frame_first() -> None:
    """With one block, audio cross-attention comes after all mixing over frames."""
    dit = make_dit(dataclasses.replace(DiTConfig.tiny(), num_layers=1))
    x, t = x_and_t()
    cond = make_cond(dit.config)
    assert cond.audio is not None
    audio = cond.audio.clone()
    audio[:, 1] += 1
    change = dit(x, t, dataclasses.replace(cond, audio=audio)) - dit(x, t, cond)
    assert torch.equal(change[:, [0, 2]], torch.zeros_like(change[:, [0, 2]]))
    assert change[:, 1].abs().max() > 1e-3


def test_the_order_of_a_frames_audio_tokens_matters(dit: AvatarDiT) -> None:
    x, t = x_and_t()
    cond = make_cond(dit.config)
    assert cond.audio is not None
    turned = dataclasses.replace(cond, audio=cond.audio.flip(2))
    assert (dit(x, t, turned) - dit(x, t, cond)).abs().max() > 1e-3


def test_dropped_audio_equals_no_audio(dit: AvatarDiT) -> None:
    x, t = x_and_t()
    cond = make_cond(dit.config)
    silent = dit(x, t, dataclasses.replace(cond, audio=None))
    full = dit(x, t, cond)
    got = dit(x, t, dataclasses.replace(cond, audio_keep=torch.tensor([True, False])))
    assert torch.equal(got[0], full[0])
    assert torch.equal(got[1], silent[1])
    assert (full[1] - silent[1]).abs().max() > 1e-3


def test_audio_sits_in_every_kth_block() -> None:
    dit = make_dit(dataclasses.replace(DiTConfig.tiny(), num_layers=5, audio_every=2))
    assert [block.audio_attention is not None for block in dit.blocks] == [True, False] * 2 + [True]


def test_bf16_autocast_is_near_fp32(dit: AvatarDiT) -> None:
    x, t = x_and_t()
    cond = make_cond(dit.config)
    exact = dit(x, t, cond)
    with torch.autocast("cpu", torch.bfloat16):
        got = dit(x, t, cond)
    # Two blocks of bf16 products (8 bits, 0.4 % each) on an fp32 residual stream.
    assert (got.float() - exact).square().mean().sqrt() < 0.02 * exact.square().mean().sqrt()


def test_weights_narrowed_for_autocast_change_nothing_and_take_half(dit: AvatarDiT) -> None:
    dit, num_bytes = copy.deepcopy(dit).requires_grad_(False), parameter_bytes(dit)
    x, t = x_and_t()
    cond = make_cond(dit.config)
    with torch.autocast("cpu", torch.bfloat16):
        before = dit(x, t, cond)
        narrow(dit, torch.bfloat16)
        assert torch.equal(dit(x, t, cond), before)
    assert parameter_bytes(dit) < 0.65 * num_bytes  # tiny has a large share of time embedding
    assert dit.time_embed.up.weight.dtype == torch.float32


def parameter_bytes(module: torch.nn.Module) -> int:
    return sum(p.numel() * p.element_size() for p in module.parameters())


def test_tables_made_in_inference_mode_serve_training() -> None:
    dit = make_dit()
    x, t = torch.randn(1, 7, 16, 6, 2), torch.rand(1, 7)
    cond = make_cond(dit.config, 1, 7)
    with torch.inference_mode():
        dit(x, t, cond)
    dit(x, t, cond).sum().backward()
    assert dit.patch_embed.weight.grad is not None


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"text": torch.zeros(2, 5, 31)}, r"cond.text must have shape \(2, any, 32\)"),
        ({"audio": torch.zeros(2, 4, 8, 32)}, r"cond.audio must have shape \(2, 3, 8, 32\)"),
        ({"audio": torch.zeros(2, 3, 7, 32)}, r"cond.audio must have shape \(2, 3, 8, 32\)"),
    ],
)
def test_conditions_that_do_not_fit_are_refused(
    dit: AvatarDiT, change: dict[str, torch.Tensor], message: str
) -> None:
    x, t = x_and_t()
    with pytest.raises(ValueError, match=message):
        dit(x, t, dataclasses.replace(make_cond(dit.config), **change))


def test_latents_that_do_not_fit_are_refused(dit: AvatarDiT) -> None:
    x, t = x_and_t()
    cond = make_cond(dit.config)
    with pytest.raises(ValueError, match=r"x_t must have shape \(any, any, 16, any, any\)"):
        dit(x[:, :, :8], t, cond)
    with pytest.raises(ValueError, match=r"multiples of the patch 2, got \(3, 6\)"):
        dit(x[..., :3, :], t, cond)
    with pytest.raises(ValueError, match="even whole number of at least 6"):
        dataclasses.replace(DiTConfig.tiny(), num_heads=5)
    with pytest.raises(ValueError, match="audio_every counts blocks from 1, got 0"):
        dataclasses.replace(DiTConfig.tiny(), audio_every=0)


def test_a_stored_config_names_unknown_and_missing_keys() -> None:
    values = dataclasses.asdict(DiTConfig.tiny())
    assert DiTConfig.from_dict(values) == DiTConfig.tiny()
    del values["dim"]
    with pytest.raises(ValueError, match=r"here: unknown keys \['width'\], missing keys \['dim'\]"):
        DiTConfig.from_dict({**values, "width": 3}, where="here")
