"""Videos for pairs: what a system makes of a condition, as `avatar-v generate` makes it.

The first frame, its motion and the sound are those of the condition's clip; another clip of the
person is the reference, with the motion that its shard holds.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, UInt8
from torch import Tensor

from avatar_v.base.video_format import FrameRate
from avatar_v.generate.pipeline import AvatarPipeline
from avatar_v.inputs.inputs import Inputs
from avatar_v.inputs.reference_clip import ReferenceClip
from avatar_v.pairs.making import Conditions, Made
from avatar_v.request.request import Request
from avatar_v.shards.loader import levelled
from avatar_v.shards.schema import Sample, to_float
from avatar_v.types import SAMPLES_PER_FRAME
from avatar_v.weights.card import Card

MAX_REFERENCE_FRAMES = 401
"""Frames of the reference that are read: 16 s."""


@dataclass(frozen=True)
class VideoSystem:
    """Weights that make videos and the motion in them."""

    name: str
    pipeline: AvatarPipeline

    @classmethod
    def load(cls, weights: str) -> "VideoSystem":
        """Of a folder or a shipped name, on the device that is there. ValueError for weights that
        make no motion: what of the picture was judged would not be known."""
        pipeline = AvatarPipeline.from_pretrained(weights)
        if not pipeline.card.can.motion:
            raise ValueError(f"{weights} make no motion: see recipes/3_sft.yaml")
        return cls(weights, pipeline)

    @property
    def size(self) -> tuple[int, int]:
        return self.pipeline.format.video.size

    @property
    def frame_rate_hz(self) -> FrameRate:
        return self.pipeline.format.video.frame_rate_hz

    def samples(self, conditions: Conditions, seeds: Sequence[int]) -> Made:
        """One video after the other, with the pipeline's own defaults."""
        made = [
            self._sample(*of)
            for of in zip(conditions.clips, conditions.references, seeds, strict=True)
        ]
        motion, video = zip(*made, strict=True)
        return Made(torch.stack(motion), torch.stack(video))

    def _sample(
        self, clip: Sample, reference: Sample, seed: int
    ) -> tuple[Float[Tensor, "f m"], UInt8[Tensor, "f 3 h w"]]:
        request = Request.of(reference="", audio="", prompt=clip.meta.text, seed=seed)
        made = list(self.pipeline.clips(build_inputs(self.pipeline.card, clip, reference), request))
        motion = torch.cat([part.motion for part in made if part.motion is not None])
        return motion.float().cpu(), torch.cat([part.frames for part in made]).cpu()


def build_inputs(card: Card, clip: Sample, reference: Sample) -> Inputs:
    """What the pipeline reads of a condition."""
    assert clip.video is not None
    return Inputs(
        image=clip.video[0],
        audio=to_float(clip.audio),
        num_frames=clip.meta.num_frames,
        reference_frame=None,
        warnings=(),
        clips=(reference_clip(reference),) if card.can.reference else (),
        motion=clip.motion[0],
    )


def reference_clip(clip: Sample) -> ReferenceClip:
    """The beginning of a clip as a reference."""
    assert clip.video is not None
    num_frames = min(clip.meta.num_frames, MAX_REFERENCE_FRAMES)
    return ReferenceClip(
        clip.video[:num_frames],
        clip.valid[:num_frames],
        to_float(levelled(clip).audio)[: SAMPLES_PER_FRAME * num_frames],
        clip.motion[:num_frames],
        habits_known=clip.meta.habits_known,
    )
