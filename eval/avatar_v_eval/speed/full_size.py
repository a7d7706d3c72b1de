"""A chunk at full size: time to its first frame, frames a second, and memory.

Weights are random, in the layout of Wan, and prompts have drawn encodings: nothing is downloaded.
Each row runs in a process of its own, so that its peak of memory is its own: the largest resident
size (VmHWM), reading of the weights included, and on a GPU the most that torch's allocator gave
away. The pictures are as small and the windows as short as `--side` and `--latents` say: on a CPU
few, on a GPU those of the recipes. Where a row does not fit, the command says so before it begins.
"""

import argparse
import dataclasses
import hashlib
import math
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from jaxtyping import Float
from torch import Tensor, nn
from transformers import Wav2Vec2FeatureExtractor

from avatar_v.base.device import chosen_device
from avatar_v.base.video_format import VideoFormat
from avatar_v.generate.pipeline import AvatarPipeline
from avatar_v.inputs.inputs import Inputs
from avatar_v.inputs.reference_clip import ReferenceClip
from avatar_v.models.causal import as_causal
from avatar_v.models.conditioner import Conditioner
from avatar_v.models.dit import AvatarDiT
from avatar_v.models.layers import IN_FP32
from avatar_v.models.motion_net import MotionNet
from avatar_v.models.text import UMT5TextEncoder
from avatar_v.models.vae import VideoVAE
from avatar_v.planning.networks import Wav2Vec2OfSize, conditioner_of
from avatar_v.request.record import peak_rss_mib
from avatar_v.request.request import Request
from avatar_v.types import MOTION_NAMES, SAMPLES_PER_FRAME, num_frames
from avatar_v.weights.card import Capabilities, Card
from avatar_v.weights.presets import preset
from avatar_v.weights.random import motion_stats
from avatar_v.weights.wan import WAN_CLASS, WAN_STEM, config_to_wan, import_wan, state_to_wan
from avatar_v.weights.weights import load_dit, write_json, write_state
from avatar_v_eval.processes import in_a_process
from avatar_v_eval.protocol import Findings
from avatar_v_eval.records import Number

ROWS = {
    "chunk": "one chunk generated, 4 steps of 2 passes",
    "student": "one chunk generated, 4 steps of 1 pass",
    "causal": "causal, blocks of 3 latents, 4 steps of 1 pass",
}
NEEDED_GIB = {"chunk": 8, "student": 8, "causal": 14}
"""Of main memory by row, for the full sizes on a CPU: measured, and a reserve."""
TIMES_AS_LARGE = {"wan_1_3b": 1, "wan_14b": 8}
"""Presets of full size, over the smaller one (reckoned)."""
ON_CPU, ON_GPU = (64, 5), (480, 41)
"""Pixels of a side, and latents of a window."""
STEPS = 4
BLOCK, HISTORY = 3, 4
"""Latents of a block of the causal student, and blocks before its own that it sees."""
POOL = 2**24
"""Normal values that weights repeat: to draw a billion of them takes minutes."""


@dataclass(frozen=True)
class Size:
    """How large the pictures and how long the windows are, and where it runs."""

    preset: str
    side: int
    latents: int
    device: str
    offload: bool = False  # networks wait in main memory


def add_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--rows", nargs="+", default=list(ROWS), choices=list(ROWS))
    add("--device", default="auto", help="cpu, cuda; auto: a GPU where there is one (%(default)s)")
    add("--preset", default="wan_1_3b", choices=("tiny", *TIMES_AS_LARGE))
    add("--side", type=int, help=f"pixels; default: {ON_CPU[0]}, on a GPU {ON_GPU[0]}")
    add("--latents", type=int, help=f"of a window; default: {ON_CPU[1]}, on a GPU {ON_GPU[1]}")
    add("--dit", help="an imported DiT to measure with (default: random weights)")
    add("--offload", action="store_true", help="as `generate --offload`")


def measure(options: argparse.Namespace) -> Findings:
    device = chosen_device(options.device)
    side, latents = ON_CPU if device.type == "cpu" else ON_GPU
    size = Size(
        options.preset,
        options.side or side,
        options.latents or latents,
        str(device),
        options.offload,
    )
    if options.preset != "tiny":
        check_memory(options.rows, TIMES_AS_LARGE[options.preset])
    numbers: dict[str, Number] = {}
    with tempfile.TemporaryDirectory() as name:
        dit = options.dit or str(in_a_process(import_random, size.preset, Path(name)))
        for row in options.rows:
            print(f"{row} …", flush=True)
            numbers |= row_numbers(row, in_a_process(one_row, row, size, dit))
    return Findings(
        "A chunk at full size",
        numbers,
        notes=[
            f"{size.preset}, random weights in Wan's layout, on {device.type}"
            f"{', offloaded' if size.offload else ''}: {size.latents} latents "
            f"({num_frames(size.latents)} frames) at {size.side} px, a reference of as many, bf16, "
            "encodings of prompts drawn",
        ],
    )


def check_memory(rows: Sequence[str], times: int = 1) -> None:
    """ValueError, before anything starts, where the machine has too little free memory."""
    free = free_gib()
    worst = max(rows, key=lambda row: NEEDED_GIB[row])
    if free < times * NEEDED_GIB[worst]:
        fits = [row for row in ROWS if times * NEEDED_GIB[row] <= free]
        raise ValueError(
            f"row {worst} needs about {times * NEEDED_GIB[worst]} GiB of free memory, this machine "
            f"has {free:.1f}: leave it out (--rows {' '.join(fits)})"
        )


def free_gib() -> float:
    """Main memory that can be had without swapping."""
    told = Path("/proc/meminfo").read_text(encoding="ascii")
    return int(told.split("MemAvailable:")[1].split()[0]) / 2**20


def row_numbers(row: str, found: dict[str, float]) -> dict[str, Number]:
    """What a row told, in words."""
    words = {
        "s": ("time", "s"),
        "gib": ("peak", "GiB"),
        "gpu_gib": ("peak of the GPU", "GiB"),
        "frame_s": ("time to its first frame", "s"),
        "rate": ("frames a second", "frames/s"),
    }
    return {
        f"{row}_{key}": Number(value, 1).described(f"{ROWS[row]}: {words[key][0]}",
                                                   unit=words[key][1])
        for key, value in found.items()
    }  # fmt: skip


def one_row(row: str, size: Size, dit: str) -> dict[str, float]:
    """From tensors to frames by the loop of `avatar-v generate`: one chunk, or causal ones and
    their rate after the first. A GPU makes it twice, and the second time counts."""
    is_causal = row == "causal"
    if is_causal:
        size = dataclasses.replace(size, latents=size.latents + 2 * BLOCK)
    pipe = pipeline(Path(dit), size, is_causal=is_causal)
    request = Request.of(reference="", audio="", prompt="a room", num_steps=STEPS)
    if row != "chunk":
        request = request.changed(guidance_audio=1.0, guidance_motion=1.0)
    if is_causal:
        request = request.changed(chunk_latents=2 + BLOCK)
    inputs, on_gpu = speech(size), pipe.device.type == "cuda"
    if on_gpu:
        for _ in pipe.stream(inputs, request):
            pass
    numbers, times = [], []
    begin = time.perf_counter()
    for frames in pipe.stream(inputs, request):
        numbers.append(len(frames))
        times.append(time.perf_counter() - begin)
    assert sum(numbers) == num_frames(size.latents), "all frames were made"
    first, since = (1, times[0]) if is_causal else (0, 0.0)
    found = {
        "s": times[-1],
        "gib": peak_rss_mib() / 2**10,
        "frame_s": times[0],
        "rate": sum(numbers[first:]) / (times[-1] - since),
    }
    return found | ({"gpu_gib": torch.cuda.max_memory_allocated() / 2**30} if on_gpu else {})


def pipeline(folder: Path, size: Size, *, is_causal: bool) -> AvatarPipeline:
    """Networks of the preset's size, in bf16; all but the imported DiT are fresh."""
    dit = load_dit(folder, dtype=torch.bfloat16)  # without a copy of all of it in fp32
    linear = {id(p) for m in dit.modules() if isinstance(m, nn.Linear) for p in m.parameters()}
    exact = {id(p) for m in dit.modules() if isinstance(m, IN_FP32) for p in m.parameters()}
    for parameter in dit.parameters():
        if id(parameter) in exact or id(parameter) not in linear:
            parameter.data = parameter.data.float()
    dit.motion_stats = motion_stats()
    if is_causal:
        dit = as_causal(dit.float(), block=BLOCK, window=HISTORY)
    if size.preset == "tiny":
        conditioner = conditioner_of(size.preset, dit.config)
        conditioner.motion_stats = dit.motion_stats
    else:
        audio = Wav2Vec2OfSize(dit.config.audio_dim)
        audio.extractor = Wav2Vec2FeatureExtractor()
        text = DrawnText(dit.config.text_dim)
        conditioner = Conditioner(VideoVAE.wan21("cpu"), text, audio, dit.motion_stats)
    motion = preset(size.preset).motion(conditioner.audio_encoder.dim)
    conditioner.motion_net = MotionNet(motion)
    can = Capabilities(
        video=VideoFormat(size.side, size.side),
        window_latents=size.latents,
        reference=True,
        motion=True,
        shift=3.0,
        causal_block=BLOCK if is_causal else None,
    )
    card = Card(size.preset, can=can)
    return AvatarPipeline(
        dit, conditioner, card, device=size.device, precision="bf16", offload=size.offload
    )


def speech(size: Size) -> Inputs:
    """A chunk's length of noise to speak, and as much reference."""
    draw, num = torch.Generator().manual_seed(0), num_frames(size.latents)
    shape = (num, 3, size.side, size.side)
    video = torch.randint(0, 256, shape, generator=draw, dtype=torch.uint8)
    sound = 0.1 * torch.randn(num * SAMPLES_PER_FRAME, generator=draw)
    motion = 0.3 * torch.rand(num, len(MOTION_NAMES), generator=draw)
    clip = ReferenceClip(video, torch.ones(num, dtype=torch.bool), sound, motion)
    return Inputs(video[0], sound, num, None, (), (clip,), motion[0])


def import_random(name: str, folder: Path) -> Path:
    """A DiT folder of preset ``name`` below ``folder``: random bf16 weights under Wan's names, in
    through `avatar-v weights import-wan` as published ones are."""
    config = preset(name).dit
    with torch.device("meta"):
        shapes = {key: x.shape for key, x in state_to_wan(AvatarDiT(config)).items()}
    pool = torch.randn(POOL, generator=torch.Generator().manual_seed(0)).to(torch.bfloat16)
    state = {}
    for key, shape in shapes.items():
        num, is_gain = shape.numel(), len(shape) == 1 and key.endswith("weight")
        x = pool.repeat(-(-num // POOL))[:num].view(shape)
        state[key] = torch.ones_like(x) if is_gain else x / math.sqrt(max(1, x[0].numel()))
    source, out = folder / "wan", folder / "dit"
    source.mkdir(parents=True)
    write_json(source / "config.json", {"_class_name": WAN_CLASS, **config_to_wan(config)})
    write_state(source, state, WAN_STEM)
    del state
    import_wan(source, out, audio_dim=config.audio_dim, audio_every=config.audio_every)
    return out


class DrawnText(UMT5TextEncoder):
    """Encodings of prompts of UMT5's shape, drawn from the words: UMT5-XXL alone takes 11 GiB."""

    def __init__(self, dim: int) -> None:
        nn.Module.__init__(self)
        self.num_tokens, self.dim = 512, dim
        self.where = nn.Parameter(torch.zeros(()), requires_grad=False)  # the device

    def forward(self, texts: Sequence[str]) -> Float[Tensor, "b n d"]:
        rows = []
        for text in texts:
            seed = int.from_bytes(hashlib.sha256(text.encode()).digest()[:6], "big")
            draw = torch.Generator().manual_seed(seed)
            rows.append(torch.randn(self.num_tokens, self.dim, generator=draw))
        return torch.stack(rows).to(self.where.device)
