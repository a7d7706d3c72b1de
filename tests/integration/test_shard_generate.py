"""`--shard`: two processes with a part of the weights each make the frames of two with whole ones."""

import dataclasses
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from avatar_v import cli
from avatar_v.generate import stored_pipeline
from avatar_v.generate.pipeline import AvatarPipeline
from avatar_v.generate.request import Request
from avatar_v.generate.run import run
from avatar_v.models.card import Capabilities, Card, read_card
from avatar_v.models.refiner import as_refiner
from avatar_v.models.weights import load_pipeline, save_pipeline
from avatar_v.testing import randomise

pytestmark = pytest.mark.multi


@pytest.fixture(scope="module")
def folders(weights: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The tiny weights, as if they had been trained to read a reference and its motion, and a
    refiner of theirs."""
    root, card = tmp_path_factory.mktemp("sharded"), read_card(weights)
    card = dataclasses.replace(card, can=dataclasses.replace(card.can, reference=True, motion=True))
    dit, conditioner = load_pipeline(weights)
    save_pipeline(root / "reads", dit, conditioner, card)
    refiner = as_refiner(dit, sigma=0.6, temporal_window=1)
    with torch.no_grad():
        randomise(refiner)
    can = Capabilities(reference=True, motion=True)
    save_pipeline(root / "refiner", refiner, conditioner, Card("tiny", can=can))
    return root / "reads", root / "refiner"


def loaded(folders: tuple[Path, Path], *, shard: bool) -> AvatarPipeline:
    weights, refiner = folders
    return AvatarPipeline.from_pretrained(
        weights, refiner=refiner, device="cpu", precision="fp32", devices=2, shard=shard
    )


def frames(pipe: AvatarPipeline, reference: str, audio: str | Iterator[Tensor]) -> Tensor:
    found = pipe(
        reference=reference, audio=audio, num_steps=2, guidance_reference=2.0, face_crop=False,
        anchor=True, gain_db=0.0,
    )  # fmt: skip
    return torch.stack(list(found))


@pytest.fixture(scope="module")
def whole(folders: tuple[Path, Path], spoken) -> Tensor:
    """Frames by two processes with whole weights."""
    threads = torch.get_num_threads()
    pipe = loaded(folders, shard=False)
    made = frames(pipe, spoken[0], spoken[0])
    pipe.close()
    torch.set_num_threads(threads)
    return made


@pytest.fixture(scope="module")
def two(folders: tuple[Path, Path], whole: Tensor) -> Iterator[AvatarPipeline]:
    """Begun behind ``whole``: a process has one group at a time."""
    threads = torch.get_num_threads()
    pipe = loaded(folders, shard=True)
    yield pipe
    pipe.close()
    torch.set_num_threads(threads)


def share(network: nn.Module, num: int) -> float:
    """Of ``num`` weights this rank's part; all of them are in shards."""
    parts = list(network.parameters())
    assert all(isinstance(p, DTensor) for p in parts)
    return sum(p.to_local().numel() for p in parts if isinstance(p, DTensor)) / num


def test_frames_are_those_of_whole_weights(two: AvatarPipeline, whole: Tensor, spoken) -> None:
    assert len(whole) == 43  # of several chunks: the anchor joins the reference
    assert torch.equal(frames(two, spoken[0], spoken[0]), whole)
    live = iter(spoken[2].split(640))
    assert len(frames(two, spoken[0], live)) == 43


def test_a_rank_has_half_of_the_weights(two: AvatarPipeline, folders: tuple[Path, Path]) -> None:
    assert two.refiner is not None
    pairs = ((two.dit, two.conditioner), (two.refiner.dit, two.refiner.conditioner))
    for (dit, conditioner), folder in zip(pairs, folders, strict=True):
        full_dit, full = load_pipeline(folder)
        nets = ((dit, full_dit), (conditioner.text_encoder, full.text_encoder))
        for net, of in nets:
            assert share(net, sum(p.numel() for p in of.parameters())) == pytest.approx(0.5, 0.05)
        for part in (conditioner.vae, conditioner.audio_encoder):
            assert not any(isinstance(p, DTensor) for p in part.parameters())


def test_a_dropped_video_and_the_death_of_a_process(
    two: AvatarPipeline, whole: Tensor, spoken, request_: Request
) -> None:
    request = request_.changed(reference=spoken[0], audio=spoken[0])
    clips = iter(run(request, two))
    next(clips)
    clips.close()
    assert torch.equal(frames(two, spoken[0], spoken[0]), whole)
    assert two.ranks is not None
    (process,) = two.ranks._processes.values()
    clips = iter(run(request.changed(overwrite=True), two))
    next(clips)
    os.kill(process.pid or 0, signal.SIGKILL)
    with pytest.raises(ChildProcessError, match="rank 1 of 2 was killed by signal 9"):
        list(clips)


def test_one_device_has_nobody_to_share_with(
    request_: Request, weights: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    def fail(*args: object) -> None:
        raise AssertionError("a model was loaded")

    monkeypatch.setattr(stored_pipeline, "load_pipeline", fail)
    words = ["generate", "--reference", request_.person.reference, "--audio", request_.person.audio]
    words += ["--out", str(request_.output.out), "--weights", str(weights), "--device", "cpu"]
    assert cli.main([*words, "--shard"]) == 2
    assert "--shard" in (said := capsys.readouterr().err)
    assert "it needs --devices of 2 or more" in said
    assert cli.main([*words, "--shard", "--devices", "2", "--offload"]) == 2
    assert "the device is cpu: leave it out" in capsys.readouterr().err
    assert list(Path(str(request_.output.out)).parent.iterdir()) == []
    dit, conditioner = load_pipeline(weights)
    with pytest.raises(ValueError, match="sharded over ranks, and this pipeline has none"):
        AvatarPipeline(dit, conditioner, read_card(weights), device="cpu", shard=True)
