"""What a step of stage 3 shows of a reference: a run or single frames of it, its motion, its faces.

Everything is drawn alike for the whole batch and all ranks, and no draw depends on the clips:
sharded, ranks that run other parts of the network, or draw other amounts, wait for each other for
ever.
"""

import contextlib
import dataclasses
from collections.abc import Iterator
from contextvars import ContextVar
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from avatar_v.base import checks
from avatar_v.losses.flow import box_cover, latent_boxes
from avatar_v.models.conditioner import Conditioner
from avatar_v.models.reference import NUM_FACES, NUM_STILLS
from avatar_v.training.windows import bernoulli
from avatar_v.types import Batch, Reference, num_latents

PICTURE_DROPOUT = 0.5
"""Least share of steps without faces among those whose reference is one latent."""
HEAD_MARGINS = (-0.4, -0.5, 0.4, 0.25)
"""Added to the left, upper, right and lower side of a face's box, in its widths and heights: the
head with its hair, without clothes and room (our choice)."""


@dataclass(frozen=True)
class Personality:
    """Numbers of the reference and of the motion that the video follows."""

    min_reference_latents: int = 1  # of a step, drawn between the two (draw_run)
    max_reference_latents: int = 1_000_000  # cut to what the clip has
    reference_dropout: float = 0.1  # share of samples without a reference
    reference_motion_dropout: float = 0.0  # share of steps whose reference is without its motion
    motion_dropout: float = 0.1  # share of steps whose video is made without its motion
    stills_share: float = 0.0
    """Share of steps in which single frames stand for the reference's video, beside the statistics
    of its motion (`avatar-v shards stills`); generation then reads frames, too
    (Capabilities.stills)."""
    background_dropout: float = 0.0
    """Share of steps whose reference shows heads alone: its latents are 0 where neither a face nor
    its margin (HEAD_MARGINS) reaches, so that no room and no clothes are there to be copied."""
    faces: bool = False  # close-ups of the reference's face are read (`avatar-v shards faces`)
    faces_dropout: float = 0.2  # share of steps without them (more with one latent)

    def __post_init__(self) -> None:
        low, high = self.min_reference_latents, self.max_reference_latents
        if not 1 <= low <= high:
            raise ValueError(f"a reference has 1 <= min <= max latents, got {low} and {high}")
        shares = ("reference_dropout", "reference_motion_dropout", "motion_dropout")
        checks.each(
            checks.share, self, (*shares, "stills_share", "background_dropout", "faces_dropout")
        )


def draw_reference(
    batch: Batch,
    conditioner: Conditioner,
    numbers: Personality,
    generator: torch.Generator | None,
) -> Reference:
    """What is shown of these clips: a run of each, or frames that stand for it, perhaps without its
    motion, and faces and a face vector where they are read. Without a generator all of it, or all
    of them. ValueError where faces or stills are asked for that the clips do not have."""
    whole = batch
    start, length, with_motion = 0, num_latents(batch.motion.shape[1]), True
    if generator is not None:
        start, length = draw_run(
            length, numbers.min_reference_latents, numbers.max_reference_latents, generator
        )
        with_motion = not bernoulli(numbers.reference_motion_dropout, generator)
        if numbers.background_dropout > 0 and bernoulli(numbers.background_dropout, generator):
            batch = heads_alone(batch, conditioner)
    as_stills = numbers.stills_share > 0
    if as_stills and generator is not None:
        as_stills = bernoulli(numbers.stills_share, generator)
    if as_stills:
        reference = draw_stills(batch, conditioner, start, length, generator)
    else:
        reference = conditioner.encode_reference(batch, start, length)
    reference = conditioner.with_identity(reference, whole)
    if not with_motion:
        reference = dataclasses.replace(reference, motion=None, moments=None)
    if not numbers.faces:
        return reference.without_faces()
    if reference.faces is None:
        raise ValueError(
            "personality.faces needs clips with close-ups of the face (and their latents): add "
            "them with `avatar-v shards faces`"
        )
    return draw_faces(reference, numbers, generator)


def heads_alone(batch: Batch, conditioner: Conditioner) -> Batch:
    """``batch`` whose latents and stills are 0 outside of heads. Of a latent frame without a face
    nothing stays, and the reference leaves it out anyway."""
    boxes = latent_boxes(batch.face_box, batch.valid)
    shown = dataclasses.replace(batch, latents=_inside(conditioner.clean_latents(batch), boxes))
    if batch.stills is None or batch.still_frames is None:
        return shown
    row = torch.arange(len(batch.stills), device=batch.face_box.device)[:, None]
    boxes = batch.face_box[row, batch.still_frames.to(row.device).long()]
    return dataclasses.replace(shown, stills=_inside(batch.stills, boxes))


def _inside(
    latents: Float[Tensor, "b n c h w"], boxes: Float[Tensor, "b n 4"]
) -> Float[Tensor, "b n c h w"]:
    """``latents`` in the cells that a head reaches, else 0. An empty box reaches none."""
    size = (boxes[..., 2:] - boxes[..., :2]).clamp(min=0).repeat(1, 1, 2)
    heads = boxes + size * boxes.new_tensor(HEAD_MARGINS)
    cells = box_cover(heads, *latents.shape[-2:]) > 0
    return latents * cells.to(latents.device)


def draw_run(whole: int, least: int, most: int, generator: torch.Generator) -> tuple[int, int]:
    """Start and length of a run of ``least`` to ``most`` latents of a reference of ``whole``.

    The logarithm of the length is uniform: one latent more says much where there are two and
    little where there are a hundred, and a step costs in proportion to the length.
    """
    high = min(most, whole)
    low = high if _LONGEST.get() else min(least, high)
    uniform = float(torch.rand((), generator=generator))
    length = min(int(low * ((high + 1) / low) ** uniform), high)
    return int(torch.randint(whole - length + 1, (), generator=generator)), length


_LONGEST: ContextVar[bool] = ContextVar("longest", default=False)


@contextlib.contextmanager
def longest_runs() -> Iterator[None]:
    """Within the block `draw_run` draws none but the longest: a plan of memory asks for them."""
    token = _LONGEST.set(True)
    try:
        yield
    finally:
        _LONGEST.reset(token)


def draw_faces(
    reference: Reference, numbers: Personality, generator: torch.Generator | None
) -> Reference:
    """``reference`` with some of its faces, drawn alike for the whole batch, or with none.

    A reference of one latent stands for a picture: it shows one face, or in half of the steps none,
    so that a picture alone stays a trained condition. Without a generator the faces are evenly
    spread over those there are, and none are dropped.
    """
    assert reference.faces is not None
    assert reference.faces_valid is not None
    if reference.faces.shape[1] == 0:  # of no clip: one that is hidden, since other ranks have some
        blank = reference.faces.new_zeros(len(reference.faces), 1, *reference.faces.shape[2:])
        hidden = reference.faces_valid.new_zeros(len(blank), 1)
        reference = dataclasses.replace(reference, faces=blank, faces_valid=hidden)
    assert reference.faces is not None
    assert reference.faces_valid is not None
    is_picture = reference.latents.shape[1] == 1
    whole = reference.faces.shape[1]
    num = min(1 if is_picture else NUM_FACES, whole)
    if generator is None:
        chosen = ((torch.arange(num) + 0.5) * whole / max(num, 1)).long()
    else:
        dropout = max(numbers.faces_dropout, PICTURE_DROPOUT if is_picture else 0.0)
        dropped = float(torch.rand((), generator=generator)) < dropout
        # a generator of its own: what is drawn from the common one must not depend on the clips
        own = torch.Generator().manual_seed(int(torch.randint(2**62, (), generator=generator)))
        chosen = torch.randperm(whole, generator=own)[:num]
        if dropped:
            return reference.without_faces()
    return dataclasses.replace(
        reference, faces=reference.faces[:, chosen], faces_valid=reference.faces_valid[:, chosen]
    )


def draw_stills(
    batch: Batch,
    conditioner: Conditioner,
    start: int,
    length: int,
    generator: torch.Generator | None,
) -> Reference:
    """Some of the stills of clips, with the moments of a run of their motion; without a generator
    all of them. Where no clip of the batch shows a face they are there and hidden."""
    places = torch.arange(NUM_STILLS)
    if generator is not None:
        _, num = draw_run(NUM_STILLS, 1, NUM_STILLS, generator)
        places = torch.randperm(NUM_STILLS, generator=generator)[:num].sort().values
    if batch.stills is not None and batch.stills.shape[1] == 0:
        batch = _with_a_hidden_still(batch)
    reference = conditioner.encode_stills(batch, places)
    run = slice(start, start + length)
    moments = conditioner.clip_moments(batch.motion, batch.valid, run, batch.habits_known)
    return dataclasses.replace(reference, moments=moments.to(reference.latents.device))


def _with_a_hidden_still(batch: Batch) -> Batch:
    """Clips without a still with one that is not valid, for ranks that have none."""
    assert batch.stills is not None
    assert batch.stills_valid is not None
    assert batch.still_frames is not None
    num = len(batch.stills)
    return dataclasses.replace(
        batch,
        stills=batch.stills.new_zeros(num, 1, *batch.stills.shape[2:]),
        stills_valid=batch.stills_valid.new_zeros(num, 1),
        still_frames=batch.still_frames.new_zeros(num, 1),
    )
