"""Generation with causal weights: chunks of any whole blocks, live and from a file."""

import dataclasses
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from avatar_v import cli
from avatar_v.base.video_format import VideoFormat
from avatar_v.generate.pipeline import AvatarPipeline
from avatar_v.generate.run import run
from avatar_v.inputs.inputs import Inputs, read_inputs
from avatar_v.inputs.live import LiveSound
from avatar_v.media.reading import read_video
from avatar_v.media.sound import TemporarySound
from avatar_v.models.base import hash_folder
from avatar_v.models.causal import as_causal
from avatar_v.models.dit import AvatarDiT
from avatar_v.models.lora import add_factors
from avatar_v.models.refiner import as_refiner
from avatar_v.request.output_files import GROWING, kept_folder
from avatar_v.request.request import LIVE, Request
from avatar_v.types import MOTION_NAMES
from avatar_v.weights.adapter_files import save_adapter
from avatar_v.weights.card import AdapterCard, Capabilities, Card, read_card
from avatar_v.weights.random import motion_stats
from avatar_v.weights.weights import load_pipeline, save_pipeline
from generating import carry_out, check_death, sound, two_devices
from hostile_media import write_wav
from random_models import randomise


@pytest.fixture(scope="module")
def causal(weights: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    dit, conditioner = load_pipeline(weights)
    can = Capabilities(
        video=VideoFormat(32, 32), window_latents=8, shift=1.0, motion=True, causal_block=3
    )
    folder = tmp_path_factory.mktemp("causal") / "tiny"
    card = Card(preset="tiny", recipe="none", can=can)
    save_pipeline(folder, as_causal(dit, block=3, window=2), conditioner, card)
    return folder


@pytest.fixture(scope="module")
def more(causal: Path) -> dict[str, Any]:
    """A refiner, and an adapter of the causal weights."""
    dit, conditioner = load_pipeline(causal)
    plain = AvatarDiT(dataclasses.replace(dit.config, causal_block=None, causal_window=None))
    refiner = as_refiner(plain, sigma=0.6, temporal_window=1)
    randomise(refiner)
    card = Card("tiny", can=Capabilities(reference=True, motion=True))
    save_pipeline(causal.parent / "refiner", refiner, conditioner, card)
    add_factors(dit, rank=2, alpha=4.0)
    with torch.no_grad():
        for name, parameter in dit.named_parameters():
            if "lora_B" in name:
                parameter += 0.05
    about = AdapterCard("dit", read_card(causal), str(causal), hash_folder(causal / "dit"))
    save_adapter(causal.parent / "adapter", dit, about, motion_stats())
    return {"refiner": causal.parent / "refiner", "lora": [str(causal.parent / "adapter")]}


@pytest.fixture(scope="module")
def two(causal: Path, more: dict[str, Any]) -> Iterator[AvatarPipeline]:
    with two_devices(causal, **more) as pipe:
        yield pipe


def read(pipe: AvatarPipeline, request: Request, spoken: Tensor, *, live: bool = False) -> Inputs:
    if live:
        blocks = LiveSound(iter(spoken.split(999)))
        return read_inputs(request.changed(audio=LIVE), pipe.input_spec(request), blocks)
    inputs = read_inputs(request, pipe.input_spec(request))
    return dataclasses.replace(inputs, audio=spoken, num_frames=len(spoken) // 640)


def frames_of(pipe: AvatarPipeline, request: Request, spoken: Tensor, **how: bool) -> Tensor:
    clips = pipe.clips(read(pipe, request, spoken, **how), request)
    return torch.cat([clip.frames for clip in clips])


def test_a_live_voice_gives_the_frames_of_the_file(causal: Path, request_: Request) -> None:
    """11 latents: a first chunk of 5, which is two blocks, and two of a block each."""
    request, spoken = request_.changed(gain_db=0.0, chunk_latents=5), sound(41)
    pipe = AvatarPipeline.from_pretrained(causal, device="cpu", precision="fp32")
    file = frames_of(pipe, request, spoken)
    assert file.shape == (41, 3, 32, 32)
    assert torch.equal(frames_of(pipe, request, spoken, live=True), file)
    assert not torch.equal(frames_of(pipe, request.changed(chunk_latents=8), spoken), file)

    def motion_of(request: Request, spoken: Tensor, **how: bool) -> Tensor:
        inputs = read(pipe, request, spoken, **how)
        inputs = dataclasses.replace(inputs, motion=torch.zeros(len(MOTION_NAMES)))
        made = [clip.motion for clip in pipe.clips(inputs, request)]
        return torch.cat([motion for motion in made if motion is not None])

    ahead = request.changed(look_ahead=1)
    found, plain = motion_of(ahead, spoken), motion_of(request, spoken)
    assert torch.equal(motion_of(ahead, spoken, live=True), found)
    # the first chunk has 17 frames; two are heard behind what is encoded, in any case
    for changed, is_heard in ((17 + 2, True), (17 + 2 + 4, False)):
        other = torch.cat([spoken[: 640 * changed], 0.5 - spoken[640 * changed :]])
        assert torch.equal(motion_of(request, other)[:17], plain[:17])
        assert torch.equal(motion_of(ahead, other)[:17], found[:17]) != is_heard


@pytest.mark.gpu
def test_a_gpu_makes_the_video_of_a_cpu(
    causal: Path, more: dict[str, Any], request_: Request
) -> None:
    """Up to a level, since its convolutions round to TF32; with an adapter and a refiner, from a
    file and live."""
    request, spoken = request_.changed(gain_db=0.0, chunk_latents=5), sound(41)
    cpu, cuda = (
        AvatarPipeline.from_pretrained(causal, device=name, precision="fp32", **more)
        for name in ("cpu", "cuda")
    )
    wanted = frames_of(cpu, request, spoken)
    for live in (False, True):
        apart = (frames_of(cuda, request, spoken, live=live).int() - wanted.int()).abs()
        assert apart.float().mean() < 0.1
        assert apart.max() <= 2


@pytest.mark.multi
def test_two_devices_make_the_video_of_one(
    two: AvatarPipeline, causal: Path, more: dict[str, Any], request_: Request
) -> None:
    """Bit for bit, with an adapter and a refiner, from a file and live; also behind a video that
    was dropped half-way."""
    request = request_.changed(gain_db=0.0, chunk_latents=5, overwrite=True)
    alone = AvatarPipeline.from_pretrained(causal, device="cpu", precision="fp32", **more)
    with closing(iter(run(request, two))) as clips:
        next(clips)
    frames: dict[AvatarPipeline, Tensor] = {}
    files = []
    for pipe in (alone, two):
        parts: list[Tensor] = []
        run(request, pipe).finish(parts.append)
        frames[pipe] = torch.cat(parts)
        files.append(Path(str(request.output.out)).read_bytes())
    assert frames[alone].shape == (32, 3, 64, 64)
    assert torch.equal(frames[two], frames[alone])
    assert files[0] == files[1]
    inputs = read_inputs(request, two.input_spec(request))
    assert isinstance(inputs.audio, TemporarySound)
    spoken = inputs.audio[: len(inputs.audio)]
    assert torch.equal(frames_of(two, request, spoken, live=True), frames[alone])
    made = [torch.cat([x.latents for x in pipe.latents(inputs, request)], 1) for pipe in frames]
    assert torch.equal(*made)


@pytest.mark.multi
def test_a_device_that_stops_is_one_error(two: AvatarPipeline, request_: Request) -> None:
    """What was made of the file plays."""
    assert request_.person.audio is not None
    write_wav(Path(request_.person.audio), samples=sound(1000).numpy())
    request = request_.changed(gain_db=0.0, chunk_latents=5)
    check_death(two, iter(run(request, two)), stops=True)
    assert len(read_video(kept_folder(Path(str(request.output.out))) / GROWING)) >= 17


def test_a_record_has_the_chunks_and_a_broken_run_leaves_what_plays(
    causal: Path, request_: Request
) -> None:
    record = carry_out(request_, weights=causal, device="cpu")
    assert record.request.sampling.chunk_latents == 5
    out = Path(str(request_.output.out)).with_name("other.mp4")
    broken, told = request_.changed(out=str(out)), list[Any]()

    def stop(frames: Tensor) -> None:
        raise KeyboardInterrupt

    how = {"on_frames": stop, "on_kept": lambda *kept: told.append(kept)}
    with pytest.raises(KeyboardInterrupt):
        carry_out(broken, weights=causal, device="cpu", **how)
    assert told == [(kept_folder(out), 0)]
    assert len(read_video(kept_folder(out) / GROWING)) > 0
    carry_out(broken.changed(overwrite=True), weights=causal, device="cpu")
    assert not kept_folder(out).exists()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--chunk-latents", "6"], "chunks of these causal weights have 2 + 3 k latents"),
        (["--resume"], "a video of causal weights is made in one run"),
        (["--devices", "4", "--steps", "2"], "4 devices for 2 steps"),
        (["--devices", "2", "--shard"], "each needs whole weights"),
    ],
)
def test_what_causal_weights_cannot_do_is_one_error(
    causal: Path, request_: Request, options: list[str], words: str,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    person = request_.person
    command = ["generate", "--reference", person.reference, "--audio", person.audio]
    command += ["--out", str(request_.output.out), "--weights", str(causal), "--device", "cpu"]
    assert cli.main([*command, *options]) == 2
    assert words in capsys.readouterr().err
    assert read_card(causal).can.causal_block == 3


def test_chunks_of_another_length_than_training_are_a_warning(
    weights: Path, request_: Request
) -> None:
    record = carry_out(request_.changed(chunk_latents=4), weights=weights, device="cpu")
    assert any("know windows of 5 latents" in warning for warning in record.warnings)
