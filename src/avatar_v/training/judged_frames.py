"""Which frames critics see of a step: decoded latents, the reference's face, and their sound.

Where the face is comes from the clips. What critics make of it is perceptual.py's.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from avatar_v.critics.look import Faces
from avatar_v.critics.mfcc import batched_mfcc
from avatar_v.critics.sync import STEPS_PER_FRAME, WINDOW_STEPS
from avatar_v.models.conditioner import latent_validity
from avatar_v.models.vae import VideoVAE
from avatar_v.types import SAMPLES_PER_FRAME, TEMPORAL_FACTOR, Batch

CONTEXT_LATENTS = 2
Latents = Float[Tensor, "b l c h w"]
Video = Float[Tensor, "b f 3 height width"]
Rows = Int[Tensor, " n"]


@dataclass(frozen=True)
class CloseUp:
    """The same part of all latents of each sample."""

    rows: Int[Tensor, "n h"]
    columns: Int[Tensor, "n w"]

    @classmethod
    def around(cls, faces: Faces, side: int, height: int, width: int) -> "CloseUp":
        """``side`` cells around the middle of the faces' boxes, within frames of so many cells."""
        middle = faces.box.unflatten(-1, (2, 2)).mean((1, 2))
        parts = []
        for place, cells in ((middle[:, 1], height), (middle[:, 0], width)):
            num = min(side, cells)
            first = (place * cells - num / 2).round().clamp(0, cells - num).long()
            parts.append(first[:, None] + torch.arange(num, device=first.device))
        return cls(*parts)

    def of(self, latents: Latents) -> Float[Tensor, "b l c _h _w"]:
        each = torch.arange(len(latents), device=self.rows.device)[:, None, None]
        cells = latents.movedim((3, 4), (1, 2))[each, self.rows[:, :, None], self.columns[:, None]]
        return cells.movedim((1, 2), (3, 4))

    def faces(self, faces: Faces, height: int, width: int) -> Faces:
        """Of the whole frames, as they are in these."""
        corner = torch.stack([self.columns[:, 0], self.rows[:, 0]], dim=1)[:, None, None]
        size = [self.columns.shape[1], self.rows.shape[1]]

        def moved(points: Tensor) -> Tensor:
            x, y = (points * points.new_tensor([width, height]) - corner).unbind(-1)
            return torch.stack([x / size[0], y / size[1]], dim=-1)

        points = None if faces.landmarks is None else moved(faces.landmarks)
        return Faces(moved(faces.box.unflatten(-1, (2, 2))).flatten(2), points, faces.valid)


def decode_behind(vae: VideoVAE, before: Latents, latents: Latents) -> Video:
    """Frames of ``latents`` in [-1, 1], the decoder having seen ``before``; 4 frames a latent.
    Gradients reach ``latents`` alone."""
    decoder = vae.stream_decoder(clamp=False)
    with torch.no_grad():
        decoder.push(before)
    return decoder.push(latents)


@torch.no_grad()
def reference_faces(
    vae: VideoVAE, reference: Batch, rows: Rows
) -> Float[Tensor, "n 1 3 height width"]:
    """The first picture of each reference in which a face is seen, as the VAE shows it; the first
    of all where there is none."""
    if reference.latents is None:
        assert reference.video is not None
        first = reference.valid[rows].byte().argmax(1)
        rows = rows.to(first.device)
        return vae.decode(vae.encode(reference.video[rows, first][:, None]))
    first = latent_validity(reference.valid)[rows].byte().argmax(1)
    # behind what comes before it: a latent of four frames is not decoded alone
    back = torch.arange(-CONTEXT_LATENTS, 1, device=first.device)
    run = (first[:, None] + back).clamp(min=0).to(reference.latents.device)
    frames = vae.decode(reference.latents[rows.to(run.device)[:, None], run].float())
    is_first = (first == 0).to(frames.device)[:, None, None, None, None]
    return torch.where(is_first, frames[:, :1], frames[:, -1:])


def reference_places(reference: Batch, rows: Rows) -> Faces:
    """Where the face is in `reference_faces`; "n 1"."""
    if reference.latents is None:
        frame = reference.valid[rows].byte().argmax(1)
    else:  # the last frame of the latent
        frame = TEMPORAL_FACTOR * latent_validity(reference.valid)[rows].byte().argmax(1)
    return Faces.of(reference).at(rows[:, None], frame[:, None])


def first_frame(latent: Int[Tensor, " n"]) -> Int[Tensor, " n"]:
    """Of each latent >= 1."""
    return TEMPORAL_FACTOR * (latent - 1) + 1


def sound_windows(
    audio: Float[Tensor, "b s"], latent: Int[Tensor, " b"], num_frames: int
) -> Float[Tensor, "b n 20 13"]:
    """The sound of every run of 5 among ``num_frames`` frames from latent ``latent`` >= 1 on."""
    padded = F.pad(audio, (0, SAMPLES_PER_FRAME))  # the last MFCC reaches past the clip
    first = STEPS_PER_FRAME * first_frame(latent)
    steps = (first[:, None] + torch.arange(STEPS_PER_FRAME * num_frames)).to(audio.device)
    rows = torch.arange(len(audio), device=audio.device)[:, None]
    found = batched_mfcc(padded)[rows, steps]
    return found.unfold(1, WINDOW_STEPS, STEPS_PER_FRAME).movedim(-1, 2)
