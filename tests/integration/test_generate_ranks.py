"""One video by two processes: the frames of one, a stopped video, and the death of a process."""

import dataclasses
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
import torch

from avatar_v.generate.launching import check_devices
from avatar_v.generate.pipeline import AvatarPipeline
from avatar_v.generate.ranks import describe_death
from avatar_v.generate.run import run
from avatar_v.generate.stored_pipeline import StoredPipeline
from avatar_v.inputs.inputs import read_inputs
from avatar_v.inputs.live import LiveSound
from avatar_v.request.request import LIVE, Request, Weights
from generating import carry_out, check_death, sound, two_devices

pytestmark = pytest.mark.multi


@pytest.fixture(scope="module")
def two(weights: Path) -> Iterator[AvatarPipeline]:
    with two_devices(weights) as pipe:
        yield pipe


def test_frames_are_those_of_one_process(
    two: AvatarPipeline, request_: Request, weights: Path
) -> None:
    frames: dict[str, list[torch.Tensor]] = {"one": [], "two": []}
    carry_out(
        request_, weights=weights, on_frames=frames["one"].append, device="cpu", precision="fp32"
    )
    again = request_.changed(overwrite=True)
    # whoever drops a video half-way leaves the other process ready for the next one
    with closing(iter(run(again, two))) as clips:
        next(clips)
    record = run(again, two).finish(frames["two"].append)
    one, both = (torch.cat(parts).int() for parts in frames.values())
    assert one.shape == both.shape
    # fp32 in another order: a value in a thousand falls on the other side of a rounding
    assert int((one - both).abs().max()) <= 1
    assert float((one != both).float().mean()) < 1e-2
    assert record.num_frames == len(one)


def test_a_live_sound_is_followed_by_both(two: AvatarPipeline, request_: Request) -> None:
    request = request_.changed(gain_db=0.0)
    speech = sound(20)
    file = read_inputs(request, two.input_spec(request))
    file = dataclasses.replace(file, audio=speech, num_frames=20)
    live = LiveSound(iter(speech.split(640)))
    heard = read_inputs(request.changed(audio=LIVE), two.input_spec(request), live)
    made = [torch.cat(list(two.stream(inputs, request))) for inputs in (file, heard)]
    assert torch.equal(*made)


def test_the_death_of_a_process_is_one_error(two: AvatarPipeline, request_: Request) -> None:
    check_death(two, iter(run(request_.changed(overwrite=True), two)))
    assert not Path(str(request_.output.out)).exists()


def test_a_launcher_starts_the_processes(request_: Request, weights: Path) -> None:
    """The command under torchrun: one of its processes writes, and both end well."""
    person, out = request_.person, Path(str(request_.output.out))
    words = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
    words += ["-m", "avatar_v.cli", "generate", "--reference", person.reference]
    words += ["--audio", person.audio, "--out", str(out), "--weights", str(weights)]
    words += ["--steps", "1", "--no-face-crop", "--device", "cpu", "--precision", "fp32"]
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(words, env=env, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.count("32 frames") == 1
    assert out.exists()


def test_devices_that_are_not_there(weights: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="--devices counts from 1, got 0"):
        StoredPipeline(Weights(weights, device="cpu", devices=0))
    with pytest.raises(ValueError, match=r"--devices 5000: processes on a CPU .* at most \d+$"):
        check_devices(5000, torch.device("cpu"))
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "4")
    check_devices(1, torch.device("cpu"))
    with pytest.raises(ValueError, match="--devices 2: a launcher has started 4 ranks"):
        check_devices(2, torch.device("cpu"))
    assert describe_death({}) == ""
