"""A plan of generation: what weights or a preset need on each device, and the work of a video."""

import copy
import math
from dataclasses import replace

import torch
from torch import nn

from avatar_v.generate.resolve import FORMATS, Format, format_of, num_steps_of
from avatar_v.models.card import Card, read_card, weights_folder
from avatar_v.models.conditioner import Conditioner
from avatar_v.models.dit import AvatarDiT
from avatar_v.models.layers import narrow
from avatar_v.models.motion_net import MotionNet, MotionNetConfig
from avatar_v.models.presets import PRESETS
from avatar_v.models.reference import NUM_STILLS
from avatar_v.models.vae import VideoVAE
from avatar_v.planning.gpus import RESERVE_GIB
from avatar_v.planning.measure import Cost, Number, as_on_gpus, cost_of, pretending, without_values
from avatar_v.planning.memory import GIB
from avatar_v.planning.networks import conditioner_of, config_of
from avatar_v.planning.passes import Pass, pass_cost, reference_bytes
from avatar_v.planning.report import Machine, table
from avatar_v.planning.steps import TEXT_TOKENS
from avatar_v.sampling.chunks import OVERLAP
from avatar_v.sampling.guidance import streams
from avatar_v.stages.settings import Models
from avatar_v.types import FRAME_RATE_HZ, TEMPORAL_FACTOR

FEW_LATENTS = 3
"""Of a chunk the decoder is run on so many; the others cost the same each."""
PLACES = 2
"""Blocks that offloading keeps on the device (parallel/offload.py)."""


def generation_report(
    name: str, machine: Machine, *, devices: int, seconds: float, reference_s: float
) -> str:
    """Of ``seconds`` of video by weights (a name that ships, or a folder) or by a preset whose
    weights are not there. ValueError for neither. One prompt, guidance as generation takes it."""
    card, models = _asked(name)
    sizes = FORMATS[name] if card is None else format_of(card)
    with torch.device("meta"):
        dit = AvatarDiT(config_of(models))
        conditioner = conditioner_of(models.preset, dit.config)
        dim = conditioner.audio_encoder.dim
        net = MotionNet(MotionNetConfig.of_preset(models.preset, audio_dim=dim))
    for network in (dit, net):  # as generation keeps them (generate/pipeline.py)
        narrow(network, torch.bfloat16)
    made, reads = _passes(dit, conditioner, card, sizes, models.preset, reference_s)
    with as_on_gpus():
        encoding = pass_cost(dit, reads, bf16=True, cast=True) if reads.reference else Cost(0, 0, 0)
        cost = pass_cost(dit, made, bf16=True, cast=True)
        decoding = _decoding(conditioner.vae, sizes)
    parts = {
        "DiT, bf16": _size(dit),
        "VAE, fp32": _size(conditioner.vae),
        "encoders of text and sound, fp32": _size(conditioner) - _size(conditioner.vae),
        "motion network": _size(net),
        "keys of the reference": reference_bytes(dit, reads, bf16=True) * made.samples / devices,
        "activations": max(cost.peak / devices, encoding.peak, decoding.peak),
    }
    chunks = max(1, math.ceil(_new_latents(seconds) / (sizes.chunk_latents - OVERLAP)))
    steps = num_steps_of(None, card or Card(models.preset))
    flops = encoding.flops + chunks * (steps * cost.flops / devices + decoding.flops)
    total = sum(parts.values()) / GIB
    lines = [
        _verdict(name, total, machine, devices),
        f"{seconds:g} s of {sizes.side} x {sizes.side}: {chunks} chunks of {sizes.chunk_latents} "
        f"latents in {steps} steps of {made.samples} passes, {flops:.2e} operations on device 0",
    ]
    if machine.gpu is not None:
        needed = flops / (machine.mfu * machine.gpu.bf16_tflops * 1e12)
        peak = f"{machine.gpu.bf16_tflops:.0f} TFLOP/s"
        lines.append(f"{needed:.1f} s at {machine.mfu:.0%} of {peak}, if nothing waits")
    lines += table(parts, 0 if machine.gpu is None else RESERVE_GIB)
    lines.append(f"--offload: {-_offloaded(dit, conditioner) / GIB:+.1f} GiB")
    return "\n".join([lines[0], *(f"  {line}" for line in lines[1:])])


def _asked(name: str) -> tuple[Card | None, Models]:
    if name in PRESETS and name not in ("small", "tiny"):
        return None, Models(name)
    folder = weights_folder(name)
    card = read_card(folder)
    return card, Models(card.preset, init_from=str(folder))


def _passes(
    dit: AvatarDiT,
    conditioner: Conditioner,
    card: Card | None,
    sizes: Format,
    preset: str,
    reference_s: float,
) -> tuple[Pass, Pass]:
    """A step of a chunk, and the encoding of the reference, once a video."""
    cells, reads, stills = sizes.side // conditioner.vae.spatial_factor, True, 0
    audio = Card("").guidance_audio
    if card is not None:
        audio, reads, stills = card.guidance_audio, card.can.reference, card.can.stills
    frames = _new_latents(reference_s) if reads else 0
    frames = min(frames, NUM_STILLS) if stills else frames
    guided = len(streams(text=1.0, audio=audio, has_reference=reads))
    if dit.config.has_guidance_inside:
        guided = 1
    of = Pass(
        1, sizes.chunk_latents, (cells, cells), motion=True, reference=frames,
        text_tokens=TEXT_TOKENS.get(preset, 512), stills=bool(stills),
    )  # fmt: skip
    return replace(of, samples=guided, encodes=False), replace(of, latents=1, through=False)


def _decoding(vae: VideoVAE, sizes: Format) -> Cost:
    vae, cells = copy.deepcopy(vae), sizes.side // vae.spatial_factor
    with pretending():
        without_values(vae, torch.float32)
        latents = torch.empty(1, FEW_LATENTS, vae.latent_channels, cells, cells)

        def run() -> None:
            vae.decode(latents)

        cost = cost_of(run, bf16=True, trains=False)
    return Cost(cost.flops * sizes.chunk_latents / FEW_LATENTS, 0, cost.peak)


def _offloaded(dit: AvatarDiT, conditioner: Conditioner) -> int:
    """Bytes of blocks that wait in main memory, but for those that keep a place."""
    lists = [m for module in (dit, conditioner) for m in module.modules()]
    blocks = [b for m in lists if isinstance(m, nn.ModuleList) for b in m]
    outermost = {id(inner) for b in blocks for inner in b.modules() if inner is not b}
    sizes = sorted((_size(b) for b in blocks if id(b) not in outermost), reverse=True)
    return sum(sizes[PLACES:])


def _verdict(name: str, total_gib: Number, machine: Machine, devices: int) -> str:
    if machine.gpu is None:
        return f"{name}: needs {total_gib:.2f} GiB"
    total, room = total_gib + RESERVE_GIB, machine.gpu.memory_gib
    verdict = "fits" if total <= room else "does not fit"
    return (
        f"{name}: {verdict}: {total:.0f} of {room:.0f} GiB on each of {devices} {machine.gpu.name}"
    )


def _new_latents(seconds: float) -> int:
    return max(1, math.ceil(seconds * FRAME_RATE_HZ / TEMPORAL_FACTOR))


def _size(module: nn.Module) -> int:
    return sum(p.numel() * p.element_size() for p in module.parameters())
