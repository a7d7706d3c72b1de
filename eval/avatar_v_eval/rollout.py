"""Cases through the generator: ``AvatarPipeline.stream``, from tensors to frames.

What ``avatar-v generate`` does once its files are read. No second sampling loop lives here.
"""

import argparse
import dataclasses
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from jaxtyping import Float, UInt8
from rich.progress import track
from torch import Tensor

from avatar_v.critics.face_track import spread_frames
from avatar_v.critics.frozen import weights_hash
from avatar_v.device import PRECISIONS
from avatar_v.generate.generator import to_uint8
from avatar_v.generate.inputs import Inputs
from avatar_v.generate.pipeline import AvatarPipeline
from avatar_v.generate.reference_clip import ReferenceClip
from avatar_v.models.reference import NUM_FACES
from avatar_v.models.vae import VideoVAE
from avatar_v.types import Request
from avatar_v.world.redrawn import close_ups
from avatar_v.world.seeds import derive
from avatar_v_eval.cases import Case

AVATAR_V = (sys.executable, "-c", "from avatar_v.cli import main; raise SystemExit(main())")
"""The command ``avatar-v`` of this interpreter."""

Frames = UInt8[Tensor, "f 3 h w"]


def with_close_ups(
    clip: ReferenceClip, ids: tuple[int, int, int], motion: Float[Tensor, "f m"]
) -> ReferenceClip:
    """``clip`` with close-ups of the face, drawn anew: it is the beginning of the world's clip of
    these ids (person, scene, speech), whose true motion begins with ``motion``."""
    frames = spread_frames(clip.valid, NUM_FACES)
    if len(frames) == 0:
        return clip
    return dataclasses.replace(
        clip, faces=close_ups(*ids, motion[frames], size=clip.video.shape[-1])
    )


@dataclass(frozen=True)
class Rollout:
    """Weights and how to sample with them."""

    pipeline: AvatarPipeline
    request: Request  # of it only the numbers count

    @classmethod
    def load(cls, weights: str | Path, options: argparse.Namespace) -> "Rollout":
        """Of a folder or a shipped name, with the values of ``add_sampling_options``."""
        request = Request(
            reference="",
            audio="",
            out="",
            seed=options.seed,
            num_steps=options.steps,
            guidance_text=options.text,
            guidance_reference=options.reference,
        )
        pipeline = AvatarPipeline.from_pretrained(weights, precision=options.precision)
        card = pipeline.card
        audio = card.guidance_audio if options.audio is None else options.audio
        motion = card.guidance_motion
        request = dataclasses.replace(request, guidance_audio=audio, guidance_motion=motion)
        return cls(pipeline, request)

    @property
    def vae(self) -> VideoVAE:
        return self.pipeline.conditioner.vae

    @property
    def size(self) -> int:
        return self.pipeline.format.side

    @property
    def recipe(self) -> str:
        return self.pipeline.card.recipe

    def described(self) -> str:
        """How it samples, for the notes of a result."""
        r, precision = self.request, "bf16" if self.pipeline.bf16 else "fp32"
        card = self.pipeline.card
        stills = card.num_stills(from_prompt=r.from_prompt)
        read = f"{stills} frames of each clip and its habits" if stills else "whole clips"
        order = "before" if self.pipeline.card.motion_first else "beside"
        return (
            f"{r.num_steps} steps, guidance text {r.guidance_text} audio {r.guidance_audio} "
            f"reference {r.guidance_reference} motion {r.guidance_motion}, motion {order} "
            "the video, "
            f"{read} as reference, {precision}, seeds from {r.seed} and the person"
        )

    def from_prompt(self) -> "Rollout":
        """Without a first frame. ValueError for weights that know a person by that alone."""
        if not self.pipeline.card.reference:
            raise ValueError(
                "weights that read no reference know a person by the first frame alone"
            )
        request = dataclasses.replace(self.request, from_prompt=True)
        return dataclasses.replace(self, request=request)

    def hashes(self) -> dict[str, str]:
        """Of the tensors of each network."""
        conditioner = self.pipeline.conditioner
        return {
            "dit": weights_hash(self.pipeline.dit.state_dict()),
            "vae": conditioner.vae.hash(),
            "text": weights_hash(conditioner.text_encoder.state_dict()),
            "audio": weights_hash(conditioner.audio_encoder.state_dict()),
        }

    def videos(
        self, cases: Sequence[Case], *, shown: Sequence[Case] | None = None, note: str
    ) -> UInt8[Tensor, "n f 3 h w"]:
        """One video per case, as shown by ``shown``'s references (its own where absent)."""
        pairs = list(zip(cases, cases if shown is None else shown, strict=True))
        videos = [torch.cat(list(self.blocks(*p))) for p in track(pairs, note, transient=True)]
        return torch.stack(videos)

    def blocks(self, case: Case, shown: Case) -> Iterator[Frames]:
        """The video of ``case``'s speech, a few frames at a time, by the person of ``shown``.

        The first frame of the reference clip is the picture that the model is given.
        """
        inputs = Inputs(
            image=shown.reference[0],
            audio=case.audio,
            num_frames=len(case.video),
            reference_frame=0,
            warnings=(),
        )
        return self.pipeline.stream(inputs, self.request_for(case.person_id, case.prompt))

    def request_for(self, person_id: int, prompt: str) -> Request:
        """The request with this prompt and a seed of the person's own: the noise of a chunk decides
        when somebody blinks, and with one seed everybody would at the same time."""
        seed = derive("request", self.request.seed, person_id)
        return dataclasses.replace(self.request, prompt=prompt, seed=seed)


def through_vae(vae: VideoVAE, video: Frames) -> Frames:
    """The video encoded and decoded: all that a generator of latents can show."""
    with torch.inference_mode():
        return to_uint8(vae.decode(vae.encode(video[None].float() / 127.5 - 1))[0])


def add_sampling_options(parser: argparse.ArgumentParser) -> None:
    """Options for ``Rollout.load``, with the defaults of ``avatar-v generate``."""
    parser.add_argument("--steps", type=int, default=24, help="of the sampler")
    parser.add_argument("--text", type=float, default=1.0, help="text guidance; 1 is none")
    parser.add_argument(
        "--audio", type=float, help="audio guidance; 1 is none (default: what the card says)"
    )
    parser.add_argument(
        "--reference", type=float, default=1.0, help="reference guidance; 1 is none"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--precision", default="auto", choices=PRECISIONS)
