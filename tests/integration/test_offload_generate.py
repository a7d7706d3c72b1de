"""`--offload`: the same frames with two blocks on a (simulated) device; a clear error on a CPU."""

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor

from avatar_v import cli
from avatar_v.generate import loaded, stored_pipeline
from avatar_v.generate.pipeline import AvatarPipeline
from avatar_v.media.writer import Mp4Writer
from avatar_v.request.request import Request
from avatar_v.weights.card import read_card
from avatar_v.weights.weights import load_pipeline
from avatar_v.world.clip import make_clip
from avatar_v.world.splits import RANGES
from fake_streams import FakeStreams
from generating import carry_out

ID = RANGES["validation"][0]


@pytest.fixture
def streams(monkeypatch: pytest.MonkeyPatch) -> FakeStreams:
    """A device that `--offload` finds in the place of a GPU."""
    streams = FakeStreams()
    monkeypatch.setattr(loaded, "open_streams", lambda device: streams)
    monkeypatch.setattr(stored_pipeline, "check_offload", lambda device: None)
    return streams


@pytest.fixture(scope="module")
def clip(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A drawn person's reference video with sound."""
    found = make_clip(ID, ID + 1, ID + 2, num_frames=25, size=64)
    path = tmp_path_factory.mktemp("clip") / "me.mp4"
    with Mp4Writer(path, found.audio) as writer:
        assert found.video is not None
        writer.write(found.video)
    return str(path)


def pipeline(
    weights: Path, *, offload: bool, overlap: bool = False, device: str = "cpu"
) -> AvatarPipeline:
    """The tiny weights, as if they had been trained to read a reference and its motion."""
    card = read_card(weights)
    card = dataclasses.replace(card, can=dataclasses.replace(card.can, reference=True, motion=True))
    return AvatarPipeline(
        *load_pipeline(weights), card,
        device=device, precision="fp32", overlap=overlap, offload=offload,
    )  # fmt: skip


def frames(pipe: AvatarPipeline, reference: str, audio: str | Iterator[Tensor]) -> Tensor:
    found = pipe(
        reference=reference, audio=audio, num_steps=2, guidance_reference=2.0, face_crop=False,
        anchor=True, gain_db=0.0,
    )  # fmt: skip
    return torch.stack(list(found))


def test_offloaded_networks_make_the_same_frames(
    weights: Path, clip: str, streams: FakeStreams
) -> None:
    def sound() -> Iterator[Tensor]:
        return iter(make_clip(ID, ID + 1, ID + 2, num_frames=25, size=64).audio.split(640))

    plain = pipeline(weights, offload=False)
    wanted, wanted_live = frames(plain, clip, clip), frames(plain, clip, sound())
    assert len(wanted_live) == 25  # two chunks
    for num, overlap in ((1, False), (2, True)):
        pipe = pipeline(weights, offload=True, overlap=overlap)
        assert torch.equal(frames(pipe, clip, clip), wanted)
        assert torch.equal(frames(pipe, clip, sound()), wanted_live)  # always in threads
        assert streams.peak == len(streams.places) == 2 * num  # two for each pipeline


@pytest.mark.gpu
def test_a_gpu_makes_the_frames_of_a_cpu_offloaded_or_not(weights: Path, clip: str) -> None:
    """Up to a level (convolutions round to TF32 there); offloaded as resident, bit for bit."""
    wanted = frames(pipeline(weights, offload=False), clip, clip)
    resident = frames(pipeline(weights, offload=False, device="cuda"), clip, clip)
    apart = (resident.float() - wanted.float()).abs()
    assert apart.mean() < 0.1
    assert apart.max() <= 2
    for overlap in (False, True):
        pipe = pipeline(weights, offload=True, overlap=overlap, device="cuda")
        assert torch.equal(frames(pipe, clip, clip), resident)


def test_a_file_is_the_same(request_: Request, weights: Path, streams: FakeStreams) -> None:
    plain, moved = [], []
    record = carry_out(request_, weights=weights, device="cpu", on_frames=plain.append)
    assert not record.offload
    again = request_.changed(overwrite=True)
    record = carry_out(again, weights=weights, device="cpu", offload=True, on_frames=moved.append)
    assert record.offload
    assert torch.equal(torch.cat(plain), torch.cat(moved))
    assert streams.copies


def test_an_error_leaves_the_device_empty(weights: Path, clip: str, streams: FakeStreams) -> None:
    pipe = pipeline(weights, offload=True, overlap=True)
    wanted = frames(pipe, clip, clip)

    def fail(*args: object) -> None:
        raise RuntimeError("broken")

    hook = pipe.dit.blocks[1].ffn.register_forward_hook(fail)
    with pytest.raises(RuntimeError, match="broken"):
        frames(pipe, clip, clip)
    assert streams.places == []
    hook.remove()
    assert torch.equal(frames(pipe, clip, clip), wanted)


def test_a_cpu_has_nothing_to_offload_to(
    request_: Request, weights: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    def fail(*args: object) -> None:
        raise AssertionError("a model was loaded")

    monkeypatch.setattr(stored_pipeline, "load_pipeline", fail)
    words = ["generate", "--reference", request_.person.reference, "--audio", request_.person.audio]
    words += ["--out", request_.output.out, "--weights", str(weights), "--device", "cpu"]
    words += ["--offload"]
    assert cli.main(words) == 2
    assert "the device is cpu: leave it out" in capsys.readouterr().err
    assert list(Path(request_.output.out).parent.iterdir()) == []
    with pytest.raises(ValueError, match="the device is cpu: leave it out"):
        AvatarPipeline.from_pretrained(weights, device="cpu", offload=True)
