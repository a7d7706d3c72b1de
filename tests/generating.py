"""Small videos made in one call, for the tests of generation."""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from avatar_v.generate.generator import Person, Settings, generate
from avatar_v.generate.pipeline import AvatarPipeline
from avatar_v.generate.pixels import Frames
from avatar_v.generate.record import Record
from avatar_v.generate.request import Request, Weights
from avatar_v.generate.resume import OnKept
from avatar_v.generate.run import run
from avatar_v.testing import make_batch

SETTINGS = Settings(chunk_latents=5, num_steps=2, seed=3)


def sound(num_video_frames: int, seed: int = 0) -> Tensor:
    draw = torch.Generator().manual_seed(seed)
    return 0.2 * torch.randn(640 * num_video_frames, generator=draw)


def picture() -> Tensor:
    return torch.rand(3, 32, 32, generator=torch.Generator().manual_seed(5)) * 2 - 1


def made(
    pipe: AvatarPipeline,
    waveform: Tensor,
    settings: Settings = SETTINGS,
    prompt: str = "a room",
    person: Person | None = None,
) -> Tensor:
    person = person or Person(picture())
    blocks = generate(pipe.dit, pipe.conditioner, person, waveform, prompt, settings)
    return torch.cat(list(blocks))


def left_behind(request: Request) -> list[str]:
    threads = [thread.name for thread in threading.enumerate() if thread.name == "writer"]
    return threads + [path.name for path in Path(str(request.output.out)).parent.iterdir()]


def speaker(pipe: AvatarPipeline) -> Person:
    """A person with 13 frames of reference and the motion stream."""
    with torch.no_grad():
        reference = pipe.conditioner.encode_reference(make_batch(1, 13, 32))
    assert reference.motion is not None
    return Person(picture(), reference, reference.motion[:, :1])


def carry_out(
    request: Request,
    *,
    weights: str | Path = "small",
    on_frames: Callable[[Frames], None] = lambda frames: None,
    on_kept: OnKept = lambda folder, num: None,
    **how: Any,
) -> Record:
    """The request made whole, as the command line does; ``how`` are further fields of Weights."""
    return run(request, Weights(weights, **how), on_kept=on_kept).finish(on_frames)
