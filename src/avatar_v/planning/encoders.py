"""What the VAE and the encoders of text and sound cost in a batch."""

import copy

import torch
from torch import Tensor

from avatar_v.models.text import UMT5TextEncoder
from avatar_v.models.vae import VideoVAE
from avatar_v.planning.measure import Cost, cost_of, pretending, without_values
from avatar_v.planning.steps import Clips
from avatar_v.training.engine import Engine
from avatar_v.training.motion import MotionSubject
from avatar_v.types import FRAME_RATE_HZ, SAMPLES_PER_FRAME

FEW_FRAMES = 17
"""Of a large video the VAE is run on so many; the others cost the same each."""
LARGE = 128  # pixels
STATES_PER_S = 50  # of wav2vec 2.0
TOKENS = 512  # of UMT5, at most


def video_cost(vae: VideoVAE, clips: Clips, *, bf16: bool) -> Cost:
    """Of encoding a batch of whole clips, without gradient."""
    frames = clips.num_frames if clips.size <= LARGE else min(clips.num_frames, FEW_FRAMES)
    vae = copy.deepcopy(vae)
    with pretending():
        without_values(vae, torch.float32)
        video = torch.empty(clips.batch_size, frames, 3, clips.size, clips.size)

        def run() -> None:
            vae.encode(video)

        cost = cost_of(run, bf16=bf16, trains=False)
    return Cost(cost.flops * clips.num_frames / frames, 0, cost.peak)


def encoders_cost(stage: Engine, clips: Clips, window: int, *, bf16: bool) -> Cost:
    """Of encoders that are part of the weights and may be trained. Frozen encoders of full size are
    not run here; `text_flops` and `audio_flops` estimate them."""
    text, audio = stage.conditioner.text_encoder, stage.conditioner.audio_encoder
    if isinstance(text, UMT5TextEncoder) or isinstance(stage.subject, MotionSubject):
        return Cost(0, 0, 0)
    trains = any(p.requires_grad for p in text.parameters())
    text, audio = copy.deepcopy(text), copy.deepcopy(audio)
    with pretending():
        without_values(text, torch.float32)
        without_values(audio, torch.float32)
        sound = torch.empty(clips.batch_size, SAMPLES_PER_FRAME * 4 * (window + 1))

        def run() -> Tensor:
            said = text(["a person speaks"] * clips.batch_size)
            return said.sum() + audio(sound).sum()

        return cost_of(run, bf16=bf16, trains=trains)


def text_flops(stage: Engine) -> float:
    """Of one prompt in a frozen UMT5: two operations for each weight and token. The motion network
    reads no text."""
    encoder = stage.conditioner.text_encoder
    if isinstance(stage.subject, MotionSubject) or not isinstance(encoder, UMT5TextEncoder):
        return 0.0
    matrices = sum(p.numel() for n, p in encoder.named_parameters() if "shared" not in n)
    return 2.0 * matrices * TOKENS


def audio_flops(stage: Engine, clips: Clips) -> float:
    """Of the sound of one clip in a frozen wav2vec 2.0, its transformer."""
    if not isinstance(stage.conditioner.text_encoder, UMT5TextEncoder):
        return 0.0
    weights = sum(p.numel() for p in stage.conditioner.audio_encoder.parameters())
    return 2.0 * weights * STATES_PER_S * clips.num_frames / FRAME_RATE_HZ
