"""objectives/refiner and refiner_adversarial: what the refiner sees, and its discriminator."""

import dataclasses
from pathlib import Path

import pytest
import torch
from step_terms import step_terms
from torch import Tensor

from avatar_v.base.video_format import VideoFormat
from avatar_v.losses.adversarial import discriminator_loss, generator_loss, r1_loss
from avatar_v.models.discriminator import PatchDiscriminator
from avatar_v.models.refiner import enlarge, low_latents, reduce
from avatar_v.models.vae import VideoVAE
from avatar_v.objectives.refiner import Refinement, Refiner
from avatar_v.objectives.refiner_adversarial import AdversarialRefiner
from avatar_v.shards.datamodule import ShardData
from avatar_v.shards.encode import encode_folder
from avatar_v.shards.loader import collate, read_clip, read_folder
from avatar_v.shards.writer import write_index, write_shard
from avatar_v.training.adversarial import Adversarial
from avatar_v.training.optim import Optim
from avatar_v.training.settings import Models, Objective
from avatar_v.types import Batch
from avatar_v.weights.random import make_batch
from random_models import randomise
from tiny_run import make_clip, make_shards

OPTIM = Optim(lr=1e-3, num_warmup_steps=1)
OBJECTIVE = Objective({0: 5}, first_share=0.5, image_share=0.5, suffix_share=0.5)
NUMBERS = Refinement(temporal_window=1, motion_dropout=0.0, reference_dropout=0.0)


def refiner(numbers: Refinement = NUMBERS) -> Refiner:
    stage = Refiner(Models("tiny", motion_stats="small"), OPTIM, OBJECTIVE, 1.0, 4.0, numbers)
    stage.configure_model()
    return stage


def adversarial(numbers: Adversarial) -> AdversarialRefiner:
    optim = dataclasses.replace(OPTIM, num_warmup_steps=0)
    models = Models("tiny", motion_stats="small")
    stage = AdversarialRefiner(models, optim, OBJECTIVE, 1.0, 4.0, NUMBERS, numbers)
    stage.configure_model()
    randomise(stage.dit)
    return stage


@pytest.fixture
def batch() -> Batch:
    batch = make_batch(3, 25, 32, latent_channels=16, has_reference=True)
    assert batch.latents is not None
    generator = torch.Generator().manual_seed(9)
    low = batch.latents + 0.3 * torch.randn(batch.latents.shape, generator=generator)
    return dataclasses.replace(batch, low=low)


def loss_of(
    stage: Refiner | AdversarialRefiner, batch: Batch, index: int = 0
) -> tuple[Tensor, dict[str, Tensor]]:
    return stage.loss_at(batch, index)


def test_it_starts_as_the_enlarged_video(batch: Batch) -> None:
    stage = refiner()
    loss, logs = loss_of(stage, batch)
    assert loss.item() == pytest.approx(logs["low"].item(), rel=1e-6)
    loss.backward()
    assert stage.dit.head.out.weight.grad is not None
    assert stage.dit.head.out.weight.grad.abs().max() > 0


def test_everything_it_reads_moves_its_loss(batch: Batch) -> None:
    stage = refiner(dataclasses.replace(NUMBERS, one_step_share=1.0))
    randomise(stage.dit)
    loss = loss_of(stage, batch)[0]
    assert batch.reference is not None
    assert batch.reference.latents is not None
    assert batch.low is not None
    other = dataclasses.replace(batch.reference, latents=-batch.reference.latents)
    for change in (
        {"reference": other},
        {"audio": batch.audio.flip(1)},
        {"motion": 1 - batch.motion},
        {"low": batch.low.flip(-1)},
    ):
        changed = loss_of(stage, dataclasses.replace(batch, **change))[0]
        assert abs(float((changed - loss).detach())) > 1e-6, change.keys()


def test_nothing_is_given_clean_and_times_end_at_sigma(batch: Batch) -> None:
    stage = refiner(Refinement(one_step_share=0.5))
    many = dataclasses.replace(stage.begin(batch, 0), clean=torch.zeros(2000, 3, 1, 1, 1))
    t = stage.subject.draw_refinement_times(many)
    assert (t == t[:, :1]).all()
    t = t[:, 0]
    assert float(t.max()) == pytest.approx(0.6)
    assert float(t.min()) > 0
    assert 0.45 < float((t == t.max()).float().mean()) < 0.55
    for i in range(20):
        windows = stage.subject.draw_windows(batch, stage.draws(i))
        assert bool(windows.scored().all())


def test_bad_data_is_refused(batch: Batch) -> None:
    with pytest.raises(ValueError, match="pairs"):
        loss_of(refiner(), dataclasses.replace(batch, reference=None))
    with pytest.raises(ValueError, match="shards encode --low"):
        loss_of(refiner(), dataclasses.replace(batch, low=None))
    with pytest.raises(ValueError, match=r"factor of 2.25, and refinement.factor is 2.* --low 2"):
        loss_of(refiner(), dataclasses.replace(batch, low_factor=2.25))
    with pytest.raises(ValueError, match="sigma"):
        Refinement(sigma=0.0)


def test_pictures_that_the_factor_leaves_no_whole_cells_of_are_refused(tmp_path: Path) -> None:
    """Before the first step. 2.25: both sizes are whole tokens at multiples of 144 alone."""
    large = VideoFormat(144, 288)
    for folder, video in (("whole", large), ("not", VideoFormat(144, 240))):
        write_shard(tmp_path / folder / "a.tar", [make_clip(i, video) for i in range(2)])
    stage = refiner(dataclasses.replace(NUMBERS, factor=2.25))
    stage.subject.check_data(stage, ShardData(str(tmp_path / "whole"), batch_size=1), 1)
    with pytest.raises(ValueError, match="pictures of 144 x 240 pixels are no whole tokens of 144"):
        stage.subject.check_data(stage, ShardData(str(tmp_path / "not"), batch_size=1), 1)


def test_low_latents_of_shards_are_those_of_the_video(tmp_path: Path) -> None:
    make_shards(tmp_path)
    vae = VideoVAE.tiny()
    vae.save_pretrained(tmp_path / "vae")
    shards, out = tmp_path / "shards" / "tiny" / "validation", tmp_path / "latents"
    encode_folder(shards, out, tmp_path / "vae", low=2.0, drop_video=True)
    with pytest.raises(ValueError, match="other settings"):
        encode_folder(shards, out, tmp_path / "vae", drop_video=True)
    with pytest.raises(ValueError, match="--low is above 1 and at most 8"):
        encode_folder(shards, tmp_path / "other", tmp_path / "vae", low=1.0)
    found = collate([read_clip(clip) for clip in read_folder(out)])
    video = collate([read_clip(clip) for clip in read_folder(shards)]).video
    assert video is not None
    assert found.low is not None
    assert found.low_factor == 2
    expected = low_latents(vae.eval(), video)
    # fp16 of numbers below 10
    torch.testing.assert_close(found.low, expected, atol=1e-2, rtol=1e-3)
    assert found.latents is not None
    assert (found.low - found.latents).abs().max() > 0.01


def test_latents_of_other_clips_are_not_kept(tmp_path: Path) -> None:
    VideoVAE.tiny().save_pretrained(tmp_path / "vae")
    words = tmp_path / "shards", tmp_path / "latents", tmp_path / "vae"
    write_shard(words[0] / "a.tar", [make_clip(0)])
    assert encode_folder(*words) == encode_folder(*words)
    write_shard(words[0] / "a.tar", [dataclasses.replace(make_clip(1), key=make_clip(0).key)])
    with pytest.raises(ValueError, match=r"a\.tar was not made of the clips of"):
        encode_folder(*words)
    for file in words[0].iterdir():
        file.rename(file.with_name(file.name.replace("a.", "b.")))
    write_index(words[0] / "b.tar")
    with pytest.raises(ValueError, match=r"a\.tar was made of other shards: choose"):
        encode_folder(*words)


def test_enlarging_undoes_reducing_of_what_is_flat() -> None:
    video = torch.linspace(-1, 1, 6).view(1, 2, 3, 1, 1).expand(1, 2, 3, 8, 8)
    torch.testing.assert_close(enlarge(reduce(video)), video, atol=1e-6, rtol=0)
    with pytest.raises(ValueError, match="multiples of 2"):
        reduce(torch.zeros(1, 1, 3, 7, 8))


def test_hinge_losses_by_hand() -> None:
    cell = torch.ones(1, 1, 1, 1, 2)
    weight = torch.tensor([1.0, 3.0]).view_as(cell)
    real, fake = torch.tensor([2.0, 0.5]).view_as(cell), torch.tensor([-2.0, 1.0]).view_as(cell)
    # cells: 0 + 0 and 0.5 + 2, the second counts three times
    assert discriminator_loss(real, fake, weight).item() == pytest.approx(3 * 2.5 / 4)
    assert generator_loss(fake, weight).item() == pytest.approx(-(-2 + 3 * 1) / 4)
    assert r1_loss(real, fake, weight).item() == pytest.approx((16 + 3 * 0.25) / 4)


def test_the_discriminator_sees_what_is_near_alone() -> None:
    discriminator = PatchDiscriminator(16, width=8, num_layers=1)
    x = torch.randn(1, 5, 16, 6, 6)
    other = x.clone()
    other[:, 0, :, 0, 0] += 1
    moved = (discriminator(x, x) - discriminator(other, x)).abs()
    assert discriminator(x, x).shape == (1, 5, 1, 6, 6)
    assert moved[:, 0, :, 0, 0] > 0
    with pytest.raises(ValueError, match="multiple of 8"):
        PatchDiscriminator(16, width=12)


def test_both_roles_are_updated_and_the_term_reaches_the_refiner(batch: Batch) -> None:
    stages = [adversarial(Adversarial({0: w}, width=8, num_layers=1)) for w in (1.0, 0.0)]
    before = {n: p.detach().clone() for n, p in stages[0].named_parameters()}
    for stage in stages:
        (terms,) = step_terms(stage, batch, 1)
        assert set(terms) == {"error", "generator", "discriminator"}
        assert stage.step == stage.num_updates("discriminator") == 1
        names = {n.partition(".")[0] for n in stage.averaged_names()}
        assert names == {"dit", "conditioner"}
    with_term, without = (dict(stage.named_parameters()) for stage in stages)
    head, first = "dit.head.out.weight", "discriminator.layers.0.weight"
    assert not torch.equal(with_term[first], before[first])
    # the discriminator's update comes first, from the same refined latents
    assert torch.equal(with_term[first], without[first])
    assert not torch.equal(with_term[head], before[head])
    assert not torch.equal(with_term[head], without[head])


def test_validation_updates_nothing(batch: Batch) -> None:
    stage = adversarial(Adversarial({0: 1.0}, width=8, num_layers=1)).eval()
    before = {n: p.detach().clone() for n, p in stage.named_parameters()}
    with torch.no_grad():
        loss, logs = loss_of(stage, batch)
    assert set(logs) == {"error", "generator"}
    assert loss.item() == pytest.approx((logs["error"] + logs["generator"]).item())
    assert all(torch.equal(p, before[n]) for n, p in stage.named_parameters())


def test_the_discriminator_learns_to_tell(batch: Batch) -> None:
    stage = adversarial(Adversarial({0: 0.0}, width=8, num_layers=1, lr=1e-2))
    losses = [terms["discriminator"] for terms in step_terms(stage, batch, 20)]
    assert sum(losses[-3:]) < 0.9 * sum(losses[:3])
    assert any(key.startswith("discriminator.") for key in stage.state_dict())
