"""Networks and stages of full size with random weights: a part of the measurement `full_size`.

Weights are drawn in the layout of diffusers' Wan and come in through `avatar-v weights import-wan`,
as published ones do. What is frozen is kept in bf16, as autocast reads it, what is trained in fp32.
UMT5-XXL alone takes 11 GiB in bf16: here prompts are encoded as one encodes them beforehand, in a
process of its own, and stages and generation are given drawn encodings.
"""

import contextlib
import dataclasses
import hashlib
import math
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from jaxtyping import Float
from torch import Tensor, nn
from transformers import Wav2Vec2FeatureExtractor

from avatar_v.models.conditioner import Conditioner
from avatar_v.models.dit import AvatarDiT
from avatar_v.models.guided import with_guidance_inside
from avatar_v.models.layers import IN_FP32
from avatar_v.models.motion_net import MotionNet
from avatar_v.models.text import UMT5TextEncoder
from avatar_v.models.vae import VideoVAE
from avatar_v.parallel.apply import checkpoint_blocks
from avatar_v.planning.networks import UMT5OfWan, Wav2Vec2OfSize, conditioner_of
from avatar_v.planning.recipe import Recipe, read_recipe
from avatar_v.stages.base import Stage
from avatar_v.stages.distill_dmd import DistillDMD
from avatar_v.weights.presets import preset
from avatar_v.weights.random import motion_stats
from avatar_v.weights.wan import WAN_CLASS, WAN_STEM, config_to_wan, import_wan, state_to_wan
from avatar_v.weights.weights import load_dit, write_json, write_state

EMBEDDED = ("tiny", "small")
"""Presets with encoders of their own."""
POOL = 2**24
"""Normal values that weights repeat: to draw a billion of them takes minutes."""


class DrawnText(UMT5TextEncoder):
    """Encodings of prompts of UMT5's shape, drawn from the words."""

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


def import_random(name: str, folder: Path) -> Path:
    """A DiT folder of preset ``name`` below ``folder``: random bf16 weights under Wan's names,
    imported."""
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


def narrow_dit(folder: Path) -> AvatarDiT:
    """The imported DiT, in bf16 where autocast reads bf16 and fp32 elsewhere, without a copy of all
    of it in fp32."""
    dit = load_dit(folder, dtype=torch.bfloat16)
    dit.motion_stats = motion_stats()
    _keep_in_fp32(dit, trains=False)
    return dit


def conditioner_for(name: str, dit: AvatarDiT) -> Conditioner:
    """VAE and encoders of the preset's size with random weights; prompts are drawn."""
    if name in EMBEDDED:
        made = conditioner_of(name, dit.config)
        made.motion_stats = dit.motion_stats
        return made
    audio = Wav2Vec2OfSize(dit.config.audio_dim)
    audio.extractor = Wav2Vec2FeatureExtractor()
    text = DrawnText(dit.config.text_dim)
    return Conditioner(VideoVAE.wan21("cpu"), text, audio, dit.motion_stats)


def motion_net_for(name: str, conditioner: Conditioner) -> MotionNet:
    dim = conditioner.audio_encoder.dim
    return MotionNet(preset(name).motion(dim))


def recipe_of(stage: str, name: str, window: int, parts: str = "lora") -> Recipe:
    """The full-size recipe of ``stage`` that trains ``parts``, for a few steps on one device. The
    clips of a stage that reads a reference have no stills: it is shown them as they are."""
    settings = {
        "models.preset": name,
        "objective.window_latents": f"{{0: {window}}}",
        "objective.resolution": "{0: 1.0}",
        "optim.num_warmup_steps": "0",
        "trainable": f"{{parts: {parts}}}",
    }
    if stage != "2_a2v":
        settings |= {
            "personality.stills_share": "0.0",
            "personality.motion_dropout": "0.0",
            "personality.min_reference_latents": str(window),
            "personality.max_reference_latents": str(window),
        }
    if stage == "4b_distill_dmd":  # each step trains both; it continues a chunk of its own
        settings |= {
            "matching.fake_updates": "1",
            "updates.accumulate_grad_batches": "1",
            "rollout.prompt_share": "0.0",
            "rollout.image_share": "0.0",
        }
    words = [w for key, value in settings.items() for w in (f"--model.init_args.{key}", value)]
    if stage != "4b_distill_dmd":  # whose updates are its own
        words += ["--trainer.accumulate_grad_batches", "1"]
    return read_recipe([f"recipes/{stage}.yaml"], words)


def ready_stage(recipe: Recipe, name: str, folder: Path) -> Stage:
    """The stage of ``recipe`` with its networks, as `Stage.configure_model` leaves them."""
    stage = recipe.fresh_stage()
    stage.models = dataclasses.replace(stage.models, init_from=None)  # no card is read
    stage.dit = narrow_dit(folder)
    stage.conditioner = conditioner_for(name, stage.dit)
    with _made_in_bf16():
        if isinstance(stage, DistillDMD):  # as stage 4a leaves it
            stage.dit = with_guidance_inside(stage.dit, stage.guidance.ordered)
        stage.settle_networks()
    for module in stage.children():
        if isinstance(module, AvatarDiT):
            _keep_in_fp32(module, trains=True)
            checkpoint_blocks(module)
    stage.is_built = True
    return stage


def umt5() -> UMT5OfWan:
    """UMT5-XXL's encoder in bf16 with random weights."""
    with torch.device("meta"):
        encoder = UMT5OfWan().to(torch.bfloat16)
    encoder.to_empty(device="cpu")
    encoder.model.tie_weights()  # which memory of its own for each name has undone
    draw = torch.Generator().manual_seed(0)
    for parameter in encoder.parameters():
        scale = 0.02 if parameter.dim() > 1 else 1.0
        parameter.data.normal_(0, scale, generator=draw)
    return encoder


@contextlib.contextmanager
def _made_in_bf16() -> Iterator[None]:
    """Copies that a stage makes of its network are not as large as in fp32 for a moment."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def _keep_in_fp32(dit: AvatarDiT, *, trains: bool) -> None:
    """All that `layers.narrow` does not reach, and with ``trains`` what is trained."""
    linear = {id(p) for m in dit.modules() if isinstance(m, nn.Linear) for p in m.parameters()}
    exact = {id(p) for m in dit.modules() if isinstance(m, IN_FP32) for p in m.parameters()}
    for parameter in dit.parameters():
        trained = trains and parameter.requires_grad
        if trained or id(parameter) in exact or id(parameter) not in linear:
            parameter.data = parameter.data.float()
