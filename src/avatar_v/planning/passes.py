"""One pass of a network as the plan sees it, and what it costs at full depth.

A DiT repeats two kinds of blocks, with and without sound. Its cost at any depth is that of what
stands around the blocks and of each kind, so three shallow networks tell that of a deep one.
"""

import copy
import itertools
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import unset_fake_temporarily

from avatar_v.models.blocks import Block
from avatar_v.models.cache import KeyValueCache
from avatar_v.models.dit import AvatarDiT
from avatar_v.models.reference import (
    SEGMENT_LENGTH,
    PackedFrames,
    PackedReference,
    pack_reference,
)
from avatar_v.parallel.apply import checkpoint_blocks
from avatar_v.planning.measure import Cost, cost_of, pretending, without_values
from avatar_v.types import Cond, Reference

DEPTHS = ((1, 0), (2, 0), (1, 1))
"""Blocks with sound and without of the shallow networks that are run."""


@dataclass(frozen=True)
class Pass:
    """A pass of the DiT over ``samples`` videos of ``latents`` frames of ``side`` cells."""

    samples: int
    latents: int  # 0: the reference stream alone runs
    side: tuple[int, int]
    trains: bool = False  # with a backward pass
    audio: bool = True
    motion: bool = False
    text_tokens: int = 512
    reference: int = 0  # latent frames that are read of a reference
    stills: bool = False  # each of them is a segment of its own
    encodes: bool = True  # the reference stream runs too; False: its keys are there
    through: bool = True  # and is trained, where the pass is


def pass_cost(
    network: AvatarDiT,
    of: Pass,
    *,
    bf16: bool,
    checkpoints: bool = False,
    cast: bool = False,
) -> Cost:
    """Of one pass of a ``network`` of the meta device. ``cast``: its weights are gathered as bf16,
    as FSDP2 does; else autocast keeps a copy of each."""
    dtype = torch.bfloat16 if cast and bf16 else torch.float32
    sound = [block for block in network.blocks if _hears(block)]
    plain = [block for block in network.blocks if not _hears(block)]
    found = []
    for num_sound, num_plain in DEPTHS if plain else DEPTHS[:2]:
        blocks = [*_some(sound, num_sound), *_some(plain, num_plain)]
        found.append(_shallow_cost(network, blocks, of, dtype, bf16=bf16, checkpoints=checkpoints))
    of_sound = found[1].mixed(found[0], -1)
    whole = found[0].mixed(of_sound, len(sound) - 1)
    if plain:
        whole = whole.mixed(found[2].mixed(found[0], -1), len(plain))
    beside = max(cost.peak - cost.saved for cost in found)  # of one block, whatever the depth
    return replace(whole, peak=whole.saved + beside)


def reference_bytes(network: AvatarDiT, of: Pass, *, bf16: bool) -> int:
    """Keys and values of the reference in all layers."""
    config = network.config
    tokens = of.samples * of.reference * _places(network, of)
    return 2 * config.num_layers * tokens * config.dim * (2 if bf16 else 4)


def _places(network: AvatarDiT, of: Pass) -> int:
    return of.side[0] * of.side[1] // network.config.patch**2


def _hears(block: nn.Module) -> bool:
    return isinstance(block, Block) and block.audio_attention is not None


def _some(blocks: list[nn.Module], num: int) -> list[nn.Module]:
    return list(itertools.islice(itertools.cycle(blocks), num)) if num else []


def _shallow_cost(
    network: AvatarDiT,
    blocks: list[nn.Module],
    of: Pass,
    dtype: torch.dtype,
    *,
    bf16: bool,
    checkpoints: bool,
) -> Cost:
    whole, network.blocks = network.blocks, nn.ModuleList()
    try:
        shallow = copy.deepcopy(network)
    finally:
        network.blocks = whole
    shallow.blocks = nn.ModuleList(copy.deepcopy(block) for block in blocks)
    with pretending():
        without_values(shallow, dtype)
        if checkpoints:
            checkpoint_blocks(shallow)
        packed = _packed(shallow, of) if of.reference else None
        past = None
        through = of.encodes and of.through
        if packed is not None and not through:
            if of.encodes:
                encoding = cost_of(lambda: _encoded(shallow, packed), bf16=bf16, trains=False)
                if of.latents == 0:
                    return encoding
            with torch.no_grad(), torch.autocast("cpu", torch.bfloat16, enabled=bf16):
                past = shallow.encode_packed(packed)
                past = past if of.trains or of.encodes else past.rotated()  # once, as in sampling

        def run() -> Tensor:
            keys = shallow.encode_packed(packed) if packed is not None and through else past
            return _velocity(shallow, of, keys)

        cost = cost_of(run, bf16=bf16, trains=of.trains)
    if packed is not None and of.encodes and not through:
        peak = max(cost.peak, encoding.peak)
        cost = replace(cost.mixed(encoding, 1), saved=cost.saved, peak=peak)
    return cost


def _encoded(network: AvatarDiT, packed: PackedReference) -> None:
    network.encode_packed(packed)


def _velocity(network: AvatarDiT, of: Pass, past: KeyValueCache | None) -> Tensor:
    config, (b, n) = network.config, (of.samples, of.latents)
    x = torch.empty(b, n, config.latent_channels, *of.side)
    cond = Cond(
        text=torch.empty(b, of.text_tokens, config.text_dim),
        audio=torch.empty(b, n, config.num_audio_tokens, config.audio_dim) if of.audio else None,
        low=x if config.reads_low else None,
        motion=torch.empty(b, n, config.motion_dim) if of.motion else None,
        guidance=torch.empty(b, 3) if config.has_guidance_inside else None,
    )
    v = network(x, torch.empty(b, n), cond, past=past)
    assert isinstance(v, Tensor)
    return v


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
        latents=torch.empty(*place, config.latent_channels, *of.side),
        audio=torch.empty(*place, config.num_audio_tokens, config.audio_dim) if of.audio else None,
        motion=torch.empty(*place, config.motion_dim) if of.motion else None,
        is_anchor=None,
        place=frames.place,
        mask=None,
        keys=frames.keys,
        key_mask=None,
        position=frames.position,
    )
    return PackedReference(clip, None)
