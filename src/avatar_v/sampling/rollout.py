"""A video's latents, chunk after chunk: the steps of a chunk, which training and generation share.

`begin` encodes the reference; then each chunk takes what the one before hands on (`ChunkState`), is
made by `make_chunk`, and hands on its own end (`next_state`). Who calls them has the loop. These
are functions of tensors for batches of any size, with gradients where the caller wants them:
whoever wants none enters ``torch.no_grad`` or ``torch.inference_mode``.

The draws of a chunk depend on the seeds and its number alone, so it is the same in whatever order,
thread, batch and run chunks are made. Guidance is guidance.py's, the steps are solver.py's, their
numbers settings.py's, and which latents belong to a chunk is decided in chunks.py.
"""

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from avatar_v.base.seeds import derive
from avatar_v.flow import Latents
from avatar_v.models.cache import KeyValueCache
from avatar_v.models.causal import Corruption
from avatar_v.models.dit import AvatarDiT
from avatar_v.models.motion_net import MotionNet
from avatar_v.models.reference import anchor_frame
from avatar_v.motion.listening import Added, with_added
from avatar_v.motion.own_units import build_style
from avatar_v.motion.stats import MotionStats
from avatar_v.sampling.blend import blended
from avatar_v.sampling.chunks import OVERLAP, Chunk, interpolation
from avatar_v.sampling.guidance import Passes, guided_passes
from avatar_v.sampling.motion import guided_motion
from avatar_v.sampling.settings import Settings
from avatar_v.sampling.solver import Draw, VelocityFn, normal, sample
from avatar_v.types import Cond, MotionCond, Reference, Style

States = tuple[Tensor, ...]
"""Of a chunk: latents "b l c h w", and where they follow a motion that motion, "b l md"."""


@dataclass(frozen=True)
class ChunkVelocity:
    """The guided velocities of the first so many latents of a chunk."""

    video: Callable[[int, Tensor | None], VelocityFn]  # given their motion, where there is some
    motion: Callable[[int], VelocityFn] | None = None
    passes: Callable[[int, Tensor | None], Passes] | None = None
    """Those of ``video``, whose blocks a causal network makes (sampling/blocks.py)."""
    num_heard: int = 0  # latents whose sound is there, those behind the chunk too
    nods: Added | None = None
    """The video is made with them; the motion goes on without."""
    joint: Callable[[int], VelocityFn] | None = None
    """Of video and motion denoised together, packed (`pack`)."""

    def after(self, motion: Tensor | None) -> "ChunkVelocity":
        """Those of the video after a ``motion`` that is there already, or after none."""
        passes = self.passes
        assert passes is not None
        return ChunkVelocity(
            lambda num, _: self.video(num, motion), passes=lambda num, _: passes(num, motion)
        )


@dataclass(frozen=True)
class Words:
    """The text of a request, encoded."""

    text: Float[Tensor, "b n d"]
    no_text: Float[Tensor, "b n d"]  # the encoding of "", for guidance


@dataclass(frozen=True)
class History:
    """The last blocks of a causal network: their keys and values as each step of the sampler saw
    them (Live Avatar's timestep forcing), or one cache that all steps see (Streaming.history), of
    all passes; and the place of the next block. ``caches`` is empty before the first block."""

    caches: tuple[KeyValueCache, ...]
    next_start: int

    def map(self, fn: Callable[[KeyValueCache], KeyValueCache]) -> "History":
        return History(tuple(fn(cache) for cache in self.caches), self.next_start)


@dataclass(frozen=True)
class ChunkState:
    """The state between two chunks: clean latents to begin with, and the encoded reference."""

    prefixes: States  # the first frame, later the end of the chunk before; and its motion
    past: KeyValueCache | None
    """The encoded reference serves all steps and chunks: rotated, unless blocks are to follow it,
    whose keys are not."""
    reference: Reference | None  # of the person, as `begin` was given it
    motion_stats: MotionStats | None  # those of the network
    moments: Float[Tensor, "b k"] | None = None  # of the motion of reference and anchor
    style: Style | None = None  # of the person, for the motion network
    anchor: Reference | None = None  # the first latent made, which joins at the next chunk
    history: History | None = None  # of a causal network

    def detach(self) -> "ChunkState":
        """The same state without gradients into the chunks before."""
        prefixes = tuple(prefix.detach() for prefix in self.prefixes)
        anchor = None if self.anchor is None else self.anchor.map(torch.detach)
        history = None if self.history is None else self.history.map(KeyValueCache.detach)
        return dataclasses.replace(self, prefixes=prefixes, anchor=anchor, history=history)


def begin(
    dit: AvatarDiT, prefixes: States, reference: Reference | None, settings: Settings
) -> ChunkState:
    """The carry in front of the first chunk. ``prefixes`` are the first latent frame and, where
    motion is made, its motion (of no frames with ``settings.from_prompt``).

    The reference goes through the network once. ValueError for an anchor without a reference.
    """
    if settings.anchor and reference is None:
        raise ValueError("an anchor joins the reference of a person, and this one has none")
    cache = None if reference is None else dit.encode_reference(reference)
    moments, style = dit.reference_moments(reference), None
    if moments is not None and dit.motion_stats is not None:
        style = build_style(moments, dit.motion_stats)
    return ChunkState(
        prefixes,
        _as_read(dit, cache),
        reference,
        dit.motion_stats,
        moments,
        style,
    )


def join_anchor(dit: AvatarDiT, carry: ChunkState) -> ChunkState:
    """``carry`` with the anchor, if one waits, in the encoded reference."""
    if carry.anchor is None:
        return carry
    added = _as_read(dit, dit.encode_reference(carry.anchor))
    assert added is not None, "an anchor has one frame"
    past = added if carry.past is None else carry.past.append(added)
    moments, more = carry.moments, dit.reference_moments(carry.anchor)
    moments = None if moments is None or more is None else moments + more
    return dataclasses.replace(carry, past=past, moments=moments, anchor=None)


def _as_read(dit: AvatarDiT, cache: KeyValueCache | None) -> KeyValueCache | None:
    return cache if cache is None or dit.config.is_causal else cache.rotated()


def pack(video: Tensor, motion: Tensor) -> Tensor:
    """One state "b l (c h w + md) 1 1" of both."""
    return torch.cat([video.flatten(2).float(), motion.float()], -1)[..., None, None]


def unpack(state: Tensor, like: Tensor) -> tuple[Tensor, Tensor]:
    """The video, shaped as ``like``, and the motion."""
    flat, size = state[..., 0, 0], like.shape[2:].numel()
    return flat[..., :size].unflatten(2, like.shape[2:]), flat[..., size:]


class Together(torch.nn.Module):
    """A DiT that takes video and motion packed, and gives both velocities so."""

    def __init__(self, dit: AvatarDiT, size: int) -> None:
        super().__init__()
        self.dit, self.latents = dit, dit.config.latent_channels

    def forward(self, x: Tensor, t: Tensor, cond: Cond, *, past: KeyValueCache | None) -> Tensor:
        side = int(((x.shape[2] - self.dit.config.motion_dim) // self.latents) ** 0.5)
        like = x.new_empty(1, 1, self.latents, side, side)
        video, motion = unpack(x, like)
        cond = dataclasses.replace(cond, motion=motion)
        return pack(*self.dit(video, t, cond, past=past, joint=True))


def next_state(
    carry: ChunkState,
    states: States,
    chunk: Chunk,
    audio: Float[Tensor, "b l n d"],
    settings: Settings,
) -> ChunkState:
    """The carry behind ``chunk``, which came out as ``states``."""
    prefixes = tuple(state[:, -OVERLAP:] for state in states)
    carry = dataclasses.replace(carry, prefixes=prefixes)
    is_placed = chunk.index > 0 or settings.streaming.sink == "replaced"
    if is_placed or not settings.anchor or carry.reference is None:
        return carry
    first, *motion = (state[:, :1] for state in states)
    return with_anchor_frame(carry, first, audio[:, :1], motion[0] if motion else None)


def with_anchor_frame(
    carry: ChunkState,
    first: Float[Tensor, "b 1 c h w"],
    audio: Float[Tensor, "b 1 n d"] | None,
    motion: Float[Tensor, "b 1 md"] | None,
) -> ChunkState:
    """``carry`` with a latent frame that was made as the anchor that waits."""
    assert carry.reference is not None
    stats = carry.motion_stats
    anchor = anchor_frame(first, carry.reference, audio=audio, motion=motion, stats=stats)
    return dataclasses.replace(carry, anchor=anchor)


def chunk_velocity(
    dit: AvatarDiT,
    words: Words,
    audio: Float[Tensor, "b l n d"] | None,
    carry: ChunkState,
    settings: Settings,
    motion_net: MotionNet | None = None,
    weights: Float[Tensor, "b 3"] | None = None,
    *,
    heard: Float[Tensor, "b l n d"] | None = None,
) -> ChunkVelocity:
    """The guided velocities of the chunk that has this sound, if any, and begins with this carry.

    Its motion also listens to what is ``heard`` of somebody else. ``weights`` tell a network with
    guidance inside the guidance of each sample, in place of that of ``settings``.
    """

    def begun(tokens: Tensor | None, num_latents: int) -> Float[Tensor, "b l n d"] | None:
        return None if tokens is None else tokens[:, :num_latents]

    def passes(num_latents: int, motion: Tensor | None) -> Passes:
        made = guided_passes(
            dit,
            Cond(
                words.text,
                begun(audio, num_latents),
                moments=carry.moments,
                motion=motion,
                guidance=weights,
            ),
            text=settings.guidance_text,
            audio=settings.guidance_audio,
            reference=settings.guidance_reference,
            no_text=words.no_text,
            past=carry.past,
        )
        corruption = Corruption.of(settings.streaming, settings.seed)
        if corruption is None or not dit.config.is_causal:
            return made
        return dataclasses.replace(made, corruption=corruption)

    def video(num_latents: int, motion: Tensor | None) -> VelocityFn:
        return passes(num_latents, motion).velocity

    if motion_net is None:
        return ChunkVelocity(
            video,
            passes=passes,
            joint=lambda num: (
                dataclasses.replace(
                    passes(num, None), dit=Together(dit, words.text.shape[0])
                ).velocity
            ),
        )

    def motion(num_latents: int) -> VelocityFn:
        weight_audio, weight_style = settings.motion_weights
        cond = MotionCond(
            begun(audio, num_latents), heard=begun(heard, num_latents), style=carry.style
        )
        return guided_motion(motion_net, cond, audio=weight_audio, style=weight_style)

    return ChunkVelocity(video, motion, passes, 0 if audio is None else audio.shape[1])


def make_chunk(
    velocity: ChunkVelocity,
    prefixes: States,
    chunk: Chunk,
    settings: Settings,
    seeds: Sequence[int],
    *,
    num_moves: int | None = None,
) -> States:
    """All latents of an N chunk, its clean prefix included; and their motion, where it is made.
    With ``settings.blend`` its picture is `blended`. With ``num_moves`` the video is x_0 as it is
    seen after so many steps (`Settings.times`).
    """
    latents, *motion = _transitioned(velocity, prefixes, chunk, settings, seeds, num_moves)
    if settings.blend and chunk.mode == "prefix2v":
        latents = blended(latents, chunk.num_prefix)
    return (latents, *motion)


def check_finite(states: States, chunk: int) -> States:
    """``states`` of the chunk of this number; ValueError for a video or a motion that is not
    finite."""
    if not all(bool(torch.isfinite(state).all()) for state in states):
        raise ValueError(
            f"chunk {chunk} came out without finite numbers: the weights hold some, or "
            "guidance is too strong"
        )
    return states


def _transitioned(
    velocity: ChunkVelocity,
    prefixes: States,
    chunk: Chunk,
    settings: Settings,
    seeds: Sequence[int],
    num_moves: int | None,
) -> States:
    """The chunk as it is sampled.

    With ``settings.interpolate`` its first new latents are those of its I chunk: made once more
    between the end of the chunk before and a latent of this one, both of them clean.
    """
    states = _sampled(velocity, prefixes, None, chunk, settings, seeds, num_moves)
    between = interpolation(chunk) if settings.interpolate else None
    if between is None:
        return states
    stop = len(between.latents)
    last = stop - between.num_suffix
    suffixes = tuple(state[:, last:stop] for state in states)
    made = _sampled(velocity, prefixes, suffixes, between, settings, seeds, num_moves)
    return tuple(
        torch.cat([x[:, :last], state[:, last:]], dim=1)
        for x, state in zip(made, states, strict=True)
    )


def _sampled(
    velocity: ChunkVelocity,
    prefixes: States,
    suffixes: States | None,
    chunk: Chunk,
    settings: Settings,
    seeds: Sequence[int],
    num_moves: int | None,
) -> States:
    """Motion first, where it is made, then the video that follows it."""
    if len(prefixes) > 1 and velocity.motion is None:
        assert velocity.joint is not None
        noise = starting_noise(chunk, prefixes, seeds)
        made = sample(
            velocity.joint(len(chunk.latents)),
            pack(*noise),
            settings.times(num_moves),
            prefix=pack(*prefixes),
            suffix=None if suffixes is None else pack(*suffixes),
            step=settings.step,
            draw=_drawing("renoising", seeds, chunk),
        )
        return unpack(made, prefixes[0])
    start = start_chunk(velocity, prefixes, suffixes, chunk, settings, seeds)
    video = sample(
        velocity.video(len(chunk.latents), start.shown),
        start.noise,
        settings.times(num_moves),
        prefix=prefixes[0],
        suffix=None if suffixes is None else suffixes[0],
        step=settings.step,
        draw=start.fresh,
    )
    return start.states(video)


@dataclass(frozen=True)
class ChunkStart:
    """A chunk before its video is made."""

    noise: Latents  # of the video
    fresh: Draw  # the noise of its steps
    motion: Float[Tensor, "b l md"] | None  # where one is made
    nods: Added | None = None

    @property
    def shown(self) -> Float[Tensor, "b l md"] | None:
        """The motion of the video."""
        return None if self.motion is None else with_added(self.motion, self.nods)

    def states(self, video: Latents) -> States:
        return (video,) if self.motion is None else (video, self.motion)


def start_chunk(
    velocity: ChunkVelocity,
    prefixes: States,
    suffixes: States | None,
    chunk: Chunk,
    settings: Settings,
    seeds: Sequence[int],
) -> ChunkStart:
    """The noise of a chunk, and its motion, where it is made: over ``settings.look_ahead`` latents
    more, which are made anew with the next chunk, as far as there is sound."""
    num = len(chunk.latents)
    ahead = max(0, min(settings.look_ahead, velocity.num_heard - num))
    ahead = ahead if suffixes is None else 0
    noise, *motion_noise = starting_noise(chunk, prefixes, seeds, ahead)
    fresh = _drawing("renoising", seeds, chunk)
    if not motion_noise:
        return ChunkStart(noise, fresh, None)
    assert velocity.motion is not None, "a motion to begin with needs a motion network"
    motion = sample(
        velocity.motion(num + ahead),
        motion_noise[0],
        settings.motion_times,
        prefix=prefixes[1],
        suffix=None if suffixes is None else suffixes[1],
        step=settings.motion_step,
        draw=fresh,
    )
    return ChunkStart(noise, fresh, motion[:, :num], velocity.nods)


def starting_noise(chunk: Chunk, prefixes: States, seeds: Sequence[int], ahead: int = 0) -> States:
    """The noise that ``chunk`` starts from: states of its length, else shaped as ``prefixes``; of
    motion for so many latents more that are ``ahead``."""
    start, num = _drawing("start", seeds, chunk), len(chunk.latents)
    lengths = (num, *[num + ahead] * (len(prefixes) - 1))
    return tuple(
        start((len(prefix), length, *prefix.shape[2:])).to(prefix)
        for prefix, length in zip(prefixes, lengths, strict=True)
    )


def _drawing(purpose: Literal["start", "renoising"], seeds: Sequence[int], chunk: Chunk) -> Draw:
    """The noise that a chunk starts from; apart from it, so that overshoot changes no start, the
    fresh noise of its steps."""
    is_between = int(chunk.mode == "interpolate")
    return normal(
        *(
            torch.Generator().manual_seed(derive(purpose, seed, chunk.index, is_between))
            for seed in seeds
        )
    )
