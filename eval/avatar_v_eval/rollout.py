"""Cases through the generator: the pipeline's own streaming loop, from tensors to frames.

What ``avatar-v generate`` does after its files are read (generate/generator.py), with the same
loudness, chunks, guidance and decoder. No second sampling loop lives here.
"""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from jaxtyping import UInt8
from rich.progress import track
from torch import Tensor

from avatar_v.critics.frozen import weights_hash
from avatar_v.generate.generator import Settings, generate, to_uint8
from avatar_v.models.audio import normalise_loudness
from avatar_v.models.conditioner import Conditioner
from avatar_v.models.dit import AvatarDiT
from avatar_v.models.vae import VideoVAE
from avatar_v.models.weights import load_pipeline, read_card
from avatar_v_eval.cases import Case
from avatar_v_eval.records import RESULTS_DIR

ASSETS = RESULTS_DIR.parents[1] / "src" / "avatar_v" / "assets"

Videos = UInt8[Tensor, "n f 3 h w"]


@dataclass(frozen=True)
class Rollout:
    """Weights and how to sample with them."""

    dit: AvatarDiT
    conditioner: Conditioner
    settings: Settings
    recipe: str

    @classmethod
    def load(cls, weights: str | Path, options: argparse.Namespace) -> "Rollout":
        """Of a folder or the name of shipped weights; ``options``: latents, steps, text, audio."""
        folder = ASSETS / weights if (ASSETS / weights).is_dir() else Path(weights)
        settings = Settings(
            chunk_latents=options.latents,
            num_steps=options.steps,
            guidance_text=options.text,
            guidance_audio=options.audio,
            seed=options.seed,
        )
        return cls(*load_pipeline(folder), settings, read_card(folder).recipe)

    @property
    def vae(self) -> VideoVAE:
        return self.conditioner.vae

    def hashes(self) -> dict[str, str]:
        """Of the tensors of each network."""
        return {
            "dit": weights_hash(self.dit.state_dict()),
            "vae": self.vae.hash(),
            "text": weights_hash(self.conditioner.text_encoder.state_dict()),
            "audio": weights_hash(self.conditioner.audio_encoder.state_dict()),
        }

    def videos(
        self, cases: Sequence[Case], *, shown: Sequence[Case] | None = None, note: str
    ) -> Videos:
        """One video per case. ``shown`` gives the reference pictures, the cases themselves where
        absent; the first frame of the reference clip is the picture that the model is given."""
        given = cases if shown is None else shown
        pairs = list(zip(cases, given, strict=True))
        return torch.stack([self._video(*pair) for pair in track(pairs, note, transient=True)])

    def _video(self, case: Case, shown: Case) -> UInt8[Tensor, "f 3 h w"]:
        image = shown.reference[0].float() / 127.5 - 1
        sound = normalise_loudness(case.audio)
        blocks = generate(self.dit, self.conditioner, image, sound, case.prompt, self.settings)
        return torch.cat(list(blocks))


def through_vae(vae: VideoVAE, video: UInt8[Tensor, "f 3 h w"]) -> UInt8[Tensor, "f 3 h w"]:
    """The video encoded and decoded: all that a generator of latents can show."""
    with torch.inference_mode():
        return to_uint8(vae.decode(vae.encode(video[None].float() / 127.5 - 1))[0])
