"""Stage 0: training the video autoencoder on world clips and procedural textures.

Reconstruction (L1 plus the L1 of image gradients at three scales and of changes in time, stronger
on the face, the mouth and what passes quickly in a face) and a mild KL term. Short windows are
enough, since the causal network's cache carries the past; a share of every batch is textures, so
that it also codes what the world never shows. These errors give the mean of all details that fit:
against blur there are the distance of feature maps of a critic, and a discriminator of pictures,
a role of its own that is updated before the VAE in every batch. Writing the weights, with the
statistics of their latents, is callbacks/export_vae.py's.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import LRScheduler

from avatar_v.faces.face import FaceCritic
from avatar_v.losses.adversarial import discriminator_loss, generator_loss, r1_loss
from avatar_v.losses.reconstruction import (
    feature_distance,
    gradient_l1,
    kl_divergence,
    part_weight,
    psnr,
    temporal_l1,
    weighted_l1,
)
from avatar_v.models.discriminator import PictureDiscriminator
from avatar_v.models.vae import Video, VideoVAE
from avatar_v.objectives.vae_windows import FrameSubject, VAELoss, VideoWindows, require_video
from avatar_v.parallel.trainer import check_replicas
from avatar_v.training.adversarial import DISCRIMINATOR, Adversarial
from avatar_v.training.batch import Logs, noise_like
from avatar_v.training.engine import Engine
from avatar_v.training.optim import MuonAdamW, Optim, warmup_cosine
from avatar_v.training.roles import STUDENT, Role, Updates
from avatar_v.training.windows import value_at
from avatar_v.types import Batch


@dataclass(frozen=True)
class Rebuilt:
    """What the VAE makes of windows, its error, and the terms of this to log."""

    video: Video
    error: Tensor
    logs: Logs


class TrainVAE(Engine[VideoWindows]):
    """Trains a `VideoVAE` of a preset, or only the decoder of a trained one.

    Args:
        preset: "small" or "tiny".
        init_from: folder of a trained VAE of that preset to start from; None starts fresh.
        decoder_only: keep the encoder and the latent statistics, so that latents made before
            stay valid while pictures get sharper. Needs ``init_from``.
        optim: numbers of Muon (inner convolutions) and AdamW (the rest).
        loss: weights of the loss and shares of windows and textures.
        seed: of fresh weights and of every draw of a step.
        adversarial: a discriminator of pictures; None for none.
        updates: accumulation and clipping where there is one: the trainer leaves them to it.
    """

    subject: FrameSubject
    vae: VideoVAE
    discriminator: PictureDiscriminator
    face_critic: FaceCritic

    def __init__(
        self,
        preset: str,
        optim: Optim,
        loss: VAELoss,
        init_from: str | None = None,
        decoder_only: bool = False,
        seed: int = 0,
        adversarial: Adversarial | None = None,
        updates: Updates | None = None,
    ) -> None:
        if decoder_only and init_from is None:
            raise ValueError("decoder_only needs init_from: a trained encoder to keep")
        if updates is not None and adversarial is None:
            raise ValueError("updates are of a VAE with a discriminator: set the trainer's options")
        super().__init__(FrameSubject(preset, init_from, loss), optim, seed, updates=updates)
        self.decoder_only, self.weights, self.adversarial = decoder_only, loss, adversarial

    def roles(self) -> Mapping[str, Role]:
        clip = self.updates.gradient_clip_val if self.adversarial else None
        student = Role(("vae",), self.optim, ema=True, export=True, gradient_clip=clip)
        return {STUDENT: student} | (
            {DISCRIMINATOR: self.adversarial.role()} if self.adversarial else {}
        )

    def build_roles(self) -> None:
        """ValueError for a strategy that cannot train windows of one frame, which pass by all that
        convolves in time."""
        if self.weights.window_shares.get(1):
            check_replicas(self._trainer)
        if self.weights.feature_weight > 0:
            self.face_critic = FaceCritic.as_objective("face")
        if self.adversarial is not None:
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(self.seed)
                self.discriminator = PictureDiscriminator(
                    width=self.adversarial.width, num_layers=self.adversarial.num_layers
                )

    def select_trainable(self) -> None:
        if self.decoder_only:
            self.vae.core.encoder.requires_grad_(False)
            self.vae.core.quant_conv.requires_grad_(False)

    def optimizer_for(
        self, optim: Optim, names: tuple[str, ...], num_steps: int
    ) -> tuple[torch.optim.Optimizer, LRScheduler]:
        if names[0].startswith(DISCRIMINATOR):
            return super().optimizer_for(optim, names, num_steps)
        optimizer = kernel_optimizer(self.vae.core, optim)
        return optimizer, warmup_cosine(optimizer, optim, num_steps)

    def on_before_optimizer_step(self, optimizer: torch.optim.Optimizer) -> None:
        hand_over(optimizer)
        super().on_before_optimizer_step(optimizer)

    def iterate(self, batch: VideoWindows) -> tuple[Tensor, Logs]:
        """With a discriminator one update of it, then one of the VAE against it."""
        if self.adversarial is None:
            return self.loss(batch)
        rebuilt = self.rebuild(batch)
        with self.only(DISCRIMINATOR):
            learned = self.discriminator_loss(rebuilt, batch)
            self.update(DISCRIMINATOR, learned)
        with self.only(STUDENT):
            loss, logs = self.adversarial_loss(rebuilt, batch, self.adversarial)
            self.update(STUDENT, loss)
        return loss, {**logs, "discriminator": learned}

    def loss(self, batch: VideoWindows) -> tuple[Tensor, Logs]:
        """Reconstruction, features and KL, and the adversarial term where there is one; beside the
        terms the posterior's mean standard deviation."""
        rebuilt = self.rebuild(batch)
        if self.adversarial is None:
            return rebuilt.error, rebuilt.logs
        return self.adversarial_loss(rebuilt, batch, self.adversarial)

    def rebuild(self, batch: VideoWindows) -> Rebuilt:
        video, weight, w = batch.video, batch.weight, self.weights
        with torch.set_grad_enabled(torch.is_grad_enabled() and not self.decoder_only):
            mean, log_var = self.vae.posterior(video)
        noise = torch.randn(mean.shape, generator=batch.generator).to(mean)
        sample = mean + (0.5 * log_var).exp() * noise
        rebuilt = self.vae.decode(self.vae.normalise(sample), clamp=False)
        terms = {
            "l1": weighted_l1(rebuilt, video, weight),
            "gradient": gradient_l1(rebuilt, video, weight),
            "temporal": temporal_l1(rebuilt, video, weight),
            "kl": kl_divergence(mean, log_var),
        }
        loss = terms["l1"] + w.gradient_weight * terms["gradient"] + w.kl_weight * terms["kl"]
        loss = loss + w.temporal_weight * terms["temporal"]
        if w.feature_weight > 0:
            terms["features"] = feature_distance(self.face_critic, rebuilt, video)
            loss = loss + w.feature_weight * terms["features"]
        return Rebuilt(rebuilt, loss, {**terms, "std": (0.5 * log_var).exp().mean()})

    def adversarial_loss(
        self, rebuilt: Rebuilt, batch: VideoWindows, numbers: Adversarial
    ) -> tuple[Tensor, Logs]:
        """The error and the adversarial term, each part of the picture by its weight."""
        made = self.discriminator(rebuilt.video)
        term = generator_loss(made, part_weight(batch.weight, made))
        weight = value_at(numbers.weight, self.step)
        return rebuilt.error + weight * term, {**rebuilt.logs, "generator": term}

    def discriminator_loss(self, rebuilt: Rebuilt, batch: VideoWindows) -> Tensor:
        """Hinge loss of true and rebuilt pictures, and the approximated R1."""
        assert self.adversarial is not None
        noise = self.adversarial.r1_noise * noise_like(batch.video, batch.generator)
        real, fake = (self.discriminator(x) for x in (batch.video, rebuilt.video.detach()))
        weight = part_weight(batch.weight, real)
        r1 = r1_loss(real, self.discriminator(batch.video + noise), weight)
        return discriminator_loss(real, fake, weight) + self.adversarial.r1_weight * r1

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        """PSNR of whole clips from the posterior's mean."""
        video = require_video(batch)
        quality = psnr(self.vae.decode(self.vae.encode(video)), video)
        self.log("val/psnr", quality.mean(), prog_bar=True, batch_size=len(video), sync_dist=True)


def latent_stats(vae: VideoVAE, videos: Iterable[Video]) -> tuple[list[float], list[float]]:
    """Per-channel mean and standard deviation of the raw latents of all ``videos``, in fp64."""
    count = 0
    total = squares = torch.zeros(vae.latent_channels, dtype=torch.float64)
    for video in videos:
        raw = vae.posterior(video.to(vae.latents_mean.device))[0].double().cpu()
        count += raw.numel() // raw.shape[2]
        total = total + raw.sum((0, 1, 3, 4))
        squares = squares + raw.square().sum((0, 1, 3, 4))
    if count == 0:
        raise ValueError("latent statistics need at least one video")
    mean = total / count
    std = (squares / count - mean**2).clamp_min(1e-12).sqrt()
    return mean.tolist(), std.tolist()


def kernel_optimizer(core: nn.Module, optim: Optim) -> MuonAdamW:
    """Muon for the inner convolutions, as matrices (out, kernel · in); AdamW for the first and
    last layers, norms and biases."""
    outer = ("encoder.conv_in.", "decoder.conv_out.", "quant_conv.")
    kernels, rest = [], []
    for name, parameter in core.named_parameters():
        if not parameter.requires_grad:
            continue
        inner = parameter.ndim >= 4 and name.endswith("weight")
        inner = inner and not any(part in name for part in outer)
        (kernels if inner else rest).append(parameter)
    groups = [
        {
            "params": [_Matrix.of(kernel) for kernel in kernels],
            "lr": optim.lr * optim.muon_lr_scale,
            "weight_decay": optim.weight_decay,
            "muon": True,
        },
        {"params": rest, "lr": optim.lr, "weight_decay": 0.0, "muon": False},
    ]
    return MuonAdamW(groups, betas=optim.betas, momentum=optim.muon_momentum)


def hand_over(optimizer: torch.optim.Optimizer) -> None:
    """Let matrices take over the gradients of their kernels, which DDP averages only behind the
    backward pass. Call it before each step of `kernel_optimizer`."""
    for matrix in (p for group in optimizer.param_groups if group["muon"] for p in group["params"]):
        if isinstance(matrix, _Matrix) and matrix.kernel.grad is not None:
            matrix.grad = _rows(matrix.kernel.grad).reshape(matrix.shape)
            matrix.kernel.grad = None


class _Matrix(nn.Parameter):
    """A kernel as a matrix that shares its storage."""

    kernel: nn.Parameter

    @classmethod
    def of(cls, kernel: nn.Parameter) -> "_Matrix":
        made = cls(_rows(kernel.data).view(kernel.shape[0], -1))
        made.kernel = kernel
        return made


def _rows(kernel: Tensor) -> Tensor:
    """Axes in the order of memory: 3D kernels are stored channels last (models/vae.py)."""
    return kernel.movedim(1, -1) if kernel.ndim == 5 else kernel
