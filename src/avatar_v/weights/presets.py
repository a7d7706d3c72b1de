"""The presets by name, all that a size is in one table: networks, pictures, chunks, tokens.

`tiny` and `small` are complete, with the embedded encoders. The full sizes take the VAE, text and
audio encoders from folders of the user's (diffusers and transformers layouts).
"""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch

from avatar_v.base.video_format import VideoFormat
from avatar_v.models.audio import HiddenStateAudioEncoder, LogMelEncoder
from avatar_v.models.conditioner import Conditioner
from avatar_v.models.config import DiTConfig
from avatar_v.models.dit import AvatarDiT
from avatar_v.models.motion_net import MotionNetConfig
from avatar_v.models.text import ByteTextEncoder, UMT5TextEncoder
from avatar_v.models.vae import VideoVAE
from avatar_v.motion.stats import MotionStats
from avatar_v.weights.card import Card


@dataclass(frozen=True)
class Format:
    """The sizes that the weights of a preset were trained for."""

    video: VideoFormat
    chunk_latents: int
    shift: float  # of the sampling times
    refiner_latents: int = 16  # of each reference clip that a refiner reads
    token: int = 16  # pixels of a token's side: the patch times the factor of the VAE


class Embedded(NamedTuple):
    """Makers of the networks around the DiT that need no folder."""

    vae: Callable[[], VideoVAE]
    text: Callable[[], ByteTextEncoder]
    audio: Callable[[], LogMelEncoder]


@dataclass(frozen=True)
class Preset:
    """One size. ``motion`` takes the width of the audio features."""

    dit: DiTConfig
    format: Format
    motion: Callable[[int], MotionNetConfig] = MotionNetConfig.full
    embedded: Embedded | None = None  # None: folders of the user's
    text_tokens: int = 512  # of one prompt; UMT5's, at most


WAN_480P = Format(VideoFormat(624, 624), chunk_latents=41, shift=3.0)
"""A square of the area of Wan's 480p, as that of wan22_5b is of its 720p; shifts of its generate.py
for those sizes."""
TINY = Embedded(VideoVAE.tiny, ByteTextEncoder.tiny, LogMelEncoder.tiny)
PRESETS = {
    "tiny": Preset(
        DiTConfig.tiny(),
        Format(VideoFormat(32, 32), chunk_latents=5, shift=1.0, refiner_latents=4),
        MotionNetConfig.tiny,
        TINY,
        text_tokens=64,
    ),
    "small": Preset(
        DiTConfig.small(),
        # as recipes/small.yaml
        Format(VideoFormat(64, 64), chunk_latents=13, shift=3.0, refiner_latents=5),
        MotionNetConfig.small,
        Embedded(VideoVAE.small, ByteTextEncoder.small, LogMelEncoder.small),
        text_tokens=64,
    ),
    "wan_1_3b": Preset(DiTConfig.wan_1_3b(), WAN_480P),
    "wan_14b": Preset(DiTConfig.wan_14b(), WAN_480P),
    "wan22_5b": Preset(
        DiTConfig.wan22_5b(), Format(VideoFormat(960, 960), chunk_latents=41, shift=5.0, token=32)
    ),
}


def preset(name: str) -> Preset:
    """The preset called ``name``; ValueError lists the names there are."""
    if name not in PRESETS:
        raise ValueError(f"no preset {name!r}; there are {', '.join(PRESETS)}")
    return PRESETS[name]


def format_of(card: Card) -> Format:
    """The sizes of the weights with this card. ValueError for a preset that there is not."""
    sizes, can = preset(card.preset).format, card.can
    return dataclasses.replace(
        sizes,
        video=can.video or sizes.video,
        chunk_latents=can.window_latents or sizes.chunk_latents,
        shift=can.shift or sizes.shift,
    )


def build(
    name: str,
    *,
    seed: int = 0,
    dit: AvatarDiT | None = None,
    vae: str | Path | None = None,
    text: str | Path | None = None,
    audio: str | Path | None = None,
    motion_stats: MotionStats | None = None,
) -> tuple[AvatarDiT, Conditioner]:
    """An untrained DiT and conditioner, the same for the same seed. With ``dit``, a trained one,
    none is made.

    ``vae``, ``text`` (UMT5) and ``audio`` (wav2vec 2.0 or Whisper) are folders of trained
    networks, ``motion_stats`` what motion is normalised by. `tiny` and `small` fall back to
    embedded networks; the other presets have none, and a missing folder is a ValueError.
    """
    config = preset(name).dit
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        dit = dit or AvatarDiT(config, motion_stats)
        conditioner = build_conditioner(
            name, vae=vae, text=text, audio=audio, motion_stats=motion_stats
        )
    conditioner.check_fits(dit.config)
    return dit, conditioner


def build_conditioner(
    name: str,
    *,
    vae: str | Path | None = None,
    text: str | Path | None = None,
    audio: str | Path | None = None,
    motion_stats: MotionStats | None = None,
) -> Conditioner:
    """The conditioner of a preset; see `build`."""
    embedded = preset(name).embedded
    missing = [
        key for key, value in {"vae": vae, "text": text, "audio": audio}.items() if not value
    ]
    if embedded is None and missing:
        raise ValueError(f"preset {name} needs folders for {', '.join(missing)}")
    make_vae, make_text, make_audio = embedded or TINY
    return Conditioner(
        make_vae() if vae is None else VideoVAE.from_pretrained(vae),
        make_text() if text is None else UMT5TextEncoder(text),
        make_audio() if audio is None else HiddenStateAudioEncoder(audio),
        motion_stats,
    )
