"""`--shard`: processes with a part of the weights each make the frames of those with whole ones."""

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import shard_frames
from avatar_v import cli
from avatar_v.generate import stored_pipeline
from avatar_v.generate.pipeline import AvatarPipeline
from avatar_v.generate.run import run
from avatar_v.models.refiner import as_refiner
from avatar_v.request.request import Request
from avatar_v.weights.card import Capabilities, Card, read_card
from avatar_v.weights.weights import load_pipeline, save_pipeline
from generating import check_death, two_devices
from random_models import randomise
from shard_frames import OPTIONS


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


@pytest.fixture(scope="module")
def found(
    folders: tuple[Path, Path], spoken, tmp_path_factory: pytest.TempPathFactory
) -> list[dict[str, Any]]:
    return shard_frames.main(*folders, spoken[0], tmp_path_factory.mktemp("ranks"))


@pytest.fixture(scope="module")
def two(folders: tuple[Path, Path]) -> Iterator[AvatarPipeline]:
    with two_devices(folders[0], refiner=folders[1], shard=True) as pipe:
        yield pipe


@pytest.mark.multi
def test_frames_are_those_of_whole_weights(found: list[dict[str, Any]]) -> None:
    whole = found[0]["frames False"]
    assert len(whole) == 43  # of several chunks: the anchor joins the reference
    assert torch.equal(found[0]["frames True"], whole)


@pytest.mark.multi
def test_a_rank_has_half_of_the_weights(found: list[dict[str, Any]]) -> None:
    whole, parts = found[0]["sizes False"], [of["sizes True"] for of in found]
    for name, num in whole.items():
        assert sum(of[name] for of in parts) == num
        # a matrix of an odd number of rows is not halved
        assert parts[0][name] == pytest.approx(num / 2, rel=0.02)
    assert found[0]["behind True"] == parts[0], "nothing stays gathered behind a video"


@pytest.mark.multi
def test_processes_that_the_command_starts(
    two: AvatarPipeline, found: list[dict[str, Any]], spoken, request_: Request
) -> None:
    """A dropped video, a whole one, a live one, and the death of the other process."""
    request = request_.changed(reference=spoken[0], audio=spoken[0], **OPTIONS)
    clips = iter(run(request, two))
    next(clips)
    clips.close()
    for audio in (spoken[0], iter(spoken[2].split(640))):
        made = torch.stack(list(two(reference=spoken[0], audio=audio, **OPTIONS)))
        assert made.shape == found[0]["frames True"].shape
        if isinstance(audio, str):
            assert torch.equal(made, found[0]["frames True"])
    check_death(two, iter(run(request.changed(overwrite=True), two)))


def test_one_device_has_nobody_to_share_with(
    request_: Request, weights: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    def fail(*args: object) -> None:
        raise AssertionError("a model was loaded")

    monkeypatch.setattr(stored_pipeline, "load_pipeline", fail)
    words = ["generate", "--reference", request_.person.reference, "--audio", request_.person.audio]
    words += ["--out", str(request_.output.out), "--weights", str(weights), "--device", "cpu"]
    assert cli.main([*words, "--shard"]) == 2
    assert "it needs --devices of 2 or more" in capsys.readouterr().err
    assert cli.main([*words, "--shard", "--devices", "2", "--offload"]) == 2
    assert "the device is cpu: leave it out" in capsys.readouterr().err
    assert list(Path(str(request_.output.out)).parent.iterdir()) == []
    dit, conditioner = load_pipeline(weights)
    with pytest.raises(ValueError, match="sharded over ranks, and this pipeline has none"):
        AvatarPipeline(dit, conditioner, read_card(weights), device="cpu", shard=True)
