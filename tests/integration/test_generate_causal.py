"""Generation with causal weights: chunks of any whole blocks, live and from a file."""

import dataclasses
from pathlib import Path

import pytest
import torch
from torch import Tensor

from avatar_v import cli
from avatar_v.generate.inputs import read_inputs
from avatar_v.generate.live import LiveSound
from avatar_v.generate.output_files import kept_folder
from avatar_v.generate.pipeline import AvatarPipeline
from avatar_v.generate.request import LIVE, Request
from avatar_v.models.card import Capabilities, Card, read_card
from avatar_v.models.causal import as_causal
from avatar_v.models.weights import load_pipeline, save_pipeline
from generating import carry_out, sound


@pytest.fixture(scope="module")
def causal(weights: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    dit, conditioner = load_pipeline(weights)
    can = Capabilities(side=32, window_latents=8, shift=1.0, motion=True, causal_block=3)
    folder = tmp_path_factory.mktemp("causal") / "tiny"
    card = Card(preset="tiny", recipe="none", can=can)
    save_pipeline(folder, as_causal(dit, block=3, window=2), conditioner, card)
    return folder


def frames_of(folder: Path, request: Request, spoken: Tensor, *, live: bool = False) -> Tensor:
    pipe = AvatarPipeline.from_pretrained(folder, device="cpu", precision="fp32")
    if live:
        request = request.changed(audio=LIVE)
        blocks = LiveSound(iter(spoken.split(999)))
        inputs = read_inputs(request, pipe.input_spec, blocks)
    else:
        inputs = read_inputs(request, pipe.input_spec)
        inputs = dataclasses.replace(inputs, audio=spoken, num_frames=len(spoken) // 640)
    return torch.cat([clip.frames for clip in pipe.clips(inputs, request)])


def test_a_live_voice_gives_the_frames_of_the_file(causal: Path, request_: Request) -> None:
    """11 latents: a first chunk of 5, which is two blocks, and two of a block each."""
    request, spoken = request_.changed(gain_db=0.0, chunk_latents=5), sound(41)
    file = frames_of(causal, request, spoken)
    assert file.shape == (41, 3, 32, 32)
    assert torch.equal(frames_of(causal, request, spoken, live=True), file)
    assert not torch.equal(frames_of(causal, request.changed(chunk_latents=8), spoken), file)


def test_a_record_has_the_chunks_and_a_broken_run_leaves_none(
    causal: Path, request_: Request
) -> None:
    record = carry_out(request_, weights=causal, device="cpu")
    assert record.request.sampling.chunk_latents == 8
    out = Path(str(request_.output.out)).with_name("other.mp4")
    broken = request_.changed(out=str(out))

    def stop(frames: Tensor) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        carry_out(broken, weights=causal, device="cpu", on_frames=stop)
    assert not kept_folder(out).exists()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--chunk-latents", "6"], "chunks of these causal weights have 2 + 3 k latents"),
        (["--resume"], "a video of causal weights is made in one run"),
        (["--devices", "2"], "causal weights run on one device"),
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
