"""The reference stream's bookkeeping: packing of valid frames, and the K, V it leaves behind.

Frames without a face are dropped before patch embedding. What is left is laid out as segments
("s w": every segment of every sample, padded to the fullest one), in which reference tokens attend
to each other, and then as keys ("b k": the frames of each sample in order, padded to the longest),
which generated tokens attend to. A mask of s x w and of b x k exists only where padding does: when
all samples have equally many valid frames, the fast path is mask-free. Padding costs at most one
partly filled segment; a loop over samples would cost a kernel launch for each.

Close-ups of the face are further frames, each a segment of its own, on the other side of the clip:
face i lies ``FACE_GAP + i`` latent frames before the clip's first, whatever the clip's length.
"""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from avatar_v.kernels.norm import rotate
from avatar_v.models.attention import KeyValue
from avatar_v.models.layers import rotary_table
from avatar_v.models.motion import motion_moments
from avatar_v.types import Reference

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
    """Several clips of each person as one stream, in segments of their own. What not every clip
    has, audio or motion, none keeps; the faces are those of all, the habits those that each clip
    tells. ValueError for no clip."""
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
    )


def reference_moments(reference: Reference) -> Float[Tensor, "b k"] | None:
    """Of its motion (models/motion.motion_moments); None where it has none."""
    if reference.moments is not None or reference.motion is None:
        return reference.moments
    return motion_moments(reference.motion, reference.valid, reference.habits_known)


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


def _joined_moments(parts: Sequence[Reference]) -> Float[Tensor, "b k"] | None:
    """Their sum, where it is not that of all frames read alike and none is without motion."""
    if all(part.moments is None and part.habits_known is None for part in parts):
        return None
    found = [moments for part in parts if (moments := reference_moments(part)) is not None]
    return torch.stack(found).sum(0) if len(found) == len(parts) else None


def anchor_frame(
    latents: Float[Tensor, "b 1 c h w"],
    like: Reference,
    *,
    audio: Float[Tensor, "b 1 n d"] | None,
    motion: Float[Tensor, "b 1 md"] | None,
) -> Reference:
    """The first latent of the video that is made, to join ``like`` with: it has audio and motion if
    that has, tells the same habits, and has no faces. Its own mark tells it from the reference: the
    scene is the anchor's."""
    num_samples, device = latents.shape[0], latents.device
    return Reference(
        latents,
        torch.ones(num_samples, 1, dtype=torch.bool, device=device),
        torch.zeros(num_samples, 1, dtype=torch.long, device=device),
        None if like.audio is None else audio,
        None if like.motion is None else motion,
        anchor=torch.ones(num_samples, 1, dtype=torch.bool, device=device),
        habits_known=like.habits_known,
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
class ReferenceCache:
    """K and V of the reference stream in every layer: computed once, read in all steps and chunks.

    Keys are stored before rotation, so the temporal offset stays an argument of the forward pass,
    which turns them as it reads them; ``turned`` does so once for passes that share an offset.
    ``num_frames`` is the length r before packing. ``moments`` are those of the reference's motion
    (models/motion.py), None where it has none.
    """

    layers: tuple[KeyValue, ...]
    key_mask: Bool[Tensor, "b k"] | None  # over tokens
    position: Int[Tensor, "b f"]  # latent-frame position of each key frame, from 0; of a face: < 0
    grid: tuple[int, int]  # tokens in y and x
    num_frames: int
    moments: Float[Tensor, "b m"] | None
    num_faces: int = 0  # k before packing
    turned_to: int | None = None  # the offset that keys are rotated for; None: not rotated

    def map(self, fn) -> "ReferenceCache":
        """The same cache with ``fn`` applied to every tensor (as in types.py)."""
        return dataclasses.replace(
            self,
            layers=tuple((fn(key), fn(value)) for key, value in self.layers),
            key_mask=None if self.key_mask is None else fn(self.key_mask),
            position=fn(self.position),
            moments=None if self.moments is None else fn(self.moments),
        )

    def turned(self, offset: int) -> "ReferenceCache":
        """The same cache with keys rotated for its first frame at temporal position ``offset``."""
        key, _ = self.layers[0]
        rotary = rotary_table(self.position + offset, *self.grid, key.shape[-1])
        layers = tuple((rotate(key, rotary), value) for key, value in self.layers)
        return dataclasses.replace(self, layers=layers, turned_to=offset)

    def as_faces(self) -> "ReferenceCache":
        """The frames of this cache as faces of a clip of no frames."""
        position = -FACE_GAP - self.position
        return dataclasses.replace(self, position=position, num_frames=0, num_faces=self.num_frames)

    def expand(self, num_samples: int) -> "ReferenceCache":
        """A cache of one sample, shared without a copy by ``num_samples``."""
        if self.position.shape[0] == num_samples:
            return self
        if self.position.shape[0] != 1:
            raise ValueError(
                f"a reference cache of {self.position.shape[0]} samples "
                f"cannot serve a batch of {num_samples}"
            )
        return self.map(lambda x: x.expand(num_samples, *x.shape[1:]))


def join_caches(first: ReferenceCache, second: ReferenceCache) -> ReferenceCache:
    """What encoding ``join_references`` of both would give: segments do not see each other, so
    neither is encoded again. ValueError for other numbers of samples, another grid, turned keys."""
    if first.turned_to is not None or second.turned_to is not None:
        raise ValueError("caches are joined before their keys are turned: joining moves them")
    sizes = [(cache.position.shape[0], cache.grid) for cache in (first, second)]
    if sizes[0] != sizes[1]:
        raise ValueError(f"caches to join have one number of samples and one grid, got {sizes}")
    mask = moments = None
    if first.moments is not None and second.moments is not None:
        moments = first.moments + second.moments
    if first.key_mask is not None or second.key_mask is not None:
        mask = torch.cat([_whole_mask(first), _whole_mask(second)], dim=1)
    return ReferenceCache(
        layers=tuple(
            (torch.cat([a[0], b[0]], dim=1), torch.cat([a[1], b[1]], dim=1))
            for a, b in zip(first.layers, second.layers, strict=True)
        ),
        key_mask=mask,
        position=torch.cat([first.position, _behind(first, second)], dim=1),
        grid=first.grid,
        num_frames=first.num_frames + second.num_frames,
        moments=moments,
        num_faces=first.num_faces + second.num_faces,
    )


def _behind(first: ReferenceCache, second: ReferenceCache) -> Int[Tensor, "b f"]:
    """Positions of ``second`` behind those of ``first``: its frames later, its faces earlier."""
    position = second.position
    is_face = position < 0
    return torch.where(is_face, position - first.num_faces, position + first.num_frames)


def _whole_mask(cache: ReferenceCache) -> Bool[Tensor, "b k"]:
    key, _ = cache.layers[0]
    if cache.key_mask is not None:
        return cache.key_mask
    return torch.ones(key.shape[:2], dtype=torch.bool, device=key.device)


@dataclass(frozen=True)
class ReferenceKeys:
    """A cache as one forward pass reads it: at a temporal offset, behind the target's own keys."""

    cache: ReferenceCache
    rotary: Float[Tensor, "b k 1 half 2"] | None  # None: the keys are turned already
    mask: Bool[Tensor, "b target_and_k"] | None  # target keys first
    moments: Float[Tensor, "b m"] | None  # of the reference's motion; 0 where it is not kept

    def layer(self, index: int) -> KeyValue:
        key, value = self.cache.layers[index]
        return (key if self.rotary is None else rotate(key, self.rotary)), value


def reference_keys(
    cache: ReferenceCache, offset: int, num_target: int, keep: Bool[Tensor, "b"] | None
) -> ReferenceKeys:
    """``cache`` with its first frame at temporal position ``offset``, for ``num_target`` tokens.

    ``keep`` False masks the reference of that sample. ValueError for a cache that is turned to
    another position.
    """
    key, _ = cache.layers[0]
    if cache.turned_to not in (None, offset):
        raise ValueError(f"the cache is turned to offset {cache.turned_to}, asked for {offset}")
    rotary = None
    if cache.turned_to is None:
        rotary = rotary_table(cache.position + offset, *cache.grid, key.shape[-1])
    mask, moments = cache.key_mask, kept_moments(cache.moments, keep)
    if keep is not None and not bool(keep.all()):
        shape = key.shape[:2]
        mask = keep[:, None].expand(shape) if mask is None else mask & keep[:, None]
    if mask is not None:
        mask = torch.cat([mask.new_ones(mask.shape[0], num_target), mask], dim=1)
    return ReferenceKeys(cache, rotary, mask, moments)


def kept_moments(
    moments: Float[Tensor, "b m"] | None, keep: Bool[Tensor, "b"] | None
) -> Float[Tensor, "b m"] | None:
    """Moments of the references' motion, 0 (no frames) where a reference is not kept."""
    return moments if moments is None or keep is None else moments * keep[:, None]


def token_mask(frame_mask: Bool[Tensor, "b k"] | None, num_tokens: int) -> Tensor | None:
    """A mask of frames as a mask of their tokens, "b (k n)"."""
    return None if frame_mask is None else frame_mask.repeat_interleave(num_tokens, dim=1)


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
