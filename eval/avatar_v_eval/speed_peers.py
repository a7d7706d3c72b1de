"""Ours against named peers on the same weights, in turns, in one process (used by speed.py).

diffusers' AutoencoderKLWan and WanTransformer3DModel, and torch.optim.Muon. A ratio is taken within
each turn, so that what slows the machine for a while slows both sides; the first turn warms up.
"""

import copy
import time
from collections.abc import Callable
from functools import partial

import torch
from diffusers.models.autoencoders.autoencoder_kl_wan import AutoencoderKLWan
from diffusers.models.transformers.transformer_wan import WanTransformer3DModel
from torch import Tensor

from avatar_v.generate.generator import DECODE_LATENTS
from avatar_v.models.dit import AvatarDiT
from avatar_v.models.vae import VideoVAE
from avatar_v.models.wan import config_to_wan, state_to_wan
from avatar_v.stages.muon import BatchedMuon
from avatar_v.stages.optim import hidden_matrices
from avatar_v.types import FRAME_RATE_HZ, Cond, num_frames
from avatar_v_eval.records import Number, median_of_repeats

DECODED_LATENTS = 41  # a chunk at full size
WINDOW_LATENTS = 13
TRAINED_WINDOWS = 8
TEXT_TOKENS = 64


def decode_numbers(vae: VideoVAE, repeats: int) -> dict[str, Number]:
    """A chunk decoded as a stream: its first frame, in the pieces of generation, in one piece, and
    by diffusers, which gives nothing before the end."""
    peer = AutoencoderKLWan.from_config(vae.core.config)
    assert isinstance(peer, AutoencoderKLWan)
    peer.eval().load_state_dict(vae.core.state_dict())
    noise = _randn(1, DECODED_LATENTS, vae.latent_channels, 8, 8)
    raw = vae.unnormalise(noise).transpose(1, 2)
    first, streamed, whole, theirs = [], [], [], []
    with torch.inference_mode():
        for _ in range(repeats + 1):
            decoder = vae.stream_decoder()
            pieces = [noise[:, :1], *noise[:, 1:].split(DECODE_LATENTS, dim=1)]
            times = [seconds(partial(decoder.push, piece)) for piece in pieces]
            first.append(times[0])
            streamed.append(sum(times))
            whole.append(seconds(partial(vae.decode, noise)))
            theirs.append(seconds(partial(peer.decode, raw)))
    length_s = num_frames(DECODED_LATENTS) / FRAME_RATE_HZ
    chunk = f"a chunk of {DECODED_LATENTS} latents"
    return {
        "decode": median_of_repeats([o / length_s for o in streamed[1:]]).described(
            "decoding one second of latents", unit="s"
        ),
        "decode_first_s": median_of_repeats(first[1:]).described(
            f"decoding {chunk} as a stream: its first frame", unit="s"
        ),
        "decode_first_share": _ratio(first, whole).described(
            f"decoding {chunk}: first frame of the stream / whole in one piece", target="< 0.1"
        ),
        "decode_streamed": _ratio(streamed, whole).described(
            f"decoding {chunk}: all of the stream / whole in one piece"
        ),
        "decode_speedup": _ratio(theirs, streamed).described(
            "diffusers' time to decode / ours as a stream"
        ),
        "decode_speedup_whole": _ratio(theirs, whole).described(
            "diffusers' time to decode / ours in one piece"
        ),
        "decode_first": _ratio(theirs, first).described(
            "diffusers' time to its first frame / ours"
        ),
    }


def dit_numbers(dit: AvatarDiT, repeats: int) -> dict[str, Number]:
    """One denoising step and one training step of the backbone that both have, in bf16 autocast:
    no audio, no reference; text of 64 tokens; windows of 13 latents at 64 px."""
    dit = copy.deepcopy(dit).requires_grad_(True)
    peer = WanTransformer3DModel(**config_to_wan(dit.config))
    peer.load_state_dict(state_to_wan(dit))
    numbers = {}
    for name, label, size, trains in (
        ("denoise", "one denoising step", 1, False),
        ("train", "one forward and backward pass", TRAINED_WINDOWS, True),
    ):
        x = _randn(size, WINDOW_LATENTS, dit.config.latent_channels, 8, 8)
        text = _randn(size, TEXT_TOKENS, dit.config.text_dim)
        t = torch.full((size, WINDOW_LATENTS), 0.5)
        ours = partial(_pass, partial(dit, x, t, Cond(text=text)), dit, trains)
        call = partial(peer, x.transpose(1, 2), t[:, 0] * 1000, text, return_dict=False)
        theirs = partial(_pass, lambda call=call: call()[0], peer, trains)
        turns = [(seconds(ours), seconds(theirs)) for _ in range(repeats + 1)]
        a, b = zip(*turns, strict=True)
        numbers[f"{name}_speedup"] = _ratio(b, a).described(f"diffusers' time for {label} / ours")
    return numbers


def muon_numbers(dit: AvatarDiT, repeats: int) -> dict[str, Number]:
    """One step of Muon over the backbone's matrices: torch's own, and ours batched by shape."""
    names = hidden_matrices(dit)
    matrices = [p for name, p in dit.named_parameters() if name in names]
    steps = []
    for kind in (BatchedMuon, torch.optim.Muon):
        copies = [torch.nn.Parameter(p.detach().clone()) for p in matrices]
        for i, matrix in enumerate(copies):
            matrix.grad = _randn(*matrix.shape, seed=i)
        steps.append(kind(copies, lr=1e-3, adjust_lr_fn="match_rms_adamw").step)
    turns = [(seconds(steps[0]), seconds(steps[1])) for _ in range(repeats + 1)]
    ours, theirs = zip(*turns, strict=True)
    return {
        "muon_speedup": _ratio(theirs, ours).described("torch's time for a step of Muon / ours")
    }


def seconds(function: Callable[[], object]) -> float:
    """Wall time of one call."""
    start_s = time.perf_counter()
    function()
    return time.perf_counter() - start_s


def _pass(call: Callable[[], Tensor], module: torch.nn.Module, trains: bool) -> None:
    with torch.set_grad_enabled(trains), torch.autocast("cpu", torch.bfloat16):
        v = call()
    if trains:
        v.float().square().mean().backward()
        module.zero_grad(set_to_none=True)


def _ratio(theirs, ours) -> Number:
    """Of each turn but the first."""
    return median_of_repeats([t / o for t, o in zip(theirs, ours, strict=True)][1:])


def _randn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))
