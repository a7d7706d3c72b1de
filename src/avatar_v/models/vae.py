"""VideoVAE: the causal video autoencoder (Wan 2.1/2.2 architecture), whole or as a stream.

The network is vae_network.py's, for which published Wan weights load unchanged; this file adds the
project's axes ("b f c h w"), normalised latents, streams and files. Spatial factor 8 or 16,
temporal factor 4: frame 0 makes latent 0, every further four frames make one latent. It holds no
loss and no training: objectives/vae.py.
"""

import dataclasses
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from einops import rearrange
from jaxtyping import Float
from safetensors.torch import save_file
from torch import Tensor, nn

from avatar_v.base.device import without_memory
from avatar_v.base.outside import read_json
from avatar_v.base.states import check_numbers, check_state, hash_of, read_tensors
from avatar_v.base.stored import built
from avatar_v.models.base import part_folder
from avatar_v.models.fidelity import ReconstructionStats
from avatar_v.models.restored import restored
from avatar_v.models.vae_config import WAN22, VAEConfig, residual_config
from avatar_v.models.vae_network import Past, VAENetwork
from avatar_v.types import TEMPORAL_FACTOR, num_latents

Video = Float[Tensor, "b f 3 h w"]
Latents = Float[Tensor, "b l c lh lw"]

WEIGHT_FILES = ("model.safetensors", "diffusion_pytorch_model.safetensors")
"""Ours, then the name that diffusers gives its weights."""
KNOWN_FILE = "known.json"

PIXELS_PER_PASS = 64 * 64 * 32
"""Video pixels that go through the network at once: more raises memory, fewer is slower."""


class VideoVAE(nn.Module):
    """Video in [-1, 1] <-> latents of about unit variance per channel.

    Args:
        core: the network; its config must downsample time by 4.
        known: what the pictures it was trained on reach (fidelity.py); None where nobody has said.
    """

    latents_mean: Tensor
    latents_std: Tensor

    def __init__(self, core: VAENetwork, known: ReconstructionStats | None = None):
        super().__init__()
        self.known = known
        factor = 2 ** sum(core.config.temperal_downsample)
        if factor != TEMPORAL_FACTOR:
            raise ValueError(f"the VAE must have temporal factor {TEMPORAL_FACTOR}, got {factor}")
        self.core = core
        self.register_buffer("latents_mean", None, persistent=False)
        self.register_buffer("latents_std", None, persistent=False)
        self.set_latent_stats(core.config.latents_mean, core.config.latents_std)

    @classmethod
    def tiny(cls) -> "VideoVAE":
        """For tests: 0.04 M parameters, untrained."""
        return cls(VAENetwork(residual_config(base_dim=4)))

    @classmethod
    def small(cls) -> "VideoVAE":
        """2.7 M parameters, untrained; its trained weights ship in assets/small/vae."""
        return cls(VAENetwork(residual_config(base_dim=32)))

    @classmethod
    def wan21(cls, device: str = "meta") -> "VideoVAE":
        """The published Wan 2.1 size (16 channels, factor 8)."""
        with torch.device(device):
            return cls(VAENetwork(VAEConfig()))

    @classmethod
    def wan22(cls, device: str = "meta") -> "VideoVAE":
        """The published Wan 2.2 5B size (48 channels, factor 16)."""
        with torch.device(device):
            return cls(VAENetwork(WAN22))

    @classmethod
    def from_pretrained(cls, directory: str | Path) -> "VideoVAE":
        """Reads config.json and the weights (ours or diffusers'), as float32.

        Raises:
            FileNotFoundError: no config or no weights there.
            ValueError: the config is of another class or has fields of another type, or the weights
                do not fit it or hold numbers that are not finite.
        """
        directory = part_folder(directory)
        where = directory / "config.json"
        if not where.is_file():
            raise FileNotFoundError(f"no file {where}")
        fields = read_json(where)
        if fields.get("_class_name") != "AutoencoderKLWan":
            raise ValueError(
                f"{directory}: expected AutoencoderKLWan, got {fields.get('_class_name')}"
            )
        config = VAEConfig.of(fields, where=where)
        state = restored(directory, _read_weights)
        _check_fits(config, state, where=where)
        core = VAENetwork(config)
        stored = directory / KNOWN_FILE
        known = (
            built(ReconstructionStats, read_json(stored), where=stored)
            if stored.is_file()
            else None
        )
        vae = cls(core, known)
        vae.core.load_state_dict(state)
        return vae.eval()

    def save_pretrained(self, directory: str | Path, dtype: torch.dtype = torch.float32) -> None:
        """Writes config.json (diffusers' schema), model.safetensors stored as ``dtype`` and what is
        known of training pictures, known.json. ValueError for weights that are not finite."""
        directory = Path(directory)
        state = {k: v.detach().cpu().to(dtype).contiguous() for k, v in self._state()}
        check_numbers(state, where=directory)
        directory.mkdir(parents=True, exist_ok=True)
        text = json.dumps({"_class_name": "AutoencoderKLWan", **self._config()}, indent=2)
        (directory / "config.json").write_text(text + "\n")
        save_file(state, directory / WEIGHT_FILES[0])
        if self.known is not None:
            values = json.dumps(dataclasses.asdict(self.known), indent=2)
            (directory / KNOWN_FILE).write_text(values + "\n")

    def hash(self) -> str:
        """16 hex digits of the config and the weights: says which VAE made some latents."""
        return self._hash_parts(lambda name: True)

    def encoder_hash(self) -> str:
        """As ``hash``, without the decoder: VAEs that agree in it can decode each other's latents,
        at sizes or of pictures that each has learned."""
        return self._hash_parts(lambda name: name.startswith(("encoder.", "quant_conv.")))

    def _hash_parts(self, counts: Callable[[str], bool]) -> str:
        return hash_of(self._config(), ((n, v) for n, v in self._state() if counts(n)))

    @property
    def latent_channels(self) -> int:
        return self.core.config.z_dim

    @property
    def spatial_factor(self) -> int:
        return 2 ** len(self.core.config.temperal_downsample) * (self.core.config.patch_size or 1)

    @property
    def dtype(self) -> torch.dtype:
        return self.core.quant_conv.weight.dtype

    def set_latent_stats(self, mean: Sequence[float], std: Sequence[float]) -> None:
        """Sets the per-channel statistics of raw latents that encode removes and decode restores.

        Raises:
            ValueError: not one positive standard deviation and one mean per latent channel.
        """
        if len(mean) != self.latent_channels or len(std) != self.latent_channels or min(std) <= 0:
            raise ValueError(
                f"expected {self.latent_channels} means and positive stds, got {mean}, {std}"
            )
        stats = {"latents_mean": tuple(mean), "latents_std": tuple(std)}
        self.core.config = dataclasses.replace(self.core.config, **stats)
        device = self.core.quant_conv.weight.device
        self.latents_mean = torch.tensor(mean, device=device)[:, None, None]
        self.latents_std = torch.tensor(std, device=device)[:, None, None]

    def encode(self, video: Video) -> Latents:
        """The posterior's mean, normalised, in float32; f = 4k + 1 frames give k + 1 latents."""
        return self.normalise(self.posterior(video)[0])

    def decode(self, latents: Latents, *, clamp: bool = True) -> Video:
        """Video of 4 l - 3 frames, float32, clamped to [-1, 1] unless a loss needs it raw."""
        return self.stream_decoder(clamp=clamp).push(latents)

    def posterior(self, video: Video) -> tuple[Latents, Latents]:
        """Mean and log-variance of the latents, raw (before normalisation), in float32."""
        num_latents(video.shape[1])
        moments = EncoderStream(self).push_moments(video)
        mean, log_var = moments.float().chunk(2, dim=2)
        return mean, log_var.clamp(-30.0, 20.0)

    def normalise(self, raw: Latents) -> Latents:
        return (raw - self.latents_mean) / self.latents_std

    def unnormalise(self, latents: Latents) -> Latents:
        return latents * self.latents_std + self.latents_mean

    def stream_encoder(self) -> "EncoderStream":
        return EncoderStream(self)

    def stream_decoder(self, *, clamp: bool = True) -> "DecoderStream":
        return DecoderStream(self, clamp=clamp)

    def _config(self) -> dict[str, Any]:
        return self.core.config.to_json()

    def _state(self) -> list[tuple[str, Tensor]]:
        return sorted(self.core.state_dict().items())


class EncoderStream:
    """Encodes a video that arrives in pieces of any length; equals `VideoVAE.encode` of the whole.

    A latent needs four frames (the first one needs one): frames that do not fill one wait inside.
    """

    def __init__(self, vae: VideoVAE):
        self._vae = vae
        self._past = Past()
        self._waiting: Tensor | None = None

    def push(self, video: Video) -> Latents:
        """Latents completed by these frames, perhaps none (l = 0), normalised, float32."""
        mean = self.push_moments(video).float().chunk(2, dim=2)[0]
        return self._vae.normalise(mean)

    def push_moments(self, video: Video) -> Latents:
        """Raw mean and log-variance, stacked along channels."""
        _check_size(video, self._vae.spatial_factor)
        first = self._waiting is None
        frames = video if self._waiting is None else torch.cat([self._waiting, video], dim=1)
        sizes = _groups(frames.shape[1], first, _frames_per_pass(video))
        pieces = frames.split([*sizes, frames.shape[1] - sum(sizes)], dim=1)
        self._waiting = pieces[-1]
        if not sizes:
            b, _, _, h, w = video.shape
            factor = self._vae.spatial_factor
            return video.new_zeros(b, 0, 2 * self._vae.latent_channels, h // factor, w // factor)
        return torch.cat([self._run(piece) for piece in pieces[:-1]], dim=1)

    def _run(self, frames: Video) -> Latents:
        x = rearrange(frames.to(self._vae.dtype), "b f c h w -> b c f h w")
        x = self._vae.core.moments(x, self._past)
        return rearrange(x, "b c l h w -> b l c h w")


class DecoderStream:
    """Decodes latents that arrive in pieces of any length; equals `VideoVAE.decode` of the whole.

    The first latent ever pushed gives 1 frame, every other gives 4, across calls and chunks.
    """

    def __init__(self, vae: VideoVAE, *, clamp: bool = True):
        self._vae = vae
        self._past = Past()
        self._clamp = clamp

    def push(self, latents: Latents) -> Video:
        """The frames of these latents, float32.

        Raises:
            ValueError: no latents, or another number of channels.
        """
        num_channels = self._vae.latent_channels
        if latents.shape[1] == 0 or latents.shape[2] != num_channels:
            raise ValueError(f"expected l >= 1, c = {num_channels}, got {tuple(latents.shape)}")
        raw = self._vae.unnormalise(latents.float()).to(self._vae.dtype)
        pixels = latents.shape[0] * latents[0, 0, 0].numel() * self._vae.spatial_factor**2
        step = max(1, PIXELS_PER_PASS // (TEMPORAL_FACTOR * pixels))
        num_first = int(self._past.is_first)
        pieces = [*raw[:, :num_first].split(1, dim=1), *raw[:, num_first:].split(step, dim=1)]
        frames = [self._run(piece) for piece in pieces if piece.shape[1]]
        video = torch.cat(frames, dim=1).float()
        return video.clamp(-1, 1) if self._clamp else video

    def _run(self, raw: Latents) -> Video:
        x = self._vae.core.pixels(rearrange(raw, "b l c h w -> b c l h w"), self._past)
        return rearrange(x, "b c f h w -> b f c h w")


def _read_weights(directory: Path) -> dict[str, Tensor]:
    path = next((directory / n for n in WEIGHT_FILES if (directory / n).is_file()), None)
    if path is None:
        raise FileNotFoundError(f"{directory} has none of {', '.join(WEIGHT_FILES)}")
    state = read_tensors(path)
    check_numbers(state, where=path)
    return state


def _check_fits(config: VAEConfig, state: Mapping[str, Tensor], *, where: Path) -> None:
    """ValueError unless ``config`` describes a network and ``state`` holds its weights. The network
    is built without memory, since the size that a file promises may be any."""
    try:
        with without_memory():
            expected = VideoVAE(VAENetwork(config)).core.state_dict()
    except (RuntimeError, ValueError) as error:
        raise ValueError(f"{where} describes no video VAE: {error}") from error
    check_state(expected, state, where=where.parent)


def _check_size(video: Video, factor: int) -> None:
    h, w = video.shape[-2:]
    if video.shape[1] == 0 or h % factor or w % factor:
        raise ValueError(
            f"expected f >= 1 and h, w divisible by {factor}, got {tuple(video.shape)}"
        )


def _frames_per_pass(video: Video) -> int:
    """A multiple of 4, for the memory of one pass."""
    b, _, _, h, w = video.shape
    return TEMPORAL_FACTOR * max(1, PIXELS_PER_PASS // (TEMPORAL_FACTOR * b * h * w))


def _groups(num_frames: int, first: bool, frames_per_pass: int) -> list[int]:
    """Sizes of the passes that ``num_frames`` allow: 1 at the very start, then multiples of 4."""
    sizes = [1] if first else []
    left = (num_frames - sum(sizes)) // TEMPORAL_FACTOR * TEMPORAL_FACTOR
    while left:
        sizes.append(min(left, frames_per_pass))
        left -= sizes[-1]
    return sizes
