"""Losses on a device apart from the CPU: nothing is mixed, and the host never waits."""

import dataclasses
from pathlib import Path

import pytest
import torch
from untrained import untrained_critics

from avatar_v.models.config import DiTConfig
from avatar_v.models.vae import VideoVAE
from avatar_v.objectives.a2v import A2V
from avatar_v.objectives.t2v import T2V
from avatar_v.training.engine import Engine
from avatar_v.training.optim import Optim
from avatar_v.training.perceptual import TERMS, PerceptualLosses, PerceptualTerms, Predicted
from avatar_v.training.settings import Models, Objective
from avatar_v.weights.random import make_batch, motion_stats
from elsewhere import elsewhere, module_there, there
from random_models import make_cond, make_dit, make_reference

OPTIM = Optim(lr=1e-3, num_warmup_steps=1)
OBJECTIVE = Objective({0: 5}, first_share=0.5, image_share=0.5, audio_dropout=0.1)


def t2v() -> Engine:
    return T2V(Models("tiny"), OPTIM, OBJECTIVE)


def a2v() -> Engine:
    return A2V(Models("tiny"), OPTIM, OBJECTIVE, face_boost=1.0, mouth_boost=2.0)


@pytest.mark.parametrize("make", [t2v, a2v])
def test_a_step_is_the_same_on_another_device_and_never_waits(make) -> None:
    batch = make_batch(3, 25, 32, latent_channels=16, has_reference=True)
    losses = []
    for elsewhere_too in (False, True):
        stage = make()
        stage.configure_model()
        given = batch
        with elsewhere():
            if elsewhere_too:
                module_there(stage)
                given = batch.map(there)
            loss, _ = stage.loss_at(given, 1)
            loss.backward()
        losses.append(loss.local if elsewhere_too else loss.detach())
    torch.testing.assert_close(*losses)


@pytest.mark.parametrize("as_latents", [True, False])
def test_perceptual_losses_are_the_same_on_another_device_and_never_wait(
    tmp_path: Path, as_latents: bool
) -> None:
    critics = untrained_critics(tmp_path)
    terms = PerceptualTerms(**{name: {0: 1.0} for name in TERMS}, **critics)
    reference = make_batch(3, 25, 32, latent_channels=16 if as_latents else None)
    generator = torch.Generator().manual_seed(1)
    audio = 0.1 * torch.randn(3, 640 * 29, generator=generator)
    clips = dataclasses.replace(make_batch(3, 29, 32), reference=reference, audio=audio)
    found = []
    for move in (lambda x: x, there):
        torch.manual_seed(0)  # of the VAE
        losses, vae = PerceptualLosses(terms), VideoVAE.tiny().requires_grad_(False)
        generator = torch.Generator().manual_seed(0)
        clean, motion = torch.randn(3, 6, 16, 4, 4, generator=generator), torch.ones(3, 6, 64)
        given = Predicted(
            latents=move(clean + 0.1).requires_grad_(True),
            clean=move(clean),
            t=torch.tensor([0.1, 0.9, 0.3]),
            motion=move(0 * motion),
            motion_stats=motion_stats(),
            clips=clips.map(move),
            start=torch.tensor([0, 1, 1]),
        )
        with elsewhere():
            if move is there:
                module_there(vae)
                for critic in losses.critics.values():
                    module_there(critic)
            loss, logs = losses.loss(given, vae, 0, generator)
            loss.backward()
        assert len(logs) == len(TERMS)
        found.append({n: x.local if move is there else x.detach() for n, x in logs.items()})
    torch.testing.assert_close(*found, rtol=1e-3, atol=1e-5)  # sums in another order


def test_samples_without_their_reference_are_found_without_waiting() -> None:
    dit = make_dit(DiTConfig.tiny())
    valid = torch.tensor([[True, True, True], [True, False, True], [True, True, True]])
    past = dit.encode_reference(make_reference(dit.config, valid, size=4))
    assert past is not None
    keep = torch.tensor([True, True, False])
    cond = dataclasses.replace(make_cond(dit.config, 3, 2), reference_keep=keep)
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(3, 2, dit.config.latent_channels, 4, 4, generator=generator)
    t = torch.rand(3, 2, generator=generator)
    found = [dit(x, t, cond, past=past).detach()]
    with elsewhere():
        module_there(dit)
        moved = dataclasses.replace(past.map(there), mask=past.mask)
        given = dataclasses.replace(cond.map(there), reference_keep=keep)
        found.append(dit(there(x), there(t), given, past=moved).local)
    torch.testing.assert_close(*found)


def test_the_device_refuses_mixtures_and_waiting() -> None:
    x, index = there(torch.arange(6.0)), torch.tensor([0, 2])
    with elsewhere():
        assert torch.equal((x[index] + 1).local, torch.tensor([1.0, 3.0]))
        assert (x * torch.tensor(2.0)).device == x.device
        for refused, said in (
            (lambda: x + torch.arange(6.0), "same device"),
            (lambda: torch.arange(6.0)[there(index)], "same device"),
            (lambda: float(x[0]), "waits"),
            (lambda: bool((x > 0).any()), "waits"),
            (lambda: x[x > 2], "waits"),
            (lambda: x.cpu(), "waits"),
        ):
            with pytest.raises(RuntimeError, match=said):
                refused()
