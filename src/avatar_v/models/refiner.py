"""The super-resolution refiner: low-resolution video to latents of a higher one, in one step.

The network is AvatarDiT with `refines_from` and a `temporal_window` (Avatar V §2.4, §4.6).
It reads the low video twice: noised at σ as the start of its step (§4.6), and
clean beside x_t (§2.4). The low video is enlarged as pixels and encoded at the high resolution:
enlarged latents are no latents of any picture (on 16 clips of the world they decode to 18.8 dB,
enlarged pixels to 27.3). The output is what the enlarged video has and the true one has not, so a
head of zeros changes nothing, and v = (x_t - x̂_0) / t. No training and no streams here.
"""

import dataclasses

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from avatar_v.models.cache import KeyValueCache
from avatar_v.models.dit import AvatarDiT
from avatar_v.models.vae import VideoVAE
from avatar_v.types import Cond

FACTOR = 2
"""The refined picture is so many times larger, each way."""
SIGMA = 0.6
"""Where the one step starts (Avatar V §4.6)."""

Latents = Float[Tensor, "b l c h w"]
Video = Float[Tensor, "b f 3 h w"]


def predict_clean(
    dit: AvatarDiT,
    x_t: Latents,
    t: Float[Tensor, "b l"],
    cond: Cond,
    *,
    motion: Float[Tensor, "b l md"] | None = None,
    past: KeyValueCache | None = None,
) -> Latents:
    """x̂_0 of the high resolution, fp32: ``cond.low`` less what the network finds wrong with it.

    ``motion`` is that of the video itself, clean; ``past`` the encoded reference. ValueError
    for a cond without ``low``.
    """
    cond = dataclasses.replace(cond, motion=motion)
    wrong = dit(x_t, t, cond, past=past)
    assert cond.low is not None  # the network has checked it
    return cond.low.float() - wrong.float()


def as_refiner(dit: AvatarDiT, *, sigma: float, temporal_window: int | None) -> AvatarDiT:
    """A refiner that starts from a generator's weights, or ``dit`` itself where it is one already.

    Low latents are embedded as clean ones were; the head is zero. ValueError for a refiner of
    another window or start.
    """
    config = dataclasses.replace(dit.config, refines_from=sigma, temporal_window=temporal_window)
    if dit.config.reads_low:
        if dit.config != config:
            raise ValueError(f"the weights are a refiner of {dit.config}, asked for {config}")
        return dit
    refiner = AvatarDiT(config, dit.motion_stats).to(dit.patch_embed.weight)
    state = dict(dit.state_dict())
    state["low_embed.weight"] = state["patch_embed.weight"].clone()
    state["low_embed.bias"] = torch.zeros_like(state["patch_embed.bias"])
    for name in ("head.out.weight", "head.out.bias"):
        state[name] = torch.zeros_like(state[name])
    refiner.load_state_dict(state)
    return refiner.train(dit.training)


def enlarge(video: Video, factor: int = FACTOR) -> Float[Tensor, "b f 3 height width"]:
    """Video in [-1, 1] with every side ``factor`` times as long, bicubic."""
    size = [side * factor for side in video.shape[-2:]]
    larger = F.interpolate(video.flatten(0, 1).float(), size, mode="bicubic")
    return larger.clamp(-1, 1).unflatten(0, video.shape[:2])


def reduce(video: Video, factor: int = FACTOR) -> Float[Tensor, "b f 3 height width"]:
    """Video with every side ``factor`` times shorter, averaged. ValueError for odd sides."""
    if any(side % factor for side in video.shape[-2:]):
        raise ValueError(f"sides {tuple(video.shape[-2:])} are not multiples of {factor}")
    return F.avg_pool2d(video.flatten(0, 1), factor).unflatten(0, video.shape[:2])


@torch.no_grad()
def low_latents(vae: VideoVAE, video: Video, factor: int = FACTOR) -> Float[Tensor, "b l c lh lw"]:
    """Latents, at the size of ``video``, of what is left of it after the low resolution.

    It is reduced, goes through the VAE as a generated video would, and is enlarged and encoded.
    """
    return vae.encode(enlarge(vae.decode(vae.encode(reduce(video, factor))), factor))
