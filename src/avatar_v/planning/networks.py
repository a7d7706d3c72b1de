"""The networks of a stage without memory: their true shapes, on torch's meta device.

What is there already, a DiT that was imported or weights that another stage left, gives its shape
by its config.json and says by its card what it can do; nothing else of it is read. The encoders
that a full size takes from folders have the published shape of Wan's and wav2vec 2.0's.
"""

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import nn
from transformers import (
    BatchEncoding,
    UMT5Config,
    UMT5EncoderModel,
    Wav2Vec2Config,
    Wav2Vec2FeatureExtractor,
    Wav2Vec2Model,
)

from avatar_v.base.outside import read_json
from avatar_v.models.audio import WINDOW_LATENTS, HiddenStateAudioEncoder
from avatar_v.models.base import CARD, part_folder
from avatar_v.models.causal import as_causal
from avatar_v.models.conditioner import Conditioner
from avatar_v.models.config import DiTConfig
from avatar_v.models.dit import AvatarDiT
from avatar_v.models.guided import with_guidance_inside
from avatar_v.models.motion_net import MotionNet
from avatar_v.models.text import StoredText, UMT5TextEncoder
from avatar_v.models.vae import VideoVAE
from avatar_v.objectives.align_dpo import AlignDPO
from avatar_v.objectives.align_grpo import AlignGRPO
from avatar_v.objectives.align_video_dpo import AlignVideoDPO
from avatar_v.objectives.causal_forcing import Blocks
from avatar_v.objectives.distill_dmd import DistillDMD
from avatar_v.objectives.distill_motion import DistillMotion
from avatar_v.objectives.self_forcing import SelfForcing
from avatar_v.training.engine import Engine, subject_of
from avatar_v.training.motion import MotionSubject
from avatar_v.training.settings import Models
from avatar_v.weights.card import read_card
from avatar_v.weights.presets import preset

AFTER_MOTION = (AlignDPO, AlignGRPO, AlignVideoDPO, DistillMotion)
"""Stages whose weights of the start have a motion network."""


class UMT5OfWan(UMT5TextEncoder):
    """UMT5-XXL's encoder, as in Wan's text_encoder/config.json, without weights and tokenizer."""

    def __init__(self) -> None:
        nn.Module.__init__(self)
        config = UMT5Config(
            vocab_size=256_384, d_model=4096, d_kv=64, d_ff=10_240, num_layers=24, num_heads=64,
            feed_forward_proj="gated-gelu",
        )  # fmt: skip
        self.model = UMT5EncoderModel(config).requires_grad_(False).eval()
        self.num_tokens, self.dim = 512, config.d_model

    def tokenizer(self, texts: Sequence[str], **_: object) -> BatchEncoding:
        """Prompts of the greatest length."""
        tokens = torch.ones(len(texts), self.num_tokens, dtype=torch.long)
        return BatchEncoding({"input_ids": tokens, "attention_mask": tokens})


class Wav2Vec2OfSize(HiddenStateAudioEncoder):
    """wav2vec 2.0 base (768) or large (1024) without weights."""

    def __init__(self, dim: int) -> None:
        nn.Module.__init__(self)
        config = Wav2Vec2Config()
        if dim > config.hidden_size:
            config = Wav2Vec2Config(
                hidden_size=1024, num_hidden_layers=24, num_attention_heads=16,
                intermediate_size=4096,
            )  # fmt: skip
        self.kind, self.dim, self.look_ahead, self.window = "wav2vec2", dim, None, WINDOW_LATENTS
        self.model = Wav2Vec2Model(config).requires_grad_(False).eval()
        self.extractor = Wav2Vec2FeatureExtractor(do_normalize=True)
        self.layer_logits = nn.Parameter(torch.zeros(config.num_hidden_layers + 1))


def build_networks(stage: Engine) -> None:
    """Give ``stage`` its networks, and each weight its role, as `Engine.configure_model` does."""
    subject = subject_of(stage)
    models = subject.models
    with torch.device("meta"):
        stage.dit = dit = _start_of(stage)
        if isinstance(stage, SelfForcing):
            student = _causal_of(stage, dit)
            stage.causal_start = lambda: student
            stage.causal_factors = lambda: (student.config, None)
            if not Path(stage.student.causal_weights).exists():
                stage.trained_streaming = lambda: stage.streaming
        stage.conditioner = conditioner_of(models.preset, dit.config)
        text = stage.conditioner.text_encoder
        if models.stored_text and not isinstance(text, StoredText):
            trained = any(p.requires_grad for p in text.parameters())
            empty = torch.empty(text.num_tokens, text.dim)
            stage.conditioner.text_encoder = StoredText(empty, "", lambda: text, trained=trained)
        _hear(stage.conditioner, models)
        is_lora = isinstance(stage.subject, MotionSubject) and stage.trainable.parts == "lora"
        if isinstance(stage, AFTER_MOTION) or is_lora:
            dim = stage.conditioner.audio_encoder.dim
            config = preset(models.preset).motion(dim)
            stage.conditioner.motion_net = MotionNet(config)
        if models.init_from and not _has_card(models):
            none = {"init_from": None, "stored_text": False}  # there is no card to read
            subject.models = dataclasses.replace(models, **none)
        stage.settle()
        subject.models = models


def _has_card(models: Models) -> bool:
    return models.init_from is not None and (Path(models.init_from) / CARD).is_file()


def _hear(conditioner: Conditioner, models: Models) -> None:
    """Sound in the windows of the recipe, else in those of the weights it begins with."""
    look_ahead, window = models.audio_look_ahead, models.audio_window
    if look_ahead is None and _has_card(models):
        assert models.init_from is not None
        can = read_card(models.init_from).can
        look_ahead, window = can.audio_look_ahead, can.audio_window
    conditioner.hear(look_ahead, window)


def config_of(models: Models) -> DiTConfig:
    """The shape of the DiT: of its folder where there is one, else the preset's."""
    return _stored(models.dit or f"{models.init_from}/dit") or preset(models.preset).dit


def _stored(folder: str) -> DiTConfig | None:
    """The shape of the DiT in ``folder``; None where there is none yet."""
    path = part_folder(folder) / "config.json"
    return DiTConfig.from_dict(read_json(path), where=str(path)) if path.is_file() else None


def _start_of(stage: Engine) -> AvatarDiT:
    """The DiT that the stage starts from. Where it is not there yet, stage 4a makes that of
    distribution matching, unless the recipe guides by several passes."""
    models = subject_of(stage).models
    dit = AvatarDiT(config_of(models))
    is_there = _stored(models.dit or f"{models.init_from}/dit") is not None
    if not isinstance(stage, DistillDMD) or is_there:
        return dit
    if stage.matching.numbers.real_guidance:
        return dit
    return with_guidance_inside(dit, stage.guidance.ordered)


def _causal_of(stage: SelfForcing, dit: AvatarDiT) -> AvatarDiT:
    """What the student begins as: that of its folder, else what stage 4d makes of ``dit``."""
    folder = stage.student.causal_weights
    stored = _stored(folder if stage.has_adapters else f"{folder}/dit")
    if stored is not None:
        return AvatarDiT(stored)
    return as_causal(dit, block=Blocks.length, window=Blocks.window)


def conditioner_of(name: str, config: DiTConfig) -> Conditioner:
    """VAE and encoders of a preset, of the shapes that a DiT of ``config`` reads. Call it with
    torch.device("meta")."""
    embedded = preset(name).embedded
    if embedded is not None:
        return Conditioner(embedded.vae(), embedded.text(), embedded.audio())
    vae = VideoVAE.wan22() if config.latent_channels == 48 else VideoVAE.wan21()
    return Conditioner(vae, UMT5OfWan(), Wav2Vec2OfSize(config.audio_dim))
