"""The reference stream's bookkeeping: joining of clips, and packing of their valid frames.

Frames without a face are dropped before patch embedding. The others are laid out as segments
("s w": every segment of every sample, padded to the fullest one), in which reference tokens attend
to each other, and then as keys ("b k": the frames of each sample in order, padded to the longest),
which generated tokens attend to. A mask of s x w and of b x k exists only where padding does, and
stays on the CPU: attention reads from it which keys each sample has (kernels/key_mask.py), and
leaves the padding alone. Padding costs its own queries, of at most one partly filled segment.

Which frames are valid decides shapes, so `pack_reference` computes indices on the CPU; behind it
the network (models/dit.py) reads tensors alone, and no device is waited for. A compiler leaves it
between two graphs. The stream leaves a
KeyValueCache behind (models/cache.py).

An anchor, the first frame of the video that is made, joins behind the clips and moves no frame.
Close-ups of the face are further frames, each a segment of its own, on the other side of the clip:
face i lies ``FACE_GAP + i`` latent frames before the clip's first, whatever the clip's length.
"""

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar, cast

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from avatar_v.motion.stats import MotionStats
from avatar_v.motion.style import motion_moments
from avatar_v.types import Reference

_F = TypeVar("_F", bound=Callable)

SEGMENT_LENGTH = 8
"""Latent frames of one clip that form a segment (our choice)."""
FACE_GAP = 8
"""Latent frames of RoPE distance between a clip and its first face (our choice)."""
NUM_STILLS = 16
"""Single frames that are kept of a clip, and stand for it (our choice)."""
NUM_FACES = 2
"""Faces of a clip that the model is shown, in training and in generation."""


def segments(num_latents: int, device: torch.device | str = "cpu") -> Int[Tensor, " r"]:
    """Segment numbers of one clip's latent frames: 0 × 8, 1 × 8, …"""
    return torch.arange(num_latents, device=device) // SEGMENT_LENGTH


def join_references(parts: Sequence[Reference]) -> Reference:
    """Several clips of each person as one stream, in segments of their own. Audio, motion or face
    vectors that not every clip has, none keeps; the faces are those of all, the habits those that
    each clip tells. ValueError for no clip."""
    if not parts:
        raise ValueError("a reference has at least one clip, got none")
    next_segment, numbers = 0, []
    for part in parts:
        numbers.append(part.segment - part.segment.min() + next_segment)
        next_segment = int(numbers[-1].max()) + 1

    def joined(name: str) -> Tensor | None:
        values = [getattr(part, name) for part in parts]
        return None if any(value is None for value in values) else torch.cat(values, dim=1)

    def together(name: str) -> Tensor | None:
        values = [getattr(part, name) for part in parts if part.faces is not None]
        return torch.cat(values, dim=1) if values else None

    return Reference(
        latents=torch.cat([part.latents for part in parts], dim=1),
        valid=torch.cat([part.valid for part in parts], dim=1),
        segment=torch.cat(numbers, dim=1),
        audio=joined("audio"),
        motion=joined("motion"),
        faces=together("faces"),
        faces_valid=together("faces_valid"),
        anchor=_joined_anchor(parts),
        habits_known=_known_in_all(parts),
        moments=_joined_moments(parts),
        identity=joined("identity"),
    )


def _joined_anchor(parts: Sequence[Reference]) -> Bool[Tensor, "b r"] | None:
    if all(part.anchor is None for part in parts):
        return None
    return torch.cat(
        [torch.zeros_like(part.valid) if part.anchor is None else part.anchor for part in parts],
        dim=1,
    )


def _known_in_all(parts: Sequence[Reference]) -> Bool[Tensor, "#b m"] | None:
    known = [part.habits_known for part in parts if part.habits_known is not None]
    return torch.stack(torch.broadcast_tensors(*known)).all(0) if known else None


def reference_moments(
    reference: Reference, stats: MotionStats | None
) -> Float[Tensor, "b k"] | None:
    """Moments of its motion (motion/style.motion_moments); None where it has none. ValueError for
    motion without the statistics that it is packed by."""
    if reference.moments is not None or reference.motion is None:
        return reference.moments
    if stats is None:
        raise ValueError("a reference has motion, and these weights have no motion statistics")
    return motion_moments(reference.motion, reference.valid, stats, reference.habits_known)


def _joined_moments(parts: Sequence[Reference]) -> Float[Tensor, "b k"] | None:
    """Their sum where each part has them; None where none has, or one has no motion."""
    if any(part.motion is None for part in parts):
        return None
    found = [part.moments for part in parts if part.moments is not None]
    if found and len(found) < len(parts):
        raise ValueError("either all or none of the clips of a person come with their moments")
    return torch.stack(found).sum(0) if found else None


def anchor_frame(
    latents: Float[Tensor, "b 1 c h w"],
    like: Reference,
    *,
    audio: Float[Tensor, "b 1 n d"] | None,
    motion: Float[Tensor, "b 1 md"] | None,
    stats: MotionStats | None = None,
) -> Reference:
    """The first latent of the video that is made, to join ``like`` with: it has audio and motion if
    that has, tells the same habits, and has neither faces nor a face vector. Its own mark tells it
    from the reference: the scene is the anchor's. ``stats``: those of motion, where there is
    some."""
    num_samples, device = latents.shape[0], latents.device
    valid = torch.ones(num_samples, 1, dtype=torch.bool, device=device)
    motion, moments = None if like.motion is None else motion, None
    if motion is not None:
        assert stats is not None, "motion is packed by its statistics"
        moments = motion_moments(motion, valid, stats, like.habits_known)
    return Reference(
        latents,
        valid,
        torch.zeros(num_samples, 1, dtype=torch.long, device=device),
        None if like.audio is None else audio,
        motion,
        anchor=torch.ones(num_samples, 1, dtype=torch.bool, device=device),
        habits_known=like.habits_known,
        moments=moments,
        identity=None if like.identity is None else torch.zeros_like(like.identity[:, :1]),
    )


@dataclass(frozen=True)
class ReferenceLayout:
    """Where each valid reference frame goes. Indices count frames, not tokens."""

    frames: Int[Tensor, "s w"]  # into the flat (b r); padding repeats the segment's first frame
    frame_mask: Bool[Tensor, "s w"] | None  # None: no padding
    keys: Int[Tensor, "b k"]  # into the flat (s w)
    key_mask: Bool[Tensor, "b k"] | None  # None: no padding
    position: Int[Tensor, "b k"]  # r of each key frame: packing does not move a frame in time


def pack_frames(valid: Bool[Tensor, "b r"], segment: Int[Tensor, "b r"]) -> ReferenceLayout | None:
    """The layout of the valid frames, or None when there is not one."""
    num_samples, num_frames = valid.shape
    index = valid.flatten().nonzero().squeeze(1)
    if len(index) == 0:
        return None
    sample = index // num_frames
    low, high = segment.amin(), segment.amax()
    group = sample * (high - low + 1) + segment.flatten()[index] - low
    group, slot, sizes = _rank(group)
    frames = index.new_zeros(len(sizes), int(sizes.max()))
    frames[group, slot] = index
    mask = _padding_mask(sizes)
    if mask is not None:
        frames = torch.where(mask, frames, frames[:, :1])
    _, rank, _ = _rank(sample)
    num_keys = torch.bincount(sample, minlength=num_samples)
    keys = index.new_zeros(num_samples, int(num_keys.max()))
    keys[sample, rank] = group * frames.shape[1] + slot
    position = torch.zeros_like(keys)
    position[sample, rank] = index % num_frames
    return ReferenceLayout(frames, mask, keys, _padding_mask(num_keys), position)


@dataclass(frozen=True)
class PackedFrames:
    """The frames of a clip, or its faces, as the network reads them; indices count frames."""

    latents: Float[Tensor, "s w c h w2"]
    audio: Float[Tensor, "s w n d"] | None
    motion: Float[Tensor, "s w md"] | None
    identity: Float[Tensor, "s w i"] | None
    is_anchor: Bool[Tensor, "s w"] | None
    place: Int[Tensor, "s w"]  # r: frames of a segment see each other at these positions
    mask: Bool[Tensor, "s w"] | None  # on the CPU; None: no padding
    keys: Int[Tensor, "b k"]  # into the flat (s w)
    key_mask: Bool[Tensor, "b k"] | None  # on the CPU; None: no padding
    position: Int[Tensor, "b k"]  # of each key frame, the target's first being 0


@dataclass(frozen=True)
class PackedReference:
    """A reference without its invalid frames; at least one of the two streams is there."""

    clip: PackedFrames | None
    faces: PackedFrames | None


def _between_graphs(fn: _F) -> _F:
    """``fn`` as it is, also where a compiler traces its caller: its numbers decide shapes. The
    compiler, seconds of imports, is asked only there."""

    @functools.wraps(fn)
    def outside(*args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_dynamo_compiling():
            return torch.compiler.disable(fn)(*args, **kwargs)
        return fn(*args, **kwargs)

    return cast(_F, outside)


@_between_graphs
def pack_reference(reference: Reference, *, gap: int) -> PackedReference | None:
    """The reference ready for the network, or None for one of no frames and no faces.

    The clip's last frame lies ``gap`` before the target's first, whether there is an anchor or not,
    and an anchor lies between the two, behind the clip's last. A clip whose frames are all
    invalid gives one frame of zeros that nothing attends to: sharded, all ranks have to run this
    stream.
    """
    is_anchor = torch.zeros(reference.latents.shape[1], dtype=torch.bool)
    if reference.anchor is not None:
        is_anchor = reference.anchor[0].cpu()  # alike in all samples
    first = 1 - gap - int((~is_anchor).sum())
    clip = _packed(reference, torch.where(is_anchor, 1 - gap, first - 1 + (~is_anchor).cumsum(0)))
    faces = None
    if reference.faces is not None and reference.faces_valid is not None:
        number = torch.arange(reference.faces.shape[1])
        segment = number.expand(len(reference.faces), -1)
        alone = Reference(reference.faces, reference.faces_valid, segment)
        faces = _packed(alone, first - FACE_GAP - number)
    return None if clip is None and faces is None else PackedReference(clip, faces)


def _packed(reference: Reference, positions: Int[Tensor, " r"]) -> PackedFrames | None:
    """``positions`` are those of the clip's frames, valid or not."""
    valid, segment = reference.valid.cpu(), reference.segment.cpu()
    is_blind = not bool(valid.any())
    if is_blind:
        reference = reference.map(torch.zeros_like)
        valid = (torch.arange(valid.shape[1]) == 0).expand_as(valid)
    layout = pack_frames(valid, segment)
    if layout is None:
        return None
    device = reference.latents.device
    frames = layout.frames.to(device, non_blocking=True)

    def packed(x: Tensor | None) -> Tensor | None:
        return None if x is None else x.flatten(0, 1)[frames]

    latents = packed(reference.latents)
    assert latents is not None
    return PackedFrames(
        latents=latents,
        audio=packed(reference.audio),
        motion=packed(reference.motion),
        identity=packed(reference.identity),
        is_anchor=packed(reference.anchor),
        place=frames % valid.shape[1],
        mask=layout.frame_mask,
        keys=layout.keys.to(device, non_blocking=True),
        key_mask=torch.zeros_like(layout.keys, dtype=torch.bool) if is_blind else layout.key_mask,
        position=positions[layout.position].to(device, non_blocking=True),
    )


def kept_moments(
    moments: Float[Tensor, "b m"] | None, keep: Bool[Tensor, "b"] | None
) -> Float[Tensor, "b m"] | None:
    """Moments of the references' motion, 0 (no frames) where a reference is not kept."""
    if moments is None or keep is None:
        return moments
    return moments * keep[:, None].to(moments.device, non_blocking=True)


def _rank(
    group: Int[Tensor, " n"],
) -> tuple[Int[Tensor, " n"], Int[Tensor, " n"], Int[Tensor, " g"]]:
    """Dense group number of each element, its rank within its group, and the group sizes."""
    _, group, sizes = torch.unique(group, return_inverse=True, return_counts=True)
    start = torch.cat([sizes.new_zeros(1), sizes.cumsum(0)[:-1]])
    order = group.argsort(stable=True)
    rank = torch.empty_like(order)
    rank[order] = torch.arange(len(order), device=order.device)
    return group, rank - start[group], sizes


def _padding_mask(sizes: Int[Tensor, " g"]) -> Bool[Tensor, "g longest"] | None:
    longest = sizes.max()
    if bool((sizes == longest).all()):
        return None
    return torch.arange(int(longest), device=sizes.device) < sizes[:, None]
