"""One pass of a DiT in generation, and what it costs."""

import copy
import math
from dataclasses import dataclass, replace
from typing import cast

import torch
from torch._subclasses.fake_tensor import unset_fake_temporarily

from avatar_v.models.blocks import Block, ContextKeys
from avatar_v.models.cache import KeyValueCache
from avatar_v.models.dit import AvatarDiT
from avatar_v.models.reference import (
    SEGMENT_LENGTH,
    PackedFrames,
    PackedReference,
    pack_reference,
)
from avatar_v.planning.measure import Cost, Counter, Number, pretending, without_values
from avatar_v.planning.replay import Replay
from avatar_v.types import Cond, Reference


@dataclass(frozen=True)
class Pass:
    """A pass of the DiT over ``samples`` videos of ``latents`` frames of ``size`` cells."""

    samples: int
    latents: int  # 0: the reference stream alone runs
    size: tuple[int, int]
    audio: bool = True
    motion: bool = False
    text_tokens: int = 512
    reference: int = 0  # latent frames whose keys are read; their own pass is another
    stills: bool = False  # each of them is a segment of its own
    kept: bool = False  # keys and values of text and sound are there, from the chunk's first step
    history: int = 0  # latent frames that a causal network has made, whose keys are read
    within: tuple[int, int] | None = None
    """Cells of the whole picture, which the reference has, where this is a tile of it."""

    @property
    def reference_size(self) -> tuple[int, int]:
        return self.within or self.size


def pass_cost(network: AvatarDiT, of: Pass) -> Cost:
    """Of one pass of a ``network`` of the meta device, in bf16."""
    network = copy.deepcopy(network)
    counter = Counter()
    autocast = torch.autocast("cpu", torch.bfloat16)
    with pretending(), torch.no_grad(), autocast:
        without_values(network, torch.bfloat16)
        packed = _packed(network, of) if of.reference else None
        past = kept = None
        if packed is not None and of.latents > 0:
            past = network.encode_packed(packed)
            past = past if network.config.is_causal else past.rotated()  # once, as in sampling
        if of.kept:
            kept = _kept(network, of)
        stream = _stream(network, of) if of.history else None
        replay = Replay(counter)
        for block in network.blocks:
            replay.watch(block)
        with counter:
            if of.latents > 0:
                _velocity(network, of, past, stream, kept)
            elif packed is not None:
                network.encode_packed(packed)
    return counter.cost()


def reference_bytes(network: AvatarDiT, of: Pass, *, bf16: bool) -> int:
    """Keys and values of the reference in all layers."""
    config = network.config
    places = math.prod(of.reference_size) // config.patch**2
    tokens = of.samples * of.reference * places
    return 2 * config.num_layers * tokens * config.dim * (2 if bf16 else 4)


def history_bytes(network: AvatarDiT, of: Pass) -> int:
    """Keys and values of the history of one step in all layers, in bf16."""
    places = math.prod(of.size) // network.config.patch**2
    return 4 * network.config.num_layers * of.samples * of.history * places * network.config.dim


def context_flops(network: AvatarDiT, of: Pass) -> Number:
    """Of a chunk, those that make keys and values of text and sound, which all steps share."""
    config = network.config
    keys, embed = 4 * config.dim**2, 2 * config.dim
    heard = sum("audio_attention.key.weight" in name for name, _ in network.named_parameters())
    text = keys * config.num_layers + embed * (config.text_dim + config.dim)
    sound = keys * heard + embed * config.audio_dim
    num_sounds = of.latents * config.num_audio_tokens if of.audio else 0
    return of.samples * (of.text_tokens * text + num_sounds * sound)


def context_bytes(network: AvatarDiT, of: Pass) -> int:
    """Of these keys and values in all layers, in bf16."""
    with pretending(), torch.autocast("cpu", torch.bfloat16):
        network = copy.deepcopy(network)
        without_values(network, torch.bfloat16)
        pairs = [pair for layer in _kept(network, of) for pair in layer if pair is not None]
    return sum(x.numel() * x.element_size() for pair in pairs for x in pair)


def _kept(network: AvatarDiT, of: Pass) -> list[ContextKeys]:
    cond = _cond(network, of)
    text, audio = network._embed_text(cond.text), network._embed_audio(cond.audio)
    return [cast(Block, block).context_keys(text, audio) for block in network.blocks]


def _cond(network: AvatarDiT, of: Pass) -> Cond:
    config, (b, n) = network.config, (of.samples, of.latents)
    return Cond(
        text=torch.empty(b, of.text_tokens, config.text_dim),
        audio=torch.empty(b, n, config.num_audio_tokens, config.audio_dim) if of.audio else None,
    )


def _stream(network: AvatarDiT, of: Pass) -> KeyValueCache:
    """The keys and values that a causal network has left in the same step."""
    config, grid = network.config, tuple(side // network.config.patch for side in of.size)
    shape = (of.samples, of.history * math.prod(grid), config.num_heads, config.head_dim)
    layers = tuple(
        (torch.empty(shape, dtype=torch.bfloat16), torch.empty(shape, dtype=torch.bfloat16))
        for _ in network.blocks
    )
    position = torch.arange(of.history).expand(of.samples, -1)
    return KeyValueCache(layers, position, None, (grid[0], grid[1]), num_stream=of.history)


def _velocity(
    network: AvatarDiT,
    of: Pass,
    past: KeyValueCache | None,
    stream: KeyValueCache | None,
    kept: list[ContextKeys] | None,
) -> None:
    """A causal network reads the stream behind the reference, and what it makes goes behind it."""
    config, (b, n) = network.config, (of.samples, of.latents)
    x = torch.empty(b, n, config.latent_channels, *of.size)
    cond = replace(
        _cond(network, of),
        low=x if config.reads_low else None,
        motion=torch.empty(b, n, config.motion_dim) if of.motion else None,
        guidance=torch.empty(b, 3) if config.has_guidance_inside else None,
    )
    if stream is not None:
        past = stream if past is None else past.append(stream)
    made = network(
        x, torch.empty(b, n), cond, past=past, contexts=kept, return_keys=config.is_causal
    )
    if stream is not None:
        stream.append(made[1]).evict(of.history)


def _packed(network: AvatarDiT, of: Pass) -> PackedReference:
    """A reference whose frames are all valid. Where they lie is computed on true tensors. Masks are
    read on the CPU, and pretended tensors have nothing to read, so the padding of the last segment
    counts as frames."""
    config, shape = network.config, (of.samples, of.reference)
    with unset_fake_temporarily():
        segment = torch.arange(of.reference) // (1 if of.stills else SEGMENT_LENGTH)
        valid = torch.ones(shape, dtype=torch.bool)
        reference = Reference(torch.zeros(*shape, 1, 1, 1), valid, segment.expand(shape))
        layout = pack_reference(reference, gap=config.reference_gap)
    assert layout is not None
    assert layout.clip is not None
    frames, place = layout.clip, tuple(layout.clip.place.shape)
    clip = PackedFrames(
        latents=torch.empty(*place, config.latent_channels, *of.reference_size),
        audio=torch.empty(*place, config.num_audio_tokens, config.audio_dim) if of.audio else None,
        motion=torch.empty(*place, config.motion_dim) if of.motion else None,
        identity=None,
        is_anchor=None,
        place=frames.place,
        mask=None,
        keys=frames.keys,
        key_mask=None,
        position=frames.position,
    )
    return PackedReference(clip, None)
