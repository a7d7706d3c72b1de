"""The streaming loop: one picture and a sound of any length to frames, chunk by chunk.

Memory does not grow with the duration (Avatar V §4.1; ALGORITHMS §5.3, §5.4): what lives on from
chunk to chunk is the text, the last ``OVERLAP`` latents, the decoder's feature cache and the state
of the random generator. Files are not known here (pipeline.py), nor steps (sampler.py).
"""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Float, UInt8
from torch import Tensor

from avatar_v.flow import schedule
from avatar_v.generate.chunks import OVERLAP, Chunk, Span, plan
from avatar_v.generate.guidance import guided
from avatar_v.generate.sampler import sample
from avatar_v.models.audio import LogMelEncoder
from avatar_v.models.conditioner import Conditioner
from avatar_v.models.dit import AvatarDiT
from avatar_v.types import SAMPLES_PER_FRAME, TEMPORAL_FACTOR, Cond, num_frames

DECODE_LATENTS = 4
"""Latents decoded at once: frames leave early and few pixels wait in memory."""

Frames = UInt8[Tensor, "f 3 h w"]


@dataclass(frozen=True)
class Settings:
    """How to sample, apart from what is asked for."""

    chunk_latents: int  # 13 for the small preset, 41 at full size
    num_steps: int = 24  # Avatar V §4.2
    shift: float = 1.0  # of the sampling times (flow.shift_time)
    guidance_text: float = 1.0
    guidance_audio: float = 2.0
    overshoot: float = 0.0
    seed: int = 0
    bf16: bool = False  # autocast of sampling and decoding; encoding stays in fp32


def generate(
    dit: AvatarDiT,
    conditioner: Conditioner,
    image: Float[Tensor, "3 h w"],
    waveform: Float[Tensor, " s"],
    prompt: str,
    settings: Settings,
) -> Iterator[Frames]:
    """Blocks of frames in playing order, s / 640 frames in all, as early as they are known.

    ``image`` is in [-1, 1] with sides the VAE accepts, and shows the person as frame 0 does;
    ``waveform`` is 16 kHz at -23 LUFS, a whole number of frames. Runs on the networks' device; the
    noise is drawn on the CPU, so it is the same everywhere.
    """
    device = dit.patch_embed.weight.device
    total = plan(len(waveform) // SAMPLES_PER_FRAME, chunk_latents=settings.chunk_latents)
    with _inference(device, bf16=False):
        text, no_text = conditioner.encode_text([prompt, ""]).float().split(1)
        prefix = conditioner.encode_image(image[None].to(device))
        audio_of = audio_tokens(conditioner, waveform.to(device), total.num_latents)
    decoder = conditioner.vae.stream_decoder()
    generator = torch.Generator().manual_seed(settings.seed)
    for chunk in total.chunks:
        with _inference(device, bf16=False):
            cond = Cond(text=text, audio=audio_of(chunk.latents))
        with _inference(device, bf16=settings.bf16):
            latents = _sample_chunk(dit, cond, no_text, prefix, chunk, settings, generator)
            prefix = latents[:, -OVERLAP:]
        left = len(chunk.frames)
        for piece in latents[:, -len(chunk.new_latents) :].split(DECODE_LATENTS, dim=1):
            with _inference(device, bf16=settings.bf16):
                frames = to_uint8(decoder.push(piece)[0])[:left]
            left -= len(frames)
            yield frames


def audio_tokens(
    conditioner: Conditioner, waveform: Float[Tensor, " s"], num_latents: int
) -> Callable[[Span], Tensor]:
    """The audio tokens "1 l n d" of any run of latents, equal to those of the whole encoding.

    Behind its end the sound is silent up to the last latent. The embedded encoder is causal with a
    finite memory: each call encodes its own stretch with that much before it and one latent after
    it. Encoders that look at the whole recording (wav2vec 2.0, Whisper) run once, here.
    """
    encoder = conditioner.audio_encoder
    if not isinstance(encoder, LogMelEncoder):
        tokens = conditioner.encode_audio(_frames_of(waveform, Span(0, num_frames(num_latents))))
        return lambda span: tokens[:, span.start : span.stop]
    # The first window also reaches back one latent and CONTEXT_FRAMES = 2 frames: 5 in all.
    context = math.ceil((encoder.memory_frames + 5) / TEMPORAL_FACTOR)

    def tokens_of(span: Span) -> Tensor:
        first, last = max(0, span.start - context), min(span.stop, num_latents - 1)
        frames = Span(TEMPORAL_FACTOR * first, TEMPORAL_FACTOR * last + 1)
        tokens = conditioner.encode_audio(_frames_of(waveform, frames))
        return tokens[:, span.start - first : span.stop - first]

    return tokens_of


def to_uint8(video: Float[Tensor, "f 3 h w"]) -> Frames:
    """[-1, 1] to 0 … 255, on the CPU."""
    return ((video.float() + 1) * 127.5).round().clamp(0, 255).to(torch.uint8).cpu()


def _frames_of(waveform: Float[Tensor, " s"], frames: Span) -> Float[Tensor, "1 t"]:
    """The sound of these video frames; silence behind its end."""
    part = waveform[frames.start * SAMPLES_PER_FRAME : frames.stop * SAMPLES_PER_FRAME]
    return F.pad(part, (0, len(frames) * SAMPLES_PER_FRAME - len(part)))[None]


@contextmanager
def _inference(device: torch.device, *, bf16: bool) -> Iterator[None]:
    """Entered anew around each piece of work: a generator that yields inside would leak it."""
    with (
        torch.inference_mode(),
        torch.autocast(device.type, dtype=torch.bfloat16, enabled=bf16),
    ):
        yield


def _sample_chunk(
    dit: AvatarDiT,
    cond: Cond,
    no_text: Tensor,
    prefix: Tensor,
    chunk: Chunk,
    settings: Settings,
    generator: torch.Generator,
) -> Tensor:
    """All latents of one chunk, its clean prefix included."""
    shape = (1, len(chunk.latents), *prefix.shape[2:])
    noise = torch.randn(shape, generator=generator).to(prefix.device)
    velocity_fn = guided(
        dit,
        cond,
        text=settings.guidance_text,
        audio=settings.guidance_audio,
        no_text=no_text,
    )
    return sample(
        velocity_fn,
        noise,
        schedule(settings.num_steps, shift=settings.shift),
        prefix=prefix,
        overshoot=settings.overshoot,
        generator=generator,
    )
