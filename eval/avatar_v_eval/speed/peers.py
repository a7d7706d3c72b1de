"""Ours against named peers on the same weights, in turns: a part of the measurement `throughput`.

The peers are diffusers' AutoencoderKLWan and WanTransformer3DModel, and torch.optim.Muon.
"""

import dataclasses
import warnings
from collections.abc import Callable
from functools import partial

import torch
from diffusers.models.autoencoders.autoencoder_kl_wan import AutoencoderKLWan
from diffusers.models.transformers.transformer_wan import WanTransformer3DModel
from torch import Tensor

from avatar_v.base.device import emulates_bf16
from avatar_v.generate.generator import DECODE_LATENTS
from avatar_v.models.dit import AvatarDiT
from avatar_v.models.vae import VideoVAE
from avatar_v.training.muon import BatchedMuon
from avatar_v.training.optim import hidden_matrices
from avatar_v.types import FRAME_RATE_HZ, Cond, num_frames
from avatar_v.weights.wan import config_to_wan, state_to_wan
from avatar_v_eval.intervals import median_of_repeats
from avatar_v_eval.records import Number
from avatar_v_eval.turns import in_turns, ratio

DECODED_LATENTS = 41  # a chunk at full size
WINDOW_LATENTS = 13
TRAINED_WINDOWS = 8
TEXT_TOKENS = 64


def decode_numbers(vae: VideoVAE, repeats: int) -> dict[str, Number]:
    """A chunk decoded as a stream: its first frame, in the pieces of generation, in one piece, and
    by diffusers, which gives nothing before the end."""
    peer = AutoencoderKLWan.from_config(vae.core.config.to_json())
    assert isinstance(peer, AutoencoderKLWan)
    peer.eval().load_state_dict(vae.core.state_dict())
    noise = _randn(1, DECODED_LATENTS, vae.latent_channels, 8, 8)
    raw = vae.unnormalise(noise).transpose(1, 2)
    first, rest = noise[:, :1], noise[:, 1:].split(DECODE_LATENTS, dim=1)

    def stream() -> None:
        decoder = vae.stream_decoder()
        for piece in (first, *rest):
            decoder.push(piece)

    ways = {
        "first": lambda: vae.stream_decoder().push(first),
        "stream": stream,
        "whole": partial(vae.decode, noise),
        "theirs": partial(peer.decode, raw),
    }
    with torch.inference_mode():
        times = in_turns(ways, repeats)
    length_s = num_frames(DECODED_LATENTS) / FRAME_RATE_HZ
    chunk = f"a chunk of {DECODED_LATENTS} latents"
    return {
        "decode": median_of_repeats([s / length_s for s in times["stream"]]).described(
            "decoding one second of latents", unit="s"
        ),
        "decode_first_s": median_of_repeats(times["first"]).described(
            f"decoding {chunk} as a stream: its first frame", unit="s"
        ),
        "decode_first_share": ratio(times, "first", "whole").described(
            f"decoding {chunk}: first frame of the stream / whole in one piece", target="< 0.1"
        ),
        "decode_streamed": ratio(times, "stream", "whole").described(
            f"decoding {chunk}: all of the stream / whole in one piece"
        ),
        "decode_speedup": ratio(times, "theirs", "stream").described(
            "diffusers' time to decode / ours as a stream"
        ),
        "decode_speedup_whole": ratio(times, "theirs", "whole").described(
            "diffusers' time to decode / ours in one piece"
        ),
        "decode_first": ratio(times, "theirs", "first").described(
            "diffusers' time to its first frame / ours"
        ),
    }


def dit_numbers(dit: AvatarDiT, repeats: int) -> dict[str, Number]:
    """One denoising step and one training step of the backbone that both have: no audio, no
    reference; text of 64 tokens; windows of 13 latents at 64 px. Under bf16 autocast, except on a
    processor that is slower so."""
    dit = plain(dit).requires_grad_(True)
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
        with warnings.catch_warnings():  # torch on the peer's norms: fp32 weights under autocast
            warnings.filterwarnings("ignore", message="Mismatch dtype between input and weight")
            times = in_turns({"ours": ours, "theirs": theirs}, repeats)
        numbers[f"{name}_speedup"] = ratio(times, "theirs", "ours").described(
            f"diffusers' time for {label} / ours"
        )
    return numbers


def plain(dit: AvatarDiT) -> AvatarDiT:
    """A copy that reads no guidance weights, as diffusers' reads none."""
    copied = AvatarDiT(dataclasses.replace(dit.config, guidance_ranges=None), dit.motion_stats)
    state = dit.state_dict()
    copied.load_state_dict({key: state[key] for key in copied.state_dict()})
    return copied.eval()


def muon_numbers(dit: AvatarDiT, repeats: int) -> dict[str, Number]:
    """One step of Muon over the backbone's matrices: torch's own, and ours batched by shape."""
    names = hidden_matrices(dit)
    # what is trained is fp32, also where the pipeline narrowed it for generation
    matrices = [p.detach().float() for name, p in dit.named_parameters() if name in names]
    steps = {}
    for name, kind in (("ours", BatchedMuon), ("theirs", torch.optim.Muon)):
        copies = [torch.nn.Parameter(p.clone()) for p in matrices]
        for i, matrix in enumerate(copies):
            matrix.grad = _randn(*matrix.shape, seed=i)
        steps[name] = kind(copies, lr=1e-3, adjust_lr_fn="match_rms_adamw").step
    speedup = ratio(in_turns(steps, repeats), "theirs", "ours")
    return {"muon_speedup": speedup.described("torch's time for a step of Muon / ours")}


def _pass(call: Callable[[], Tensor], module: torch.nn.Module, trains: bool) -> None:
    bf16 = not emulates_bf16(torch.device("cpu"))
    with torch.set_grad_enabled(trains), torch.autocast("cpu", torch.bfloat16, enabled=bf16):
        v = call()
    if trains:
        v.float().square().mean().backward()
        module.zero_grad(set_to_none=True)


def _randn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))
