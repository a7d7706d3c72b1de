"""Small videos made in one call, for the tests of generation."""

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from avatar_v.generate.generator import Clip, generate
from avatar_v.generate.pipeline import AvatarPipeline
from avatar_v.generate.resume import OnKept
from avatar_v.generate.run import run
from avatar_v.inputs.person import EncodedPerson
from avatar_v.media.pixels import Frames
from avatar_v.request.record import Record
from avatar_v.request.request import Request, Weights
from avatar_v.sampling.settings import Settings
from avatar_v.weights.random import make_batch

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
    person: EncodedPerson | None = None,
) -> Tensor:
    person = person or EncodedPerson(picture())
    blocks = generate(pipe.dit, pipe.conditioner, person, waveform, prompt, settings)
    return torch.cat(list(blocks))


def left_behind(request: Request) -> list[str]:
    threads = [thread.name for thread in threading.enumerate() if thread.name == "writer"]
    return threads + [path.name for path in Path(str(request.output.out)).parent.iterdir()]


def speaker(pipe: AvatarPipeline) -> EncodedPerson:
    """A person with 13 frames of reference and the motion stream."""
    with torch.no_grad():
        reference = pipe.conditioner.encode_reference(make_batch(1, 13, 32))
    assert reference.motion is not None
    return EncodedPerson(picture(), reference, reference.motion[:, :1])


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


@contextmanager
def two_devices(weights: Path, **how: Any) -> Iterator[AvatarPipeline]:
    """A pipeline of two processes, which share the threads of this one."""
    threads = torch.get_num_threads()
    with closing(
        AvatarPipeline.from_pretrained(weights, device="cpu", precision="fp32", devices=2, **how)
    ) as pipe:
        yield pipe
    torch.set_num_threads(threads)


def check_death(pipe: AvatarPipeline, clips: Iterator[Clip], *, stops: bool = False) -> None:
    """The second process of ``pipe`` is killed behind the first clip, or ``stops``: one error
    within 10 s."""
    assert pipe.ranks is not None
    (process,) = pipe.ranks._processes.values()
    next(clips)
    begun = time.monotonic()
    os.kill(process.pid or 0, signal.SIGSTOP if stops else signal.SIGKILL)
    how = "gave no sign of life for 6 s" if stops else "was killed by signal 9"
    with pytest.raises(ChildProcessError, match=f"rank 1 of 2 {how}"):
        list(clips)
    assert time.monotonic() - begun < 10
