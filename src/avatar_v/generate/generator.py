"""The stages of generation: a person and a sound of any length to frames, chunk by chunk.

Memory does not grow with the duration (Avatar V §4.1): what lives on from
chunk to chunk is the text, the reference's keys and values, the last ``OVERLAP`` latents and their
motion, and the decoder's feature cache. Chunks that an interrupted run has made are not made again
(resume.py). The request's files are not known here (loaded.py); the loop over chunks itself is
sampling/rollout.py's, which training shares.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol, runtime_checkable

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from avatar_v.generate.pipelining import chained
from avatar_v.inputs.live import SoundChunk
from avatar_v.inputs.person import EncodedPerson
from avatar_v.media.heard import HeardSound
from avatar_v.media.pixels import Frames, decoded, middle
from avatar_v.media.sound import Sound
from avatar_v.models.audio import frames_heard
from avatar_v.models.conditioner import Conditioner
from avatar_v.models.dit import AvatarDiT
from avatar_v.motion.listening import Added, with_added
from avatar_v.motion.vectors import motion_frames, unpack_motion
from avatar_v.parallel.timestep import PipelineGroup
from avatar_v.sampling.blocks import make_blocks
from avatar_v.sampling.chunks import Chunk, Span, plan
from avatar_v.sampling.rollout import (
    ChunkVelocity,
    States,
    Words,
    begin,
    check_finite,
    chunk_velocity,
    join_anchor,
    make_chunk,
    next_state,
)
from avatar_v.sampling.settings import Settings
from avatar_v.types import SAMPLES_PER_FRAME, TEMPORAL_FACTOR, num_frames
from avatar_v.weights.card import NEEDS_WHOLE

DECODE_LATENTS = 4
"""Latents decoded at once: frames leave early and few pixels wait in memory."""


@runtime_checkable
class Chunks(Protocol):
    """Chunks that an earlier run has made (resume.py)."""

    def states(self, chunk: int, make: Callable[[], States]) -> States:
        """The states of a chunk: those found, or what ``make`` gives."""
        ...


@dataclass(frozen=True)
class AudioChunk:
    """The audio of one chunk: the model's tokens, and the sound that goes with its frames."""

    chunk: Chunk
    audio: Float[Tensor, "1 heard n d"]  # of its latents, and of those that its motion looks ahead
    sound: Float[Tensor, " s"]
    refiner_audio: Float[Tensor, "1 l n e"] | None = None  # of the refiner's own encoder
    prompt: str | None = None  # from this chunk on, in place of the one before
    nods: Added | None = None  # of somebody who listens
    heard: Float[Tensor, "1 heard n d"] | None = None  # as ``audio``, of the other side

    def to(self, device: torch.device) -> "AudioChunk":
        """The tokens that the networks take, on ``device``."""
        own, heard = (None if x is None else x.to(device) for x in (self.refiner_audio, self.heard))
        return replace(self, audio=self.audio.to(device), refiner_audio=own, heard=heard)

    def tokens(self) -> tuple[Tensor, Chunk]:
        """The model's tokens, on the CPU and in memory of their own, to be sent."""
        return self.audio.cpu().clone(), self.chunk

    @classmethod
    def of_tokens(cls, audio: Float[Tensor, "1 l n d"], chunk: Chunk) -> "AudioChunk":
        """Of a rank that gets `tokens` and no sound."""
        return cls(chunk, audio, audio.new_empty(0))


@dataclass(frozen=True)
class LatentChunk:
    """The latents that a chunk adds, for ``num_frames`` frames."""

    latents: Float[Tensor, "1 l c h w"]
    sound: Float[Tensor, " s"]
    num_frames: int
    index: int = 0  # of the chunk
    refiner_audio: Float[Tensor, "1 l n e"] | None = None  # of these latents, as the next two
    motion: Float[Tensor, "1 l md"] | None = None


@dataclass(frozen=True)
class Clip:
    """Some frames in playing order, with their sound as it came: 640 samples a frame."""

    frames: Frames
    sound: Float[Tensor, " s"]
    motion: Float[Tensor, "f m"] | None = None
    """Of these frames, from the motion stream (types.MOTION_NAMES), where there is one."""


def generate(
    dit: AvatarDiT,
    conditioner: Conditioner,
    person: EncodedPerson,
    waveform: Float[Tensor, " s"],
    prompt: str,
    settings: Settings,
) -> Iterator[Frames]:
    """Blocks of frames in playing order, s / 640 frames in all, as early as they are known.

    ``waveform`` is 16 kHz as sound.prepared makes it, a whole number of frames. Runs on the
    networks' device; the noise is drawn on the CPU, so it is the same everywhere. One thread; the
    stages alone are below.
    """
    clips = chained(
        audio_chunks(conditioner, waveform, settings.chunk_latents, look_ahead=settings.look_ahead),
        lambda spoken: sample_chunks(dit, conditioner, person, prompt, settings, spoken),
        lambda sampled: decode_chunks(conditioner, settings, sampled),
    )
    return (clip.frames for clip in clips)


def audio_chunks(
    conditioner: Conditioner,
    sound: Sound,
    chunk_latents: int,
    *,
    prepared: Sound | None = None,
    gain: float = 1.0,
    look_ahead: int = 0,
    refiner: Conditioner | None = None,
) -> Iterator[AudioChunk]:
    """The chunks of a finished recording; the model takes it, or its ``prepared`` form, times
    ``gain``. Motion hears ``look_ahead`` latents behind a chunk. A ``refiner`` takes the same sound
    through its own encoder."""
    prepared = sound if prepared is None else prepared
    device = next(conditioner.parameters()).device
    total = plan(len(sound) // SAMPLES_PER_FRAME, chunk_latents=chunk_latents)
    with inference(device, bf16=False):
        own_of = None
        audio_of = audio_tokens(conditioner, prepared, total.num_latents, gain=gain)
        if refiner is not None:
            own_of = audio_tokens(refiner, prepared, total.num_latents, gain=gain)
    for chunk in total.chunks:
        with inference(device, bf16=False):
            stop = min(chunk.latents.stop + look_ahead, total.num_latents)
            audio = audio_of(Span(chunk.latents.start, stop))
            own = None if own_of is None else own_of(chunk.latents)
        part = slice(chunk.frames.start * SAMPLES_PER_FRAME, chunk.frames.stop * SAMPLES_PER_FRAME)
        yield AudioChunk(chunk, audio, sound[part], own)


def live_audio_chunks(
    conditioner: Conditioner,
    parts: Iterable[SoundChunk],
    refiner: Conditioner | None = None,
    *,
    look_ahead: int = 0,
    prompt: Callable[[], str | None] = lambda: None,
) -> Iterator[AudioChunk]:
    """The chunks of a sound that is still arriving (live.sound_chunks with ``context_latents``, and
    with ``look_ahead`` more than `look_ahead_latents`). ``prompt`` gives each its words."""
    device = next(conditioner.parameters()).device
    for part in parts:
        with inference(device, bf16=False):
            window = part.window[None].to(device)
            first, num = part.num_before, len(part.chunk.latents)
            audio = conditioner.encode_audio(window, first)[:, : num + look_ahead]
            own = None if refiner is None else refiner.encode_audio(window, first)[:, :num]
        yield AudioChunk(part.chunk, audio, part.sound, own, prompt())


def sample_chunks(
    dit: AvatarDiT,
    conditioner: Conditioner,
    person: EncodedPerson,
    prompt: str,
    settings: Settings,
    spoken: Iterator[AudioChunk],
    kept: Chunks | None = None,
    line: PipelineGroup | None = None,
) -> Iterator[LatentChunk]:
    """Each chunk's latents: the first from the image (from nothing but the conditions with
    ``settings.from_prompt``), the others from the end of the one before.

    The reference goes through the network once; its keys, turned to their place, and its values
    serve all steps and chunks.
    Chunks that ``kept`` has are not sampled again, others are kept there as soon as they are made.
    In a ``line`` of ranks causal weights make them together (blocks.make_blocks).
    ValueError for an anchor where there is no reference.
    """
    device = dit.patch_embed.weight.device
    person = person.to(device)
    with inference(device, bf16=False):
        words = _words(conditioner, prompt)
        prefixes = (conditioner.encode_image(person.image[None]),)
        if person.motion is not None:
            prefixes = (*prefixes, person.motion)
        if settings.from_prompt:
            prefixes = tuple(prefix[:, :0] for prefix in prefixes)
    with inference(device, bf16=settings.bf16):
        carry = begin(dit, prefixes, person.reference, settings)
    for part in spoken:
        if part.prompt not in (None, prompt):
            prompt = part.prompt
            with inference(device, bf16=False):
                words = _words(conditioner, prompt)
        with inference(device, bf16=settings.bf16):
            carry = join_anchor(dit, carry)
            net = conditioner.motion_net
            velocity = chunk_velocity(
                dit, words, part.audio, carry, settings, net, heard=part.heard
            )
            velocity = replace(velocity, nods=part.nods)
            if dit.config.is_causal:
                seeds = (settings.seed,)
                states, carry = make_blocks(
                    velocity, carry, part.chunk, settings, seeds, dit.config, line
                )
                if line is None or line.is_first:
                    check_finite(states, part.chunk.index)
            else:
                make = partial(_checked_chunk, velocity, carry.prefixes, part.chunk, settings)
                states = make() if kept is None else kept.states(part.chunk.index, make)
            states = tuple(state.to(device) for state in states)
            carry = next_state(carry, states, part.chunk, part.audio, settings)
        run = slice(-len(part.chunk.new_latents), None)
        own = None if part.refiner_audio is None else part.refiner_audio[:, run]
        new, *motion = states
        shown = [with_added(state, part.nods)[:, run] for state in motion]
        yield LatentChunk(
            new[:, run], part.sound, len(part.chunk.frames), part.chunk.index, own, *shown
        )


def _words(conditioner: Conditioner, prompt: str) -> Words:
    return Words(*conditioner.encode_text([prompt, ""]).float().split(1))


def _checked_chunk(
    velocity: ChunkVelocity, prefixes: States, chunk: Chunk, settings: Settings
) -> States:
    states = make_chunk(velocity, prefixes, chunk, settings, (settings.seed,))
    return check_finite(states, chunk.index)


def finished_chunks(line: PipelineGroup, sampled: Iterator[LatentChunk]) -> Iterator[LatentChunk]:
    """On the first rank of a ``line`` its chunks with the latents of the last one, which hands them
    back; on the others none. ValueError for latents that are not finite."""
    for part in sampled:
        if line.is_last:
            line.hand_back(part.latents)
        if line.is_first:
            latents = line.handed_back().to(part.latents)
            check_finite((latents,), part.index)
            yield replace(part, latents=latents)


@runtime_checkable
class Decoder(Protocol):
    """Latents to frames, piece by piece."""

    def push(self, latents: Tensor) -> Tensor:
        """Frames "b f 3 h w" in [-1, 1] of these latents "b l c h w"."""
        ...


def decode_chunks(
    conditioner: Conditioner,
    settings: Settings,
    sampled: Iterator[LatentChunk],
    decoder: Decoder | None = None,
    *,
    size: tuple[int, int] | None = None,
) -> Iterator[Clip]:
    """Frames, a few latents at a time; the decoder's state goes on from chunk to chunk. Without a
    ``decoder`` that of the conditioner's VAE; with a ``size`` the middle of each picture, so high
    and wide. ValueError for pixels that are not finite."""
    device = next(conditioner.parameters()).device
    decoder = conditioner.vae.stream_decoder(clamp=False) if decoder is None else decoder
    for part in sampled:
        done, motion = 0, None
        if part.motion is not None:
            unpacked = unpack_motion if part.index == 0 else motion_frames
            motion = unpacked(part.motion, conditioner.known_stats)[0].cpu()
        for piece in part.latents.split(DECODE_LATENTS, dim=1):
            with inference(device, bf16=settings.bf16):
                frames = decoded(decoder.push(piece)[0], part.index)[: part.num_frames - done]
                frames = frames if size is None else middle(frames, size)
            stop = done + len(frames)
            yield Clip(
                frames,
                part.sound[done * SAMPLES_PER_FRAME : stop * SAMPLES_PER_FRAME],
                None if motion is None else motion[done:stop],
            )
            done = stop


def context_latents(conditioner: Conditioner, refiner: Conditioner | None = None) -> int:
    """Latents before its own that a latent's audio tokens depend on, those of a ``refiner`` too.

    ValueError for an encoder that looks at the whole recording: it cannot follow a live one.
    """
    encoder = conditioner.audio_encoder
    if encoder.look_ahead is None:
        raise ValueError(NEEDS_WHOLE)
    own = 0 if refiner is None else context_latents(refiner)
    return max(encoder.memory_latents, own)


def look_ahead_latents(conditioner: Conditioner, refiner: Conditioner | None = None) -> int:
    """Latents behind its own that a latent waits for the sound of, those of a ``refiner`` too, of
    encoders that have `context_latents`."""
    own = 0 if refiner is None else look_ahead_latents(refiner)
    return max(conditioner.audio_encoder.look_ahead or 0, own)


def audio_tokens(
    conditioner: Conditioner,
    waveform: Sound,
    num_latents: int,
    *,
    gain: float = 1.0,
) -> Callable[[Span], Tensor]:
    """The audio tokens "1 l n d" of any run of latents, equal to those of the whole encoding of
    ``gain`` times the waveform.

    Behind its end the sound is silent up to the last latent. A causal encoder has a finite memory:
    each call encodes its own stretch with that much before it, and behind it one latent more than
    its look-ahead. Encoders that look at the whole recording run once, here.
    """
    device, look_ahead = next(conditioner.parameters()).device, conditioner.audio_encoder.look_ahead
    if look_ahead is None:
        whole = _cut_sound(waveform, Span(0, num_frames(num_latents))).to(device)
        tokens = conditioner.encode_audio(gain * whole)
        return lambda span: tokens[:, span.start : span.stop]
    context = context_latents(conditioner)

    def encode_span(span: Span) -> Tensor:
        first, last = max(0, span.start - context), min(span.stop + look_ahead, num_latents - 1)
        frames = Span(TEMPORAL_FACTOR * first, TEMPORAL_FACTOR * last + 1)
        heard = gain * _cut_sound(waveform, frames).to(device)
        return conditioner.encode_audio(heard, span.start - first)[:, : len(span)]

    return encode_span


def heard_tokens(
    conditioner: Conditioner, heard: HeardSound, num_latents: int | None
) -> Callable[[Span], Tensor]:
    """The tokens "1 l n d" of runs of latents, in order, of the voice that is listened to; of a
    live one, without ``num_latents``, what has arrived by then."""
    if num_latents is not None:
        return audio_tokens(conditioner, heard.whole(), num_latents, gain=heard.gain())
    device = next(conditioner.parameters()).device
    context, look_ahead = context_latents(conditioner), look_ahead_latents(conditioner)

    def encode_span(span: Span) -> Tensor:
        first, behind = max(0, span.start - context), span.stop + look_ahead
        stop = TEMPORAL_FACTOR * behind + 1  # one latent behind: windows look two frames ahead
        window = heard.window(max(0, TEMPORAL_FACTOR * first), stop, frames_heard(behind))
        sound = heard.gain() * window[None].to(device)
        return conditioner.encode_audio(sound, span.start - first)[:, : len(span)]

    return encode_span


def _cut_sound(waveform: Sound, frames: Span) -> Float[Tensor, "1 t"]:
    """The sound of these video frames; silence behind its end."""
    part = waveform[frames.start * SAMPLES_PER_FRAME : frames.stop * SAMPLES_PER_FRAME]
    return F.pad(part, (0, len(frames) * SAMPLES_PER_FRAME - len(part)))[None]


@contextmanager
def inference(device: torch.device, *, bf16: bool) -> Iterator[None]:
    """Entered anew around each piece of work: a generator that yields inside would leak it."""
    with (
        torch.inference_mode(),
        torch.autocast(device.type, dtype=torch.bfloat16, enabled=bf16),
    ):
        yield
