"""Offloading on a GPU: switches of networks, passes and peak memory.

Networks of a full-size preset, with random weights, denoise and decode chunks of its own size: all
resident, offloaded as `avatar-v generate --offload` does, and as diffusers offloads, by groups of
layers (the DiT) and by whole models. Each way runs in a process of its own, so that peak memory is
its own. Without a GPU the command says so and writes nothing.
"""

import argparse
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from accelerate import cpu_offload_with_hook
from diffusers.hooks.group_offloading import apply_group_offloading
from torch import Tensor

from avatar_v.generate.generator import DECODE_LATENTS
from avatar_v.models.dit import AvatarDiT
from avatar_v.models.vae import VideoVAE
from avatar_v.parallel.offload import Residency
from avatar_v.parallel.streams import streams_of
from avatar_v.types import Cond
from avatar_v.weights.presets import PRESETS, preset
from avatar_v_eval.intervals import median_of_repeats
from avatar_v_eval.processes import in_a_process
from avatar_v_eval.protocol import Findings
from avatar_v_eval.records import Number
from avatar_v_eval.turns import turns_note

WAYS = ("resident", "offload", "group", "model")
TEXT_TOKENS = 512
ROUNDS = 4  # passes in a row, after one that warms up

Times = dict[str, float]
Call = Callable[[], object]


@dataclass(frozen=True)
class Work:
    """One denoising pass and one decoding; and what a pipeline does when decoding has ended."""

    denoise: Call
    decode: Call
    end: Call = lambda: None


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(name="offload")
    parser.add_argument("--preset", default="wan_1_3b", choices=list(PRESETS))
    parser.add_argument("--repeats", type=int, default=3, help="processes per way")


def measure(options: argparse.Namespace) -> Findings | None:
    if not torch.cuda.is_available():
        print("speed offload needs a CUDA GPU and finds none: nothing is measured")
        return None
    found: dict[str, list[Times]] = {way: [] for way in WAYS}
    for _ in range(options.repeats):
        for way in WAYS:
            found[way].append(in_a_process(_measured_on_gpu, way, options.preset))
    form = PRESETS[options.preset].format
    return Findings(
        "The cost of offloading",
        numbers(found),
        notes=[
            f"{options.preset}, random fp32 weights under bf16 autocast, {form.chunk_latents} "
            f"latents of {form.side} px; {DECODE_LATENTS + 1} latents are decoded at once",
            f"a switch: alternating passes and decodings against {ROUNDS} of each in a row",
            turns_note(options.repeats, "processes"),
        ],
    )


def numbers(found: dict[str, list[Times]]) -> dict[str, Number]:
    """The rows of the table, from what ``measured`` found in each repeat of each way."""

    def ratio(key: str, way: str, other: str) -> Number:
        pairs = zip(found[way], found[other], strict=True)
        return median_of_repeats([a[key] / b[key] for a, b in pairs])

    def of(key: str, way: str, scale: float = 1.0) -> Number:
        return median_of_repeats([scale * times[key] for times in found[way]])

    return {
        "switch_ms": of("switch_s", "offload", 1000).described(
            "switching networks while work is queued", unit="ms", target="< 10"
        ),
        "switch_read_ms": of("switch_read_s", "offload", 1000).described(
            "switching networks after frames have been read", unit="ms"
        ),
        "denoise_ratio": ratio("denoise_s", "offload", "resident").described(
            "one denoising pass, offloaded / all resident"
        ),
        "resident_mib": of("peak_mib", "resident").described(
            "peak memory of the GPU, all resident", unit="MiB"
        ),
        "offload_mib": of("peak_mib", "offload").described(
            "peak memory of the GPU, offloaded", unit="MiB"
        ),
        "group_ratio": ratio("denoise_s", "group", "offload").described(
            "diffusers' group offloading / ours, one denoising pass"
        ),
        "model_ratio": ratio("turn_s", "model", "offload").described(
            "diffusers' model offload / ours, a pass and a decoding in turns"
        ),
    }


def prepared(way: str, name: str, device: torch.device) -> Work:
    """Networks of preset ``name`` on ``device`` or offloaded from it in one of the ``WAYS``."""
    form, config = PRESETS[name].format, preset(name).dit
    dit = AvatarDiT(config).eval().requires_grad_(False)
    torch.nn.init.normal_(dit.head.out.weight)  # else the velocity is 0 in whichever way
    vae = _vae(name).eval().requires_grad_(False)
    side = form.side // vae.spatial_factor
    shape = (1, form.chunk_latents, config.latent_channels, side, side)
    x, t = _randn(shape, device), torch.full(shape[:2], 0.5, device=device)
    latents = x[:, : DECODE_LATENTS + 1]
    audio = (1, form.chunk_latents, config.num_audio_tokens, config.audio_dim)
    text = _randn((1, TEXT_TOKENS, config.text_dim), device)
    denoise = partial(dit, x, t, Cond(text=text, audio=_randn(audio, device)))
    if way == "model":
        raw = vae.unnormalise(latents.cpu()).transpose(1, 2).to(device)
        _, first = cpu_offload_with_hook(dit, device)
        _, second = cpu_offload_with_hook(vae.core, device, prev_module_hook=first)
        return Work(denoise, partial(vae.core.decode, raw), second.offload)
    if way == "offload":
        modules = {"dit": dit, "vae encoder": vae.core.encoder, "vae decoder": vae.core.decoder}
        Residency(modules, streams_of(device)).settle(vae)
    elif way == "group":
        on_gpu = device.type == "cuda"
        apply_group_offloading(
            dit, device, num_blocks_per_group=1, use_stream=on_gpu, record_stream=on_gpu
        )
        vae.to(device)
    else:
        dit.to(device)
        vae.to(device)
    return Work(denoise, partial(vae.decode, latents))


def measured(work: Work, device: torch.device, rounds: int = ROUNDS) -> Times:
    """Seconds of a pass, of a pass and a decoding in turns, and of a switch on the critical path:
    what alternating costs above the same calls in a row. ``_read``: the host waits after each
    decoding, as a pipeline does when it reads the frames."""

    def wait() -> None:
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    def seconds(*calls: Call) -> float:
        for call in calls:
            call()
        wait()
        begin = time.perf_counter()
        for _ in range(rounds):
            for call in calls:
                call()
        wait()
        return (time.perf_counter() - begin) / rounds

    with torch.inference_mode(), torch.autocast(device.type, dtype=torch.bfloat16):
        denoise_s = seconds(work.denoise)
        decode_s = seconds(work.decode)
        turn_s = seconds(work.denoise, work.decode, work.end)
        decode_read_s = seconds(work.decode, wait)
        read_s = seconds(work.denoise, work.decode, wait, work.end)
    return {
        "denoise_s": denoise_s,
        "turn_s": turn_s,
        "switch_s": (turn_s - denoise_s - decode_s) / 2,
        "switch_read_s": (read_s - denoise_s - decode_read_s) / 2,
    }


def _vae(name: str) -> VideoVAE:
    if name in ("tiny", "small"):
        return getattr(VideoVAE, name)()
    return (
        VideoVAE.wan22("cpu") if preset(name).dit.latent_channels == 48 else VideoVAE.wan21("cpu")
    )


def _randn(shape: tuple[int, ...], device: torch.device) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0)).to(device)


def _measured_on_gpu(way: str, name: str) -> Times:
    device = torch.device("cuda")
    times = measured(prepared(way, name, device), device)
    return {**times, "peak_mib": torch.cuda.max_memory_allocated() / 2**20}
