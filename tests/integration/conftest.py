"""A tiny pipeline with random weights, and a request for it."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from avatar_v.base.video_format import VideoFormat
from avatar_v.generate.pipeline import AvatarPipeline
from avatar_v.request.request import Request
from avatar_v.weights.card import DRAWN_PEOPLE, Capabilities, Card
from avatar_v.weights.presets import build
from avatar_v.weights.random import motion_stats
from avatar_v.weights.weights import save_pipeline
from avatar_v.world.clip import make_clip
from avatar_v.world.splits import RANGES
from clip_files import clip_file
from hostile_media import write_wav
from random_models import make_motion_net


@pytest.fixture(scope="session")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny pipeline whose velocity is not zero, so that conditions matter."""
    dit, conditioner = build("tiny", seed=1, motion_stats=motion_stats())
    conditioner.motion_net = make_motion_net(conditioner.audio_encoder.dim)
    draw = torch.Generator().manual_seed(2)
    with torch.no_grad():
        dit.head.out.weight.normal_(std=0.2, generator=draw)
        for block in dit.blocks:
            block.audio_attention.out.weight.normal_(std=0.2, generator=draw)
    folder = tmp_path_factory.mktemp("weights") / "tiny"
    can = Capabilities(people=DRAWN_PEOPLE, video=VideoFormat(32, 32), window_latents=5, shift=1.0)
    save_pipeline(folder, dit, conditioner, Card(preset="tiny", recipe="none", can=can))
    return folder


@pytest.fixture(scope="session")
def pipe(weights: Path) -> AvatarPipeline:
    return AvatarPipeline.from_pretrained(weights, device="cpu", precision="fp32")


@pytest.fixture
def request_(tmp_path: Path) -> Request:
    picture = np.linspace(0, 255, 40 * 40 * 3).reshape(40, 40, 3).astype(np.uint8)
    Image.fromarray(picture).save(tmp_path / "me.png")
    wave = 0.3 * np.sin(np.arange(20_000) * 0.2, dtype=np.float32)
    write_wav(tmp_path / "talk.wav", samples=wave)
    (tmp_path / "out").mkdir()
    return Request.of(
        reference=str(tmp_path / "me.png"),
        audio=str(tmp_path / "talk.wav"),
        out=str(tmp_path / "out" / "out.mp4"),
        num_steps=2,
        face_crop=False,
    )


@pytest.fixture(scope="session")
def spoken(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Tensor, Tensor]:
    """A drawn person's clip of 43 frames as a file (.mkv), with its frames and sound."""
    person = RANGES["validation"][0]
    clip = make_clip(person, person + 1, person + 2, num_frames=45, size=64)
    assert clip.video is not None
    video, audio = clip.video[:43], clip.audio[: 43 * 640]
    path = clip_file(tmp_path_factory.mktemp("reference") / "me.mkv", video, audio)
    return path, video, audio
