"""The presets by name: a DiT config, and the networks that stand around it.

`tiny` and `small` are complete, with the embedded encoders. The full sizes take the VAE, text and
audio encoders from folders of the user's (diffusers and transformers layouts).
"""

from pathlib import Path

import torch

from avatar_v.models.audio import HiddenStateAudioEncoder, LogMelEncoder
from avatar_v.models.conditioner import Conditioner
from avatar_v.models.config import DiTConfig
from avatar_v.models.dit import AvatarDiT
from avatar_v.models.text import ByteTextEncoder, UMT5TextEncoder
from avatar_v.models.vae import VideoVAE
from avatar_v.motion.stats import MotionStats

PRESETS = {
    "tiny": DiTConfig.tiny,
    "small": DiTConfig.small,
    "wan_1_3b": DiTConfig.wan_1_3b,
    "wan_14b": DiTConfig.wan_14b,
    "wan22_5b": DiTConfig.wan22_5b,
}


def preset(name: str) -> DiTConfig:
    """The DiT config called ``name``; ValueError lists the names there are."""
    if name not in PRESETS:
        raise ValueError(f"no preset {name!r}; there are {', '.join(PRESETS)}")
    return PRESETS[name]()


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
    config = preset(name)
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
    embedded = {"tiny": (VideoVAE.tiny, ByteTextEncoder.tiny, LogMelEncoder.tiny),
                "small": (VideoVAE.small, ByteTextEncoder.small, LogMelEncoder.small)}  # fmt: skip
    missing = [
        key for key, value in {"vae": vae, "text": text, "audio": audio}.items() if not value
    ]
    if name not in embedded and missing:
        raise ValueError(f"preset {name} needs folders for {', '.join(missing)}")
    make_vae, make_text, make_audio = embedded.get(name, embedded["tiny"])
    return Conditioner(
        make_vae() if vae is None else VideoVAE.from_pretrained(vae),
        make_text() if text is None else UMT5TextEncoder(text),
        make_audio() if audio is None else HiddenStateAudioEncoder(audio),
        motion_stats,
    )
