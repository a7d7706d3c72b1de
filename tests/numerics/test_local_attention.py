"""Attention that is local in time, against one dense masked attention; and the shipped weights."""

import dataclasses

import pytest
import torch
from torch import Tensor

from avatar_v.kernels.attention import attend_blocks, attend_dense
from avatar_v.kernels.key_mask import KeyMask, KeyPart
from avatar_v.models import attention, blocks
from avatar_v.models.attention import Pattern
from avatar_v.models.config import DiTConfig
from avatar_v.models.dit import AvatarDiT
from avatar_v.models.refiner import as_refiner, predict_clean
from avatar_v.weights.card import ASSETS
from avatar_v.weights.random import make_cond, make_dit, make_reference, run
from avatar_v.weights.weights import load_dit, read_json

# fp32; the two sides sum the same terms in another order, values are of order 1.
TOLERANCE = 1e-5
NUM_FRAMES, SIZE = 6, 4


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def near_mask(num_frames: int, num_queries: int, num_keys: int, window: int) -> Tensor:
    """In words: a query of frame i sees a key of frame j if |i - j| <= window."""
    query = torch.arange(num_frames).repeat_interleave(num_queries)
    key = torch.arange(num_frames).repeat_interleave(num_keys)
    return (query[:, None] - key[None]).abs() <= window


@pytest.mark.parametrize("window", [0, 1, 2, 7])
@pytest.mark.parametrize("masked", [True, False])
def test_near_equals_dense_masked_attention(window: int, masked: bool) -> None:
    query, key, value = drawn(2, 6 * 3, 2, 8), drawn(2, 6, 5, 2, 8, seed=1), drawn(2, 6, 5, 2, 8)
    extra = drawn(2, 4, 2, 8, seed=2), drawn(2, 4, 2, 8, seed=3)
    keep = torch.tensor([[True, False, True, True], [False] * 4]) if masked else None
    near = near_mask(6, 3, 5, window).expand(2, -1, -1)
    seen = torch.ones(2, 4, dtype=torch.bool) if keep is None else keep
    mask = torch.cat([near, seen[:, None].expand(-1, 18, -1)], dim=2)
    expected = attend_dense(
        query,
        torch.cat([key.flatten(1, 2), extra[0]], dim=1),
        torch.cat([value.flatten(1, 2), extra[1]], dim=1),
        mask,
    )
    hidden = None if keep is None else KeyMask.of(KeyPart(keep, 1))
    got = attend_blocks(query, key, value, Pattern.local(window).blocks(6), extra, hidden)
    torch.testing.assert_close(got, expected, atol=TOLERANCE, rtol=TOLERANCE)


def local(window: int | None) -> AvatarDiT:
    return make_dit(dataclasses.replace(DiTConfig.tiny(), temporal_window=window))


def inputs(config: DiTConfig, valid: Tensor) -> dict:
    reference = make_reference(config, valid, size=SIZE, has_motion=True)
    return {
        "x_t": drawn(2, NUM_FRAMES, config.latent_channels, SIZE, SIZE),
        "t": torch.rand(2, NUM_FRAMES, generator=torch.Generator().manual_seed(1)),
        "cond": dataclasses.replace(
            make_cond(config, 2, NUM_FRAMES, reference=reference),
            motion=drawn(2, NUM_FRAMES, config.motion_dim, seed=4),
        ),
    }


@pytest.mark.parametrize("window", [0, 1, 3])
def test_the_network_equals_one_with_masked_attention(
    window: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same forward pass with every local attention replaced by the dense one and a mask."""
    dit = local(window)
    valid = torch.rand(2, 9, generator=torch.Generator().manual_seed(3)) > 0.4
    given = inputs(dit.config, valid)
    got = run(dit, **given)

    def dense(query, key, value, blocks, extra, extra_mask):
        num_frames, num_keys = key.shape[1:3]
        near = near_mask(num_frames, query.shape[1] // num_frames, num_keys, window)
        seen = extra[0].new_ones(extra[0].shape[:2], dtype=torch.bool)
        seen = seen if extra_mask is None else extra_mask.seen
        mask = torch.cat(
            [near.expand(2, -1, -1), seen[:, None].expand(-1, query.shape[1], -1)], dim=2
        )
        keys, values = key.flatten(1, 2), value.flatten(1, 2)
        keys, values = (torch.cat(pair, dim=1) for pair in ((keys, extra[0]), (values, extra[1])))
        return attend_dense(query, keys, values, mask)

    monkeypatch.setattr(attention, "attend_blocks", dense)
    expected = run(dit, **given)
    torch.testing.assert_close(got, expected, atol=TOLERANCE, rtol=TOLERANCE)
    monkeypatch.undo()
    everywhere = run(local(None), **given)
    assert (everywhere - got).abs().max() > 1e-3, "the window has no effect: a blind test"


def test_a_window_over_everything_is_plain_attention() -> None:
    wide, plain = local(NUM_FRAMES), local(None)
    given = inputs(plain.config, torch.ones(2, 4, dtype=torch.bool))
    ours, theirs = run(wide, **given), run(plain, **given)
    torch.testing.assert_close(ours, theirs, atol=TOLERANCE, rtol=TOLERANCE)


def test_what_lies_beyond_the_window_of_all_layers_has_no_effect() -> None:
    dit = local(1)
    given = inputs(dit.config, torch.ones(2, 4, dtype=torch.bool))
    reach = dit.config.num_layers  # one frame a layer, in video and motion alike
    x_t, motion = given["x_t"].clone(), given["cond"].motion.clone()
    x_t[:, -1] += 1
    motion[:, -1] += 1
    changed = {"x_t": x_t, "cond": dataclasses.replace(given["cond"], motion=motion)}
    a, b = run(dit, **given), run(dit, **{**given, **changed})
    torch.testing.assert_close(a[:, : -1 - reach], b[:, : -1 - reach], atol=0, rtol=0)
    assert (a[:, -1 - reach] - b[:, -1 - reach]).abs().max() > 0


def test_shipped_weights_load_and_nothing_local_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    folder = ASSETS / "small" / "dit"
    assert read_json(folder / "config.json")["temporal_window"] is None
    dit = load_dit(folder).eval()
    assert dit.config == DiTConfig.small()
    assert not any("low_embed" in name for name in dit.state_dict())

    def never(*args, **kwargs):
        raise AssertionError("local attention in weights that have none")

    monkeypatch.setattr(attention, "attend_blocks", never)
    monkeypatch.setattr(blocks, "Blocked", never)
    config = dit.config
    with torch.no_grad():
        v = dit(drawn(1, 2, 16, 8, 8), torch.full((1, 2), 0.5), make_cond(config, 1, 2))
    assert torch.isfinite(v).all()


def test_a_refiner_of_fresh_heads_gives_the_low_video_and_reads_it() -> None:
    dit = make_dit(DiTConfig.tiny())
    refiner = as_refiner(dit, sigma=0.6, temporal_window=1)
    assert as_refiner(refiner, sigma=0.6, temporal_window=1) is refiner
    with pytest.raises(ValueError, match="temporal_window=1"):
        as_refiner(refiner, sigma=0.6, temporal_window=2)
    x_t, t = drawn(2, 3, 16, SIZE, SIZE), torch.full((2, 3), 0.6)
    low = drawn(2, 3, 16, SIZE, SIZE, seed=7)
    cond = dataclasses.replace(make_cond(dit.config, 2, 3), low=low)
    assert torch.equal(predict_clean(refiner, x_t, t, cond), low)
    torch.nn.init.normal_(refiner.head.out.weight, std=0.1)
    wrong = predict_clean(refiner, x_t, t, cond) - low
    other = dataclasses.replace(cond, low=low + 1)
    assert (predict_clean(refiner, x_t, t, other) - (low + 1) - wrong).abs().max() > 1e-3
    with pytest.raises(ValueError, match="without low latents"):
        refiner(x_t, t, make_cond(dit.config, 2, 3))
    with pytest.raises(ValueError, match="with low latents"):
        dit(x_t, t, cond)
