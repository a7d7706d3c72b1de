"""A batch of the largest clips of a run, as its data give it: pictures and latents without memory,
what says where they lie with its values."""

from dataclasses import dataclass, replace

import torch
from torch._subclasses.fake_tensor import unset_fake_temporarily

from avatar_v.base.video_format import VideoFormat
from avatar_v.models.reference import NUM_FACES, NUM_STILLS
from avatar_v.models.text import StoredText
from avatar_v.planning.recipe import Recipe
from avatar_v.shards.pair_data import PairData
from avatar_v.shards.pairs import NUM_PORTRAITS
from avatar_v.training.engine import Engine
from avatar_v.training.motion import MotionSubject
from avatar_v.types import Batch, PreferencePairs, PreferenceVideos, num_latents
from avatar_v.weights.random import make_batch


@dataclass(frozen=True)
class Clips:
    """What a rank reads in a batch."""

    batch_size: int
    num_frames: int
    video: VideoFormat

    @property
    def latents(self) -> int:
        return num_latents(self.num_frames)


def largest_batch(stage: Engine, recipe: Recipe, clips: Clips) -> Batch:
    """Call it within measure.pretending."""
    data = recipe.data
    states, text = None, stage.conditioner.text_encoder
    if isinstance(text, StoredText):
        states = torch.empty(clips.batch_size, text.num_tokens, text.dim, dtype=torch.float16)
    if isinstance(data, PairData):
        return replace(_pairs(clips, videos=data.videos), text_states=states)
    batch = _clips(stage, clips, video=data.decode_video)
    batch = replace(batch, text_states=states)
    return (
        replace(batch, reference=_clips(stage, clips, video=data.decode_video))
        if data.pairs
        else batch
    )


def _clips(stage: Engine, clips: Clips, *, video: bool) -> Batch:
    b, (height, width) = clips.batch_size, clips.video.size
    with unset_fake_temporarily():
        batch = replace(make_batch(b, clips.num_frames, 1), video=None)
    if isinstance(stage.subject, MotionSubject):
        return batch
    vae = stage.conditioner.vae
    cells = (height // vae.spatial_factor, width // vae.spatial_factor)

    def latents(num: int) -> torch.Tensor:
        return torch.empty(b, num, vae.latent_channels, *cells)

    if video:
        batch = replace(batch, video=torch.empty(b, clips.num_frames, 3, height, width))
    else:
        batch = replace(batch, latents=latents(clips.latents), low=latents(clips.latents))
    with unset_fake_temporarily():
        faces, stills = (torch.ones(b, num, dtype=torch.bool) for num in (NUM_FACES, NUM_STILLS))
        frames = torch.arange(NUM_STILLS).expand(b, -1) % clips.num_frames
    return replace(
        batch,
        faces=latents(NUM_FACES), faces_valid=faces,
        stills=latents(NUM_STILLS), stills_valid=stills, still_frames=frames,
    )  # fmt: skip


def _pairs(clips: Clips, *, videos: bool) -> Batch:
    b = clips.batch_size
    shape = (b, clips.num_frames, 3, *clips.video.size)
    shown = (torch.empty(shape), torch.empty(shape), torch.empty(b, NUM_PORTRAITS, *shape[2:]))
    with unset_fake_temporarily():
        batch, reference = (replace(make_batch(b, clips.num_frames, 1), video=None) for _ in "ab")
        seen = torch.ones(b, NUM_PORTRAITS, dtype=torch.bool)
        preferences = PreferencePairs(
            batch.motion, batch.motion, torch.arange(b) % 2, ("overall",) * b,
            PreferenceVideos(*shown, seen) if videos else None,
        )  # fmt: skip
    return replace(batch, reference=reference, preferences=preferences)
