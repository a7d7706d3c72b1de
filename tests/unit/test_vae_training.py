"""The stage of the VAE: losses, windows, its optimiser, its discriminator; textures."""

from datetime import timedelta
from itertools import pairwise

import lightning as L
import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from step_terms import step_terms
from torch.utils.data import DataLoader

from avatar_v.faces.face import FaceCritic
from avatar_v.losses.reconstruction import (
    feature_distance,
    gradient_l1,
    kl_divergence,
    part_weight,
    passing_change,
    psnr,
    temporal_l1,
    weighted_l1,
)
from avatar_v.models.vae import VideoVAE
from avatar_v.objectives.textures import texture_clips
from avatar_v.objectives.vae import TrainVAE, hand_over, kernel_optimizer
from avatar_v.objectives.vae_windows import VAELoss, cropped, draw_corners
from avatar_v.training.adversarial import Adversarial
from avatar_v.training.optim import Optim
from avatar_v.training.roles import Updates
from avatar_v.types import Batch


@pytest.fixture
def vae() -> VideoVAE:
    torch.manual_seed(0)
    return VideoVAE.tiny().eval()


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def clips(num: int = 2, frames: int = 9, size: int = 16) -> Batch:
    video = torch.rand(num, frames, 3, size, size, generator=seeded(5)) * 2 - 1
    box = torch.tensor([0.25, 0.25, 0.75, 0.75]).expand(num, frames, 4)
    names = tuple(str(i) for i in range(num))
    return Batch(
        video=video,
        audio=torch.zeros(num, 640 * frames),
        text=names,
        motion=torch.zeros(num, frames, 16),
        face_box=box,
        mouth_box=torch.zeros(num, frames, 4),
        valid=torch.ones(num, frames, dtype=torch.bool),
        key=names,
        person=names,
        scene=names,
    )


def test_psnr_of_a_known_error():
    video = torch.zeros(2, 1, 3, 4, 4)
    # An error of 0.2 of the range 2 is 20 dB.
    assert torch.allclose(psnr(video + 0.2, video), torch.tensor(20.0), atol=1e-4)


def test_gradient_loss_ignores_offsets_and_sees_edges():
    video, weight = torch.zeros(1, 1, 3, 8, 8), torch.ones(1, 1, 1, 8, 8)
    assert gradient_l1(video + 0.3, video, weight) < 1e-6
    edge = video.clone()
    edge[..., 4:] = 1.0
    assert gradient_l1(edge, video, weight) > 0.01


def test_temporal_loss_ignores_a_steady_error_and_sees_a_rhythm():
    video = torch.rand(1, 8, 3, 4, 4, generator=seeded())
    weight = torch.ones(1, 8, 1, 4, 4)
    assert temporal_l1(video + 0.3, video, weight).abs() < 1e-6
    rhythm = 0.1 * (torch.arange(8) % 2)[None, :, None, None, None]
    assert float(temporal_l1(video + rhythm, video, weight)) == pytest.approx(0.1, rel=1e-4)
    assert float(temporal_l1(video[:, :1] + 0.3, video[:, :1], weight[:, :1])) == 0


def test_weight_moves_the_loss_to_its_pixels():
    video = torch.zeros(1, 1, 3, 4, 4)
    rebuilt = video.clone()
    rebuilt[..., :2] = 1.0
    weight = torch.ones(1, 1, 1, 4, 4)
    assert weighted_l1(rebuilt, video, weight) == pytest.approx(0.5)
    weight[..., :2] = 3.0
    assert weighted_l1(rebuilt, video, weight) == pytest.approx(0.75)


def test_kl_is_that_of_torch():
    mean = torch.randn(1, 2, 16, 2, 2, generator=seeded(1))
    log_var = torch.randn(1, 2, 16, 2, 2, generator=seeded(2))
    posterior = torch.distributions.Normal(mean, (0.5 * log_var).exp())
    unit = torch.distributions.Normal(torch.zeros_like(mean), torch.ones_like(mean))
    expected = torch.distributions.kl_divergence(posterior, unit).mean()
    torch.testing.assert_close(kl_divergence(mean, log_var), expected, atol=1e-5, rtol=1e-5)


def stage(**changes) -> TrainVAE:
    loss = {"window_shares": {5: 1.0}, "texture_fraction": 0.5} | changes
    built = TrainVAE("tiny", Optim(lr=0.01, num_warmup_steps=1), VAELoss(**loss), seed=3)
    built.configure_model()
    return built


def window(batch: Batch, seed: int, **changes) -> tuple[torch.Tensor, torch.Tensor]:
    return stage(**changes).subject.window(batch, seeded(seed))


def test_windows_hold_clips_then_textures_and_repeat_with_the_seed():
    batch = clips(num=2, frames=9)
    video, weight = window(batch, 7)
    again, _ = window(batch, 7)
    other, _ = window(batch, 8)
    assert video.shape == (4, 5, 3, 16, 16)
    assert torch.equal(video, again)
    assert not torch.equal(video, other)
    starts = [s for s in range(5) if torch.equal(video[0], batch.video[0, s : s + 5])]
    assert len(starts) == 1
    # Face box boost 0.5 on the middle quarter of a clip's picture, none on textures.
    assert weight[0, 0, 0, 8, 8] == 1.5
    assert weight[0, 0, 0, 0, 0] == 1.0
    assert torch.equal(weight[2:], torch.ones_like(weight[2:]))


def test_what_passes_quickly_in_a_face_weighs_more():
    batch = clips(num=2, frames=9)
    batch.video[:] = 0
    batch.video[:, 4, :, 8, 8] = 1  # for one frame, inside the face
    batch.video[:, 4, :, 0, 0] = 1  # outside
    whole = {"window_shares": {9: 1.0}, "texture_fraction": 0.0}
    _, weight = window(batch, 7, **whole)
    _, more = window(batch, 7, **whole, change_boost=30.0)
    added = more - weight
    assert added[0, 4, 0, 8, 8] == 30
    assert 0 < added[0, 3, 0, 8, 8] < 10  # its mean over nine frames is not what it shows
    assert added[0, 4, 0, 0, 0] == 0
    assert added[0, :, 0, 4, 4].sum() == 0
    brightening = torch.linspace(-1, 1, 50)[None, :, None, None, None].expand(1, -1, 3, 2, 2)
    assert passing_change(brightening)[:, 4:-4].amax() < 1e-5


def test_stage_without_textures_and_its_errors():
    video, _ = window(clips(), 0, texture_fraction=0.0)
    assert len(video) == 2
    with pytest.raises(ValueError, match="windows of 17 frames do not fit clips of 9"):
        window(clips(), 0, window_shares={17: 1.0})
    with pytest.raises(ValueError, match="texture_fraction"):
        stage(texture_fraction=1.0)
    with pytest.raises(ValueError, match="4k"):
        stage(window_shares={4: 1.0})
    with pytest.raises(ValueError, match="preset is one of"):
        TrainVAE("huge", Optim(lr=0.01, num_warmup_steps=1), VAELoss({5: 1.0}, 0.0))


def test_crops_lie_on_the_face_and_hold_what_the_picture_holds():
    box = torch.tensor([[0.5, 0.25, 0.75, 0.5], [0.9, 0.9, 1.0, 1.0]])[:, None].expand(2, 5, 4)
    draws = [
        draw_corners(box, 64, 32, 8, torch.Generator().manual_seed(seed)) for seed in range(200)
    ]
    corners = torch.stack(draws)
    assert corners.amin(0).tolist()[0] == [12, 12]  # a centre in rows 16 to 32, columns 16 to 24
    assert corners.amax(0).tolist()[0] == [28, 20]
    assert corners.amax((0, 1)).tolist() == [56, 24]  # moved inside the picture
    video = torch.rand(2, 5, 3, 64, 32)
    cut = cropped(video, draws[0], 8)
    top, left = draws[0][1].tolist()
    assert torch.equal(cut[1], video[1, :, :, top : top + 8, left : left + 8])
    with pytest.raises(ValueError, match="do not fit pictures of 64 x 32"):
        draw_corners(box, 64, 32, 40, torch.Generator())
    with pytest.raises(ValueError, match="multiple of 8"):
        VAELoss({5: 1.0}, 0.0, crop=12)


def test_a_step_on_crops_sees_clips_and_textures_of_their_size():
    batch = clips(num=2, frames=9)
    whole, _ = window(batch, 7)
    video, weight = window(batch, 7, crop=8, change_boost=2.0)
    assert video.shape == (4, 5, 3, 8, 8)
    assert weight.shape == (4, 5, 1, 8, 8)
    places = [(y, x) for y in range(9) for x in range(9)]
    assert any(torch.equal(video[0], whole[0, :, :, y : y + 8, x : x + 8]) for y, x in places)
    assert weight[:2].amax() > 1  # the face's
    assert weight[2:].amax() == 1


def test_decoder_only_trains_the_decoder_alone(vae, tmp_path):
    vae.save_pretrained(tmp_path)
    optim, loss = Optim(lr=0.01, num_warmup_steps=1), VAELoss({5: 1.0}, 0.0)
    kept = TrainVAE("tiny", optim, loss, init_from=str(tmp_path), decoder_only=True)
    kept.configure_model()
    assert kept.vae.hash() == vae.hash()
    trained = {n for n, p in kept.vae.named_parameters() if p.requires_grad}
    assert trained == {
        n for n, _ in vae.named_parameters() if "core.decoder" in n or "post_quant" in n
    }
    num_stepped = sum(len(g["params"]) for g in kernel_optimizer(kept.vae.core, optim).param_groups)
    assert num_stepped == len(trained)
    with pytest.raises(ValueError, match="needs init_from"):
        TrainVAE("tiny", optim, loss, decoder_only=True)
    with pytest.raises(ValueError, match="no VAE of the preset 'small'"):
        TrainVAE("small", optim, loss, init_from=str(tmp_path)).configure_model()


def test_fresh_weights_depend_on_the_seed_alone():
    torch.manual_seed(1)
    first = stage().vae.hash()
    torch.manual_seed(2)
    assert stage().vae.hash() == first


def test_optimizer_moves_every_parameter_and_learns(vae):
    vae.train()
    optimizer = kernel_optimizer(vae.core, Optim(lr=0.01, num_warmup_steps=1))
    for group in optimizer.param_groups:
        group["lr"] = 0.01
    before = {name: p.detach().clone() for name, p in vae.named_parameters()}
    video = texture_clips(2, 5, 16, generator=seeded())
    losses = []
    for _ in range(30):
        mean, log_var = vae.posterior(video)
        sample = mean + (0.5 * log_var).exp() * torch.randn(mean.shape, generator=seeded())
        loss = (vae.decode(sample, clamp=False) - video).abs().mean()
        optimizer.zero_grad()
        loss.backward()
        hand_over(optimizer)
        optimizer.step()
        losses.append(loss.item())
    still = [n for n, p in vae.named_parameters() if torch.equal(p, before[n])]
    assert still == []
    assert losses[-1] < 0.7 * losses[0]


def test_kernels_learn_from_what_is_left_behind_accumulated_backward_passes(vae):
    optimizer = kernel_optimizer(vae.core, Optim(lr=0.01, num_warmup_steps=1))
    matrices = next(g for g in optimizer.param_groups if g["muon"])["params"]
    latents = torch.randn(1, 2, 16, 2, 2, generator=seeded())
    found = []
    for num, share in ((1, 1.0), (2, 0.25)):
        for _ in range(num):
            vae.decode(latents, clamp=False).sum().backward()
        for p in vae.parameters():  # as DDP averages over ranks
            if p.grad is not None:
                p.grad *= share
        hand_over(optimizer)
        found.append([m.grad.clone() for m in matrices if m.grad is not None])
        optimizer.zero_grad()
        assert all(m.grad is None for m in matrices)
    assert len(found[0]) == len(found[1]) > 0
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a / 2, b, atol=1e-6, rtol=1e-5)


def test_a_window_of_one_frame_is_refused_where_ranks_wait_for_all_gradients(tmp_path):
    shares, where = {1: 0.1, 5: 0.9}, {"accelerator": "cpu", "devices": 1, "logger": False}
    kept = TrainVAE("tiny", Optim(0.1, 1), VAELoss(shares, texture_fraction=0.0))
    kept.trainer = L.Trainer(strategy="ddp", default_root_dir=tmp_path, **where)
    with pytest.raises(ValueError, match="use strategy ddp_find_unused_parameters_true"):
        kept.configure_model()
    kept.trainer = L.Trainer(
        strategy="ddp_find_unused_parameters_true", default_root_dir=tmp_path, **where
    )
    kept.configure_model()


def test_textures_are_seeded_move_and_differ():
    video = texture_clips(6, 5, 32, generator=seeded(1))
    assert video.shape == (6, 5, 3, 32, 32)
    assert video.abs().max() <= 1
    assert torch.equal(video, texture_clips(6, 5, 32, generator=seeded(1)))
    assert not torch.equal(video, texture_clips(6, 5, 32, generator=seeded(2)))
    assert (video[:, 0] - video[:, -1]).abs().mean() > 0.01
    assert (video[0] - video[1]).abs().mean() > 0.05


def test_textures_have_a_falling_spectrum():
    """Photographs have amplitude about 1/f: power per ring falls by about 4 per octave."""
    pictures = texture_clips(32, 1, 64, generator=seeded(4))[:, 0].mean(1)
    power = torch.fft.rfft2(pictures - pictures.mean((1, 2), keepdim=True)).abs().square().mean(0)
    radius = (torch.fft.fftfreq(64)[:, None] ** 2 + torch.fft.rfftfreq(64) ** 2).sqrt() * 64
    rings = [power[(radius >= r) & (radius < 2 * r)].mean() for r in (2, 4, 8, 16)]
    ratios = [float(a / b) for a, b in pairwise(rings)]
    assert all(2 < ratio < 16 for ratio in ratios), ratios


def test_one_frame_of_texture_is_finite():
    assert torch.isfinite(texture_clips(3, 1, 16, generator=seeded())).all()


def adversarial(weight: float, **numbers) -> TrainVAE:
    built = TrainVAE(
        "tiny",
        Optim(lr=0.01, num_warmup_steps=0),
        VAELoss({5: 1.0}, 0.5, feature_weight=0.1),
        adversarial=Adversarial({0: weight}, width=8, num_layers=1, **numbers),
    )
    built.configure_model()
    return built


def test_the_adversarial_term_reaches_the_vae_and_not_its_discriminator():
    stages = [adversarial(weight) for weight in (1.0, 0.0)]
    before = {n: p.detach().clone() for n, p in stages[0].named_parameters()}
    for built in stages:
        (terms,) = step_terms(built, clips(), 1)
        assert {"features", "generator", "discriminator"} <= set(terms)
        assert built.step == built.num_updates("discriminator") == 1
        assert {n.partition(".")[0] for n in built.averaged_names()} == {"vae"}
    with_term, without = (dict(built.named_parameters()) for built in stages)
    out = "vae.core.decoder.conv_out.bias"
    assert not torch.equal(with_term[out], before[out])
    assert not torch.equal(with_term[out], without[out])
    names = [n for n in before if n.startswith("discriminator.")]
    assert all(torch.equal(with_term[n], without[n]) for n in names)
    assert not torch.equal(with_term[names[0]], before[names[0]])
    assert all(torch.equal(p, before[n]) for n, p in with_term.items() if n.startswith("face_"))


def test_the_discriminator_of_pictures_learns_to_tell():
    losses = [
        terms["discriminator"] for terms in step_terms(adversarial(0.0, lr=1e-2), clips(), 20)
    ]
    assert sum(losses[-3:]) < 0.9 * sum(losses[:3])
    with pytest.raises(ValueError, match="set the trainer's options"):
        TrainVAE(
            "tiny", Optim(lr=0.01, num_warmup_steps=1), VAELoss({5: 1.0}, 0.0), updates=Updates()
        )
    by_clock = ModelCheckpoint(train_time_interval=timedelta(minutes=2))
    for length, callbacks, match in (
        ({"max_steps": 1}, [by_clock], "set every_n_train_steps of ModelCheckpoint"),
        ({"max_epochs": 1}, [], r"its length is by steps: give trainer\.max_steps"),
    ):
        trainer = L.Trainer(accelerator="cpu", logger=False, callbacks=callbacks, **length)
        with pytest.raises(ValueError, match=match):
            trainer.fit(adversarial(0.0), DataLoader([clips()], batch_size=None))


def test_features_see_a_lost_edge_and_parts_have_the_weight_of_their_pixels():
    torch.manual_seed(0)
    critic = FaceCritic().eval()
    video = torch.zeros(1, 1, 3, 64, 64)
    video[..., 32:] = 1
    blurred = torch.nn.functional.avg_pool3d(video, (1, 1, 9), 1, (0, 0, 4))
    near, far = (float(feature_distance(critic, x, video)) for x in (video, blurred))
    assert near == 0 < far
    weight = torch.ones(1, 1, 1, 8, 8)
    weight[..., :4, 4:] = 5
    parts = part_weight(weight, torch.zeros(1, 1, 1, 2, 2))
    assert parts[0, 0, 0].tolist() == [[1, 5], [1, 1]]
