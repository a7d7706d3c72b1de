"""Stage 0: training the video autoencoder on world clips and procedural textures.

Reconstruction (L1 plus the L1 of image gradients at three scales and of changes in time, stronger
on the face, the mouth and what passes quickly in a face) and a mild KL term. Short windows are
enough, since the causal network's cache carries the past; a share of every batch is textures, so
that it also codes what the world never shows. Writing the weights, with the statistics of their
latents, is callbacks/export_vae.py's.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import lightning as L
import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.optim.lr_scheduler import LRScheduler

from avatar_v.base import checks
from avatar_v.losses.flow import box_cover, region_weight
from avatar_v.models.vae import Latents, Video, VideoVAE
from avatar_v.objectives.textures import texture_clips
from avatar_v.training.batch import Draws, Logs
from avatar_v.training.engine import Engine
from avatar_v.training.optim import MuonAdamW, Optim, warmup_cosine
from avatar_v.training.roles import STUDENT, Role
from avatar_v.training.subject import Subject
from avatar_v.types import Batch, num_latents


@dataclass(frozen=True)
class VAELoss:
    """Weights of the loss, and what a step sees."""

    window_shares: dict[int, float]  # {frames: share of the steps}, frames 4k + 1
    texture_fraction: float  # of a batch: textures beside the data's clips
    gradient_weight: float = 0.5
    temporal_weight: float = 0.0  # of the error's change from frame to frame
    kl_weight: float = 1e-4
    face_boost: float = 0.5  # added to a pixel's weight of 1 inside the face box
    mouth_boost: float = 2.0  # added inside the mouth box
    change_boost: float = 0.0  # added where a face's pixel is briefly unlike itself: lids, lips
    crop: int | None = None  # side of a square around a point of the face; None: whole pictures

    def __post_init__(self) -> None:
        for frames in self.window_shares:
            num_latents(frames)
        checks.entries(checks.weight, "window_shares", self.window_shares)
        if not any(self.window_shares.values()):
            raise ValueError(f"window_shares needs a share above 0, got {self.window_shares}")
        names = ("gradient_weight", "temporal_weight", "kl_weight", "face_boost", "mouth_boost")
        checks.each(checks.weight, self, (*names, "change_boost"))
        checks.decay("texture_fraction", self.texture_fraction)
        if self.crop is not None and (self.crop < 8 or self.crop % 8):
            raise ValueError(f"crop is a multiple of 8 pixels (the VAE's factor), got {self.crop}")


@dataclass(frozen=True)
class VideoWindows:
    """The windows of video that a step of the VAE trains on."""

    video: Video
    weight: Float[Tensor, "b f 1 h w"]  # of every pixel in the loss
    generator: torch.Generator  # of the draws that follow

    @property
    def size(self) -> int:
        return len(self.video)

    @property
    def num_tokens(self) -> int:
        """Frames."""
        return self.video.shape[0] * self.video.shape[1]


class FrameSubject(Subject[VideoWindows]):
    """Windows of clips, and textures beside them, for a VAE of ``preset``: fresh, or that of the
    folder ``init_from``."""

    def __init__(self, preset: str, init_from: str | None, numbers: VAELoss) -> None:
        if preset not in PRESETS:
            raise ValueError(f"preset is one of {sorted(PRESETS)}, got {preset!r}")
        self.preset, self.init_from, self.weights = preset, init_from, numbers

    def load(self, seed: int, trainer: L.Trainer | None) -> dict[str, nn.Module]:
        if self.init_from is None:
            return {"vae": fresh(self.preset, seed)}
        return {"vae": trained(self.preset, self.init_from)}

    def begin(self, networks: object, batch: Batch, draws: Draws) -> VideoWindows:
        return VideoWindows(*self.window(batch, draws.own), draws.own)

    def window(
        self, batch: Batch, generator: torch.Generator
    ) -> tuple[Video, Float[Tensor, "b f 1 h w"]]:
        """A window of every clip, then textures; and the loss weight of every pixel."""
        video = require_video(batch)
        frames = self._draw_length(generator)
        if video.shape[1] < frames:
            raise ValueError(f"windows of {frames} frames do not fit clips of {video.shape[1]}")
        last = video.shape[1] - frames
        starts = torch.randint(last + 1, (len(video),), generator=generator)
        rows = torch.arange(len(video))[:, None]
        columns = starts[:, None] + torch.arange(frames)
        height, width = video.shape[-2:]
        weight = region_weight(
            batch.face_box,
            batch.mouth_box,
            height=height,
            width=width,
            face_boost=self.weights.face_boost,
            mouth_boost=self.weights.mouth_boost,
        )
        video, weight = video[rows, columns], weight[rows, columns]
        face = box_cover(batch.face_box, height, width)[rows, columns]
        side = self.weights.crop
        if side is not None:
            corners = draw_corners(batch.face_box, height, width, side, generator)
            video, weight, face = (cropped(x, corners, side) for x in (video, weight, face))
        if self.weights.change_boost > 0:
            weight = weight + self.weights.change_boost * face * passing_change(video)
        share = self.weights.texture_fraction
        num_textures = round(len(video) * share / (1 - share))
        if num_textures == 0:
            return video, weight
        cut = video.shape[-2]
        textures = texture_clips(num_textures, frames, cut, generator=generator).to(video)
        plain = torch.ones_like(weight[:1]).expand(num_textures, -1, -1, -1, -1)
        return torch.cat([video, textures]), torch.cat([weight, plain])

    def _draw_length(self, generator: torch.Generator) -> int:
        lengths = list(self.weights.window_shares)
        shares = torch.tensor([float(self.weights.window_shares[k]) for k in lengths])
        return lengths[int(torch.multinomial(shares, 1, generator=generator))]


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
    """

    subject: FrameSubject
    vae: VideoVAE

    def __init__(
        self,
        preset: str,
        optim: Optim,
        loss: VAELoss,
        init_from: str | None = None,
        decoder_only: bool = False,
        seed: int = 0,
    ) -> None:
        if decoder_only and init_from is None:
            raise ValueError("decoder_only needs init_from: a trained encoder to keep")
        super().__init__(FrameSubject(preset, init_from, loss), optim, seed)
        self.decoder_only, self.weights = decoder_only, loss

    def roles(self) -> Mapping[str, Role]:
        return {STUDENT: Role(("vae",), self.optim, ema=True, export=True)}

    def select_trainable(self) -> None:
        if self.decoder_only:
            self.vae.core.encoder.requires_grad_(False)
            self.vae.core.quant_conv.requires_grad_(False)

    def optimizer_for(
        self, optim: Optim, names: tuple[str, ...], num_steps: int
    ) -> tuple[torch.optim.Optimizer, LRScheduler]:
        optimizer = kernel_optimizer(self.vae.core, optim)
        return optimizer, warmup_cosine(optimizer, optim, num_steps)

    def loss(self, batch: VideoWindows) -> tuple[Tensor, Logs]:
        """Reconstruction and KL; beside the terms the posterior's mean standard deviation."""
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
        return loss, {**terms, "std": (0.5 * log_var).exp().mean()}

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        """PSNR of whole clips from the posterior's mean."""
        video = require_video(batch)
        quality = psnr(self.vae.decode(self.vae.encode(video)), video)
        self.log("val/psnr", quality.mean(), prog_bar=True, batch_size=len(video), sync_dist=True)


def draw_corners(
    face_box: Float[Tensor, "b f 4"],
    height: int,
    width: int,
    side: int,
    generator: torch.Generator,
) -> Int[Tensor, "b 2"]:
    """Top and left of a square of ``side`` pixels a clip, its centre a point of the clip's mean
    face box, moved inside the picture. ValueError for pictures that are smaller."""
    if side > min(height, width):
        raise ValueError(f"crops of {side} px do not fit pictures of {height} x {width}")
    left, top, right, bottom = face_box.mean(1).unbind(-1)
    point = torch.rand(len(face_box), 2, generator=generator).to(face_box.device)
    y = (top + point[:, 0] * (bottom - top)) * height - side / 2
    x = (left + point[:, 1] * (right - left)) * width - side / 2
    y, x = y.round().long().clamp(0, height - side), x.round().long().clamp(0, width - side)
    return torch.stack([y, x], dim=1)


def cropped(
    x: Float[Tensor, "b f c h w"], corners: Int[Tensor, "b 2"], side: int
) -> Float[Tensor, "b f c side side"]:
    """The square of each clip, the same in all its frames."""
    along = torch.arange(side, device=x.device)
    rows = (corners[:, :1] + along)[:, None, None, :, None]
    columns = (corners[:, 1:] + along)[:, None, None, None]
    b, f, c = (torch.arange(n, device=x.device) for n in x.shape[:3])
    return x[b.view(-1, 1, 1, 1, 1), f.view(-1, 1, 1, 1), c.view(-1, 1, 1), rows, columns]


PRESETS = {"tiny": VideoVAE.tiny, "small": VideoVAE.small}


def fresh(preset: str, seed: int, log_var: float = -5.0) -> VideoVAE:
    """Untrained weights of this seed. The posterior starts narrow (``log_var``), since at a
    standard deviation of 1 the first steps would see noise."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        vae = PRESETS[preset]()
    with torch.no_grad():
        bias = vae.core.quant_conv.bias
        assert bias is not None
        bias[vae.latent_channels :] = log_var
    return vae


def trained(preset: str, folder: str) -> VideoVAE:
    """The weights of ``folder``; ValueError unless they have the shapes of the preset."""
    vae, expected = VideoVAE.from_pretrained(folder), fresh(preset, seed=0)
    shapes = [{n: p.shape for n, p in v.named_parameters()} for v in (vae, expected)]
    if shapes[0] != shapes[1]:
        raise ValueError(f"{folder} holds no VAE of the preset {preset!r}")
    return vae


def passing_change(video: Video) -> Float[Tensor, "b f 1 h w"]:
    """How far each pixel is from its own mean over the nine frames around it, in 0 … 1 (1 from a
    quarter of the range on). A blink is a few frames of a few pixels: even weights let it blur."""
    series = rearrange(video, "b f c h w -> (b h w) c f")
    usual = F.avg_pool1d(series, 9, stride=1, padding=4, count_include_pad=False)
    change = ((series - usual).abs().mean(1) / 0.5).clamp(max=1)
    return rearrange(change, "(b h w) f -> b f 1 h w", b=len(video), h=video.shape[3])


def weighted_l1(rebuilt: Video, video: Video, weight: Float[Tensor, "b f 1 h w"]) -> Tensor:
    """Mean absolute error, each pixel by its weight."""
    return ((rebuilt - video).abs() * weight).mean() / weight.mean()


def gradient_l1(rebuilt: Video, video: Video, weight: Float[Tensor, "b f 1 h w"]) -> Tensor:
    """L1 of horizontal and vertical differences of the error at scales 1, 1/2 and 1/4: blur costs
    more than an even offset does."""
    error, total = (rebuilt - video).flatten(0, 1), rebuilt.new_zeros(())
    weight = weight.flatten(0, 1) / weight.mean()
    for _ in range(3):
        along_x = (error.diff(dim=-1).abs() * weight[..., 1:]).mean()
        along_y = (error.diff(dim=-2).abs() * weight[..., 1:, :]).mean()
        total = total + along_x + along_y
        error, weight = F.avg_pool2d(error, 2), F.avg_pool2d(weight, 2)
    return total / 6


def temporal_l1(rebuilt: Video, video: Video, weight: Float[Tensor, "b f 1 h w"]) -> Tensor:
    """L1 of the error's change from one frame to the next: a decoder that moves less within a
    latent than from one to another shows their rhythm. 0 for one frame."""
    if video.shape[1] == 1:
        return video.new_zeros(())
    change = (rebuilt - video).diff(dim=1).abs()
    return (change * weight[:, 1:]).mean() / weight.mean()


def kl_divergence(mean: Latents, log_var: Latents) -> Tensor:
    """KL of the posterior from a unit normal, in nats per latent number."""
    return 0.5 * (mean**2 + log_var.exp() - 1 - log_var).mean()


def psnr(rebuilt: Video, video: Video) -> Float[Tensor, " b"]:
    """PSNR of each clip in dB, for a range of 2 (-1 … 1), from the error over all its frames."""
    mean_square = ((rebuilt - video) / 2).square().flatten(1).mean(1)
    return -10 * mean_square.clamp_min(1e-10).log10()


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
            "params": [_as_matrix(kernel) for kernel in kernels],
            "lr": optim.lr * optim.muon_lr_scale,
            "weight_decay": optim.weight_decay,
            "muon": True,
        },
        {"params": rest, "lr": optim.lr, "weight_decay": 0.0, "muon": False},
    ]
    return MuonAdamW(groups, betas=optim.betas, momentum=optim.muon_momentum)


def _as_matrix(kernel: nn.Parameter) -> nn.Parameter:
    """A matrix that shares the kernel's storage and takes over its gradient in backward."""
    matrix = nn.Parameter(_rows(kernel.data).view(kernel.shape[0], -1))

    def hand_over(parameter: Tensor) -> None:
        assert parameter.grad is not None
        gradient = _rows(parameter.grad).reshape(matrix.shape)
        matrix.grad = gradient if matrix.grad is None else matrix.grad + gradient
        parameter.grad = None

    kernel.register_post_accumulate_grad_hook(hand_over)
    return matrix


def _rows(kernel: Tensor) -> Tensor:
    """Axes in the order of memory: 3D kernels are stored channels last (models/vae.py)."""
    return kernel.movedim(1, -1) if kernel.ndim == 5 else kernel


def require_video(batch: Batch) -> Video:
    if batch.video is None:
        raise ValueError("the VAE is trained on video: shards without it, or decode_video=False")
    return batch.video
