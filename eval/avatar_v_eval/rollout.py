"""Weights, and the way in which a study samples with them. The pipeline does the sampling."""

import argparse
import dataclasses
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jaxtyping import UInt8
from torch import Tensor

from avatar_v.base.device import PRECISIONS
from avatar_v.base.seeds import derive
from avatar_v.critics.frozen import weights_hash
from avatar_v.generate.pipeline import AvatarPipeline
from avatar_v.models.vae import VideoVAE
from avatar_v.request.checks import check_settings
from avatar_v.request.request import Request
from avatar_v.request.resolve import num_steps_of
from avatar_v.weights.card import DEFAULT_WEIGHTS
from avatar_v.weights.weights import load_pipeline
from avatar_v.world.render import Size

AVATAR_V = (sys.executable, "-c", "from avatar_v.cli import main; raise SystemExit(main())")
"""The command ``avatar-v`` of this interpreter."""
AVATAR_V_DATA = (sys.executable, "-m", "avatar_v_data.cli")
"""The command ``avatar-v-data`` of this interpreter."""

Frames = UInt8[Tensor, "f 3 h w"]


@dataclass(frozen=True)
class Rollout:
    """Weights and how to sample with them."""

    pipeline: AvatarPipeline
    request: Request  # of it only the numbers count

    @classmethod
    def load(cls, weights: str | Path, options: argparse.Namespace) -> "Rollout":
        """Of a folder or a shipped name, with the values of ``add_sampling_options``. ValueError
        for one that generation does not take."""
        request = Request.of(
            reference="",
            audio="",
            seed=options.seed,
            num_steps=options.steps,
            guidance_text=options.text,
            guidance_reference=options.reference,
        )
        check_settings(request.changed(guidance_audio=options.audio))
        pipeline = AvatarPipeline.from_pretrained(weights, precision=options.precision)
        card = pipeline.card
        audio = card.guidance_audio if options.audio is None else options.audio
        motion = card.guidance_motion
        request = request.changed(
            num_steps=num_steps_of(options.steps, card),
            guidance_audio=audio,
            guidance_motion=motion,
        )
        return cls(pipeline, request)

    @property
    def vae(self) -> VideoVAE:
        return self.pipeline.conditioner.vae

    @property
    def size(self) -> Size:
        height, width = self.pipeline.format.video.size
        return height if height == width else (height, width)

    @property
    def recipe(self) -> str:
        return self.pipeline.card.recipe

    def described(self) -> str:
        """The way of sampling in words, for the notes of a result."""
        r, precision = self.request.sampling, "bf16" if self.pipeline.bf16 else "fp32"
        card = self.pipeline.card
        stills = card.can.num_stills(from_prompt=self.request.person.from_prompt)
        read = f"{stills} frames of each clip and its habits" if stills else "whole clips"
        return (
            f"{r.num_steps} steps, guidance text {r.guidance_text} audio {r.guidance_audio} "
            f"reference {r.guidance_reference} motion {r.guidance_motion}, "
            f"{read} as reference, {precision}, seeds from {r.seed} and the person"
        )

    def from_prompt(self) -> "Rollout":
        """Without a first frame. ValueError for weights that know a person by that alone."""
        if not self.pipeline.card.can.reference:
            raise ValueError(
                "weights that read no reference know a person by the first frame alone"
            )
        request = self.request.changed(from_prompt=True)
        return dataclasses.replace(self, request=request)

    def hashes(self) -> dict[str, str]:
        """Of the tensors of each network, as they lie in its files."""
        dit, conditioner = self.pipeline.dit, self.pipeline.conditioner
        if self.pipeline.bf16 and self.pipeline.folder is not None:  # what is loaded is narrowed
            dit, conditioner = load_pipeline(self.pipeline.folder)
        net = conditioner.motion_net
        motion = {} if net is None else {"motion": weights_hash(net.state_dict())}
        return {
            **motion,
            "dit": weights_hash(dit.state_dict()),
            "vae": conditioner.vae.hash(),
            "text": weights_hash(conditioner.text_encoder.state_dict()),
            "audio": weights_hash(conditioner.audio_encoder.state_dict()),
        }

    def sampling(self) -> dict[str, Any]:
        """All that decides what is sampled besides the tensors: the values of the request, of which
        the card gives some, and the card."""
        return {
            "sampling": dataclasses.asdict(self.request.sampling),
            "precision": "bf16" if self.pipeline.bf16 else "fp32",
            "card": dataclasses.asdict(self.pipeline.card),
        }

    def request_for(self, person_id: int, prompt: str) -> Request:
        """The request with this prompt and a seed of the person's own: the noise of a chunk decides
        when somebody blinks, and with one seed everybody would at the same time."""
        seed = derive("request", self.request.sampling.seed, person_id)
        return self.request.changed(prompt=prompt, seed=seed)


def add_sampling_options(parser: argparse.ArgumentParser) -> None:
    """Options for ``Rollout.load``, with the defaults of ``avatar-v generate``."""
    parser.add_argument(
        "--weights", default=DEFAULT_WEIGHTS, help="folder, or the name of shipped weights"
    )
    parser.add_argument("--steps", type=int, help="of the sampler (default: as generation)")
    parser.add_argument("--text", type=float, default=1.0, help="text guidance; 1 is none")
    parser.add_argument(
        "--audio", type=float, help="audio guidance; 1 is none (default: what the card says)"
    )
    parser.add_argument(
        "--reference", type=float, default=1.0, help="reference guidance; 1 is none"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--precision", default="auto", choices=PRECISIONS)
