"""A plan of generation: what weights or a preset need on each device, and the work of a video."""

import copy
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import nn

from avatar_v.base.video_format import VideoFormat
from avatar_v.base.words import counted
from avatar_v.models.conditioner import Conditioner
from avatar_v.models.dit import AvatarDiT
from avatar_v.models.layers import narrow
from avatar_v.models.motion_net import MotionNet
from avatar_v.models.reference import NUM_STILLS
from avatar_v.models.refiner import CONTEXT_LATENTS, SIGMA, tiles
from avatar_v.models.vae import VideoVAE
from avatar_v.parallel import exchange
from avatar_v.parallel.apply import shard_units
from avatar_v.parallel.sequence import degrees
from avatar_v.planning import causal
from avatar_v.planning.gpus import GPU, RESERVE_GIB
from avatar_v.planning.measure import Cost, Number, as_on_gpus, cost_of, pretending, without_values
from avatar_v.planning.memory import GIB
from avatar_v.planning.networks import conditioner_of, config_of
from avatar_v.planning.passes import (
    Pass,
    context_bytes,
    context_flops,
    history_bytes,
    pass_cost,
    reference_bytes,
)
from avatar_v.planning.report import Machine, table
from avatar_v.planning.scaling import (
    exposed_links,
    gather_time,
    group_sizes,
    pcie_time,
    rates,
    scaling_table,
    spread_over,
    step_time,
)
from avatar_v.request.resolve import Sizes, fitted, num_steps_of
from avatar_v.sampling.chunks import OVERLAP
from avatar_v.sampling.guidance import streams
from avatar_v.training.settings import Models
from avatar_v.types import TEMPORAL_FACTOR, num_frames, num_latents
from avatar_v.weights.card import Card, read_card, weights_folder
from avatar_v.weights.presets import PRESETS, Format, format_of, preset

TEXT_GUIDANCE = 5.0
"""Of plain Wan, which is guided by its words alone."""
FEW_LATENTS = 3
"""Of a chunk the decoder is run on so many; the others cost the same each."""
PLACES = 2
"""Blocks that offloading keeps on the device (parallel/offload.py)."""
OVERLAPS = "tiled:1"
"""The exchanges of sequence parallelism that a plan counts (parallel/exchange.py)."""
GATHERED = 3
"""Of shards: the block that computes, the message that it came in, and the next one's."""


@dataclass(frozen=True)
class Video:
    """What is generated. None: as generation takes it from the weights."""

    seconds: float = 10.0
    reference_s: float = 16.0
    size: str | None = None  # of the pictures that are delivered
    factor: float = 1.0  # of a refiner behind the generator; 1: there is none
    num_frames: int | None = None  # of one chunk that is the whole video; ``seconds`` is not read
    num_steps: int | None = None
    num_passes: int | None = None  # of the network in a step
    text_only: bool = False  # as plain Wan: without sound, motion and reference

    def sized(self, sizes: Format) -> Format:
        """``sizes`` with the length of this video's chunks."""
        if self.num_frames is None:
            return sizes
        return replace(sizes, chunk_latents=num_latents(self.num_frames))

    def num_chunks(self, sizes: Format) -> int:
        if self.num_frames is not None:
            return 1
        return max(
            1, math.ceil(_new_latents(self.seconds, sizes.video) / (sizes.chunk_latents - OVERLAP))
        )


def generation_report(name: str, machine: Machine, video: Video, *, devices: int) -> str:
    """Of a video by weights (a name that ships, or a folder) or by a preset whose weights are not
    there. One prompt, guidance as generation takes it. ValueError for neither of the two, for
    sizes that the network does not take, and for more devices than causal weights have steps."""
    card, models = _asked(name)
    sizes = video.sized(PRESETS[name].format if card is None else format_of(card))
    dit, conditioner, net = _networks(models)
    tokens = preset(models.preset).text_tokens
    way = _way(video, sizes, conditioner.vae, dit.config.patch)
    made, reads = _passes(dit, conditioner, card, sizes, way, tokens, video)
    blocks, of, ranks = None, made, devices  # that share the tokens of a pass
    if dit.config.is_causal:
        assert card is not None, "no preset is causal"
        frames = _num_frames(video, sizes)
        blocks = causal.blocks_of(dit.config, card, made, frames, video.num_steps, devices)
        of, ranks = causal.block_pass(made, blocks), 1
    with as_on_gpus():
        encoding = pass_cost(dit, reads) if reads.reference else Cost(0, 0, 0)
        costs = {num: _step_cost(dit, of, num) for num in group_sizes(ranks)}
        decoding = _vae_cost(conditioner.vae, made.latents, _cells(way.base, conditioner.vae))
        refiner, refining, words = _refined(dit, conditioner.vae, made, way, sizes, ranks)
    cost, (ulysses, _) = costs[ranks], degrees(dit.config.num_heads, ranks)
    parts = _networks_bytes(dit, conditioner, net) | {
        "keys of the reference": reference_bytes(dit, made, bf16=True) / ulysses,  # of its heads
        "keys of text and sound": context_bytes(dit, of),
    }
    if blocks is not None:
        parts["keys of the history"] = blocks.histories(devices) * history_bytes(dit, of)
    activations = max(cost.peak, encoding.peak, decoding.peak / ranks, refining.peak)
    parts |= {"activations": activations} | refiner
    chunks = video.num_chunks(sizes)
    steps = num_steps_of(video.num_steps, card or Card(models.preset))
    context, around = context_flops(dit, of), decoding.flops / ranks + refining.flops
    unit, busiest = "chunk", "device 0"
    if blocks is None:
        flops = encoding.flops + chunks * (context + steps * cost.flops + around)
    else:
        unit, busiest = "block", "the busiest device"
        around *= chunks / blocks.num
        flops = blocks.num * blocks.most(devices, cost.flops, context, around) + encoding.flops
    lines = [
        _verdict(name, sum(parts.values()) / GIB, machine, devices),
        f"{_work(made, way.base, video, chunks, steps)}, {flops:.2e} operations on {busiest}",
        f"keys and values of text and sound, once for all steps of a {unit}: "
        f"{context / costs[1].flops:.2%} of a step",
    ]
    lines += words if blocks is None else [*words, causal.described(blocks, devices)]
    if machine.gpu is not None:
        needed = flops / (machine.mfu * machine.gpu.bf16_tflops * 1e12)
        peak = f"{machine.gpu.bf16_tflops:.0f} TFLOP/s"
        lines.append(f"{needed:.1f} s at {machine.mfu:.0%} of {peak}, if nothing waits")
    lines += table(parts, 0 if machine.gpu is None else RESERVE_GIB)
    lines.append(f"--offload: {-_offloaded(dit, conditioner) / GIB:+.1f} GiB")
    lines.append(f"another set beside it, with a DiT of its own: {_size(dit) / GIB:+.1f} GiB")
    if ranks > 1:
        saved, waiting = _sharded(dit, conditioner, parts["activations"], ranks)
        lines.append(
            f"--shard: {-saved / GIB:+.1f} GiB on each of {ranks}, "
            f"with --offload {-waiting / GIB:+.1f} GiB"
        )
    if machine.gpu is not None:
        gpu, mfu = machine.gpu, machine.mfu
        lines += (
            _times(dit, costs, gpu, mfu)
            if blocks is None
            else causal.times(cost, context, around, blocks, devices, gpu, mfu)
        )
    return "\n".join([lines[0], *(f"  {line}" for line in lines[1:])])


def _times(dit: AvatarDiT, costs: Mapping[int, Cost], gpu: GPU, mfu: float) -> list[str]:
    """How long a step takes on each number of GPUs, and what offloading and shards add to it."""
    waits = pcie_time(_size(dit.blocks), gpu)
    times = {num: step_time(cost, gpu, mfu) for num, cost in costs.items()}
    lines = [
        f"a step, in seconds, at {rates(gpu, mfu)}:",
        *scaling_table(times),
        *_waits(costs, gpu, mfu),
        f"--offload: its blocks come in {waits:.3f} s a step, behind the computation",
    ]
    if (num := max(costs)) > 1:
        gathers = gather_time(_size(dit), num, gpu)
        hidden = gathers + times[num].links <= times[num].compute
        how = "behind the computation" if hidden else "more than the computation hides"
        lines.append(f"--shard: weights are gathered in {gathers:.3f} s a step, {how}")
    return lines


def _waits(costs: Mapping[int, Cost], gpu: GPU, mfu: float) -> list[str]:
    """What of the links is not hidden, by the two ways of exchanging."""
    left = [f"{exposed_links(cost, gpu, mfu):.2g} on {n}" for n, cost in costs.items() if n > 1]
    if not left:
        return []
    return [
        "links that are waited for: all where exchanges block; where they overlap "
        f"{', '.join(left)} ({exchange.VARIABLE})"
    ]


def _work(made: Pass, base: VideoFormat, video: Video, chunks: int, steps: int) -> str:
    frames, seconds = video.num_frames, video.seconds
    seconds = seconds if frames is None else frames / base.frame_rate_hz
    return (
        f"{seconds:g} s of {base}: {counted(chunks, 'chunk')} of {made.latents} "
        f"latents in {counted(steps, 'step')} of {made.samples} "
        f"{'pass' if made.samples == 1 else 'passes'}"
    )


def _networks(models: Models) -> tuple[AvatarDiT, Conditioner, MotionNet]:
    """Without memory, in the types that generation keeps them in (generate/loaded.py)."""
    with torch.device("meta"):
        dit = AvatarDiT(config_of(models))
        conditioner = conditioner_of(models.preset, dit.config)
        dim = conditioner.audio_encoder.dim
        net = MotionNet(preset(models.preset).motion(dim))
    for network in (dit, net):
        narrow(network, torch.bfloat16)
    return dit, conditioner, net


def _networks_bytes(dit: AvatarDiT, conditioner: Conditioner, net: MotionNet) -> dict[str, Number]:
    return {
        "DiT, bf16": _size(dit),
        "VAE, fp32": _size(conditioner.vae),
        "encoders of text and sound, fp32": _size(conditioner) - _size(conditioner.vae),
        "motion network": _size(net),
    }


def _step_cost(dit: AvatarDiT, made: Pass, num_ranks: int) -> Cost:
    """Of one step on rank 0 of so many, whose exchanges overlap with computing."""
    with exchange.using(OVERLAPS), spread_over(num_ranks, dit):
        return pass_cost(dit, made)


def _asked(name: str) -> tuple[Card | None, Models]:
    if name in PRESETS and PRESETS[name].embedded is None:
        return None, Models(name)
    folder = weights_folder(name)
    card = read_card(folder)
    return card, Models(card.preset, init_from=str(folder))


def _passes(
    dit: AvatarDiT,
    conditioner: Conditioner,
    card: Card | None,
    sizes: Format,
    way: Sizes,
    text_tokens: int,
    video: Video,
) -> tuple[Pass, Pass]:
    """A step of a chunk, and the encoding of the reference, once a video."""
    reads, stills, audio = True, 0, Card("").guidance_audio
    if card is not None:
        audio, reads, stills = card.guidance_audio, card.can.reference, card.can.stills
    reads = reads and not video.text_only
    frames = _new_latents(video.reference_s, sizes.video) if reads else 0
    frames = min(frames, NUM_STILLS) if stills else frames
    text = TEXT_GUIDANCE if video.text_only else 1.0
    heard = not video.text_only
    guided = len(streams(text=text, audio=audio, has_audio=heard, has_reference=reads))
    if dit.config.has_guidance_inside:
        guided = 1
    of = Pass(
        1, sizes.chunk_latents, _cells(way.base, conditioner.vae),
        audio=heard, motion=heard, reference=frames,
        text_tokens=text_tokens, stills=bool(stills), kept=True,
    )  # fmt: skip
    return replace(of, samples=video.num_passes or guided), replace(of, latents=0)


def _way(video: Video, sizes: Format, vae: VideoVAE, patch: int) -> Sizes:
    """The pictures on their way. ValueError for pixels that fill no whole tokens."""
    token, out = vae.spatial_factor * patch, sizes.video.scaled(video.factor)
    if video.size is not None:
        out = out.sized(*VideoFormat.of(video.size).size)
    return fitted(out, token, video.factor)


def _cells(video: VideoFormat, vae: VideoVAE) -> tuple[int, int]:
    """Latent cells of the picture's height and width."""
    return video.height // vae.spatial_factor, video.width // vae.spatial_factor


def _refined(
    dit: AvatarDiT, vae: VideoVAE, made: Pass, way: Sizes, sizes: Format, devices: int
) -> tuple[dict[str, Number], Cost, list[str]]:
    """Bytes of a refiner of the generator's own size, what a chunk costs it on each device, and how
    in words; nothing where there is none. Its tiles are as large as the pictures that it was
    trained on: the generator's own, enlarged."""
    if way.base == way.larger:
        return {}, Cost(0, 0, 0), []
    token, factor = vae.spatial_factor * dit.config.patch, way.larger.height / way.base.height
    whole, trained = way.larger.covering(token), sizes.video.scaled(factor).covering(token)
    tile = whole.sized(*(min(pair) for pair in zip(whole.size, trained.size, strict=True)))
    num = len(tiles(_cells(whole, vae), _cells(tile, vae), dit.config.patch))
    with torch.device("meta"):
        shape = replace(dit.config, refines_from=SIGMA, temporal_window=CONTEXT_LATENTS,
                        guidance_ranges=None, causal_block=None, causal_window=None)  # fmt: skip
        refiner = AvatarDiT(shape)
    narrow(refiner, torch.bfloat16)
    of = replace(
        made, samples=1, latents=made.latents + CONTEXT_LATENTS, size=_cells(tile, vae),
        reference=min(made.reference, sizes.refiner_latents), stills=False, kept=False,
        within=_cells(whole, vae),
    )  # fmt: skip
    one = _step_cost(refiner, of, devices)
    around = [
        _vae_cost(vae, made.latents, _cells(whole, vae), encodes=encodes)
        for encodes in (False, True)
    ]
    chunk = replace(
        one,
        flops=num * one.flops + sum(cost.flops for cost in around) / devices,
        peak=max(one.peak, *(cost.peak / devices for cost in around)),
    )
    keys = reference_bytes(refiner, of, bf16=True) / degrees(dit.config.num_heads, devices)[0]
    return (
        {"refiner, bf16": _size(refiner), "its keys of the reference": keys},
        chunk,
        [f"refined to {way.larger} in {counted(num, 'tile')} of {tile}, delivered as {way.out}"],
    )


def _vae_cost(vae: VideoVAE, latents: int, size: tuple[int, int], *, encodes: bool = False) -> Cost:
    vae, few = copy.deepcopy(vae), min(latents, FEW_LATENTS)
    with pretending():
        without_values(vae, torch.float32)
        x = torch.empty(1, few, vae.latent_channels, *size)
        if encodes:
            pixels = (side * vae.spatial_factor for side in size)
            x = torch.empty(1, num_frames(few), 3, *pixels)

        def run() -> None:
            vae.encode(x) if encodes else vae.decode(x)

        cost = cost_of(run, bf16=True, trains=False)
    return replace(cost, flops=cost.flops * latents / few)


def _offloaded(dit: AvatarDiT, conditioner: Conditioner) -> int:
    """Bytes of blocks that wait in main memory, but for those that keep a place."""
    lists = [m for module in (dit, conditioner) for m in module.modules()]
    blocks = [b for m in lists if isinstance(m, nn.ModuleList) for b in m]
    outermost = {id(inner) for b in blocks for inner in b.modules() if inner is not b}
    sizes = sorted((_size(b) for b in blocks if id(b) not in outermost), reverse=True)
    return sum(sizes[PLACES:])


def _sharded(
    dit: AvatarDiT, conditioner: Conditioner, activations: Number, num: int
) -> tuple[Number, Number]:
    """Bytes that sharding over so many saves each of them while it computes, and those that it
    saves if the shards of blocks wait in main memory (parallel/apply.py)."""
    networks, gathered, blocks = (dit, conditioner.text_encoder), [], 0
    for network in networks:
        sizes = [_size(unit) for unit in shard_units(network)[:-1]]
        gathered.append(_size(network) - sum(sizes) + GATHERED * max(sizes))
        blocks += sum(sizes)
    held = max(gathered[0], gathered[1] - activations)  # text is encoded before, without these
    saved = sum(map(_size, networks)) * (num - 1) / num - held
    return saved, saved + blocks / num


def _verdict(name: str, total_gib: Number, machine: Machine, devices: int) -> str:
    if machine.gpu is None:
        return f"{name}: needs {total_gib:.2f} GiB"
    total, room = total_gib + RESERVE_GIB, machine.gpu.memory_gib
    verdict = "fits" if total <= room else "does not fit"
    return (
        f"{name}: {verdict}: {total:.0f} of {room:.0f} GiB on each of {devices} {machine.gpu.name}"
    )


def _new_latents(seconds: float, video: VideoFormat) -> int:
    return max(1, math.ceil(seconds * video.frame_rate_hz / TEMPORAL_FACTOR))


def _num_frames(video: Video, sizes: Format) -> int:
    if video.num_frames is not None:
        return video.num_frames
    return max(1, math.ceil(video.seconds * sizes.video.frame_rate_hz))


def _size(module: nn.Module) -> int:
    return sum(p.numel() * p.element_size() for p in module.parameters())
