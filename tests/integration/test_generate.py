"""From files to mp4 with tiny random weights: what comes out, and what a failure leaves."""

import dataclasses
import json
import re
import shutil
from fractions import Fraction
from pathlib import Path

import av
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from avatar_v import cli
from avatar_v.generate import stored_pipeline
from avatar_v.generate.pipeline import AvatarPipeline
from avatar_v.generate.run import run
from avatar_v.request.request import Request
from generating import carry_out, left_behind

# --- files ---


def test_files_to_mp4_and_json(request_: Request, weights: Path) -> None:
    seen = []
    record = carry_out(request_, weights=weights, on_frames=seen.append)
    with av.open(request_.output.out) as container:
        video, audio = container.streams.video[0], container.streams.audio[0]
        assert (video.codec_context.name, audio.codec_context.name) == ("h264", "aac")
        assert (video.width, video.height) == (32, 32)
        assert video.average_rate == 25
        assert video.frames == 32  # 1.25 s are 31.25 frames
        assert video.duration * video.time_base == Fraction(32, 25)
        assert audio.duration * audio.time_base == Fraction(32, 25)
    assert sum(map(len, seen)) == record.num_frames == 32
    values = json.loads(Path(request_.output.out).with_suffix(".json").read_text())
    # with the values that it left to the weights
    resolved = request_.changed(
        anchor=False, guidance_audio=2.0, guidance_motion=1.0, chunk_latents=5
    )
    assert values["request"] == json.loads(json.dumps(dataclasses.asdict(resolved)))
    assert values["weights_card"]["preset"] == "tiny"
    assert len(values["weights_hash"]) == 16
    assert values["timing"]["total_s"] >= values["timing"]["first_frame_s"] > 0
    assert values["timing"]["peak_rss_mib"] > 50
    assert values["versions"]["torch"] == torch.__version__
    assert sorted(left_behind(request_)) == ["out.json", "out.mp4"]


def test_command_line(request_: Request, weights: Path, capsys: pytest.CaptureFixture) -> None:
    words = ["generate", "--reference", request_.person.reference, "--audio", request_.person.audio]
    words += ["--out", request_.output.out, "--weights", str(weights)]
    words += ["--steps", "1", "--no-face-crop"]
    assert cli.main(words) == 0
    said = capsys.readouterr().out
    assert re.search(
        r"32 frames \(1\.3 s\) in .* s in all, of them .* s reading files and .* s loading", said
    )
    timing = json.loads(Path(request_.output.out).with_suffix(".json").read_text())["timing"]
    parts = timing["read_s"] + timing["load_s"] + timing["total_s"]
    assert 0 < parts <= timing["wall_s"] + 0.01
    assert cli.main(words) == 2  # it exists now
    assert "pass --overwrite" in capsys.readouterr().err
    assert cli.main([*words, "--overwrite"]) == 0


def test_frames_of_the_python_interface(pipe: AvatarPipeline, request_: Request) -> None:
    person = request_.person
    frames = pipe(reference=person.reference, audio=person.audio, num_steps=1, face_crop=False)
    first = next(frames)
    assert first.shape == (3, 32, 32)
    assert first.dtype == torch.uint8
    assert sum(1 for _ in frames) == 31
    with pytest.raises(ValueError, match="no such file"):  # at the call, not at the first frame
        pipe(reference="nobody.mp4", audio=person.audio)
    with pytest.raises(TypeError, match="unknown options steps; known are reference, audio"):
        pipe(reference=person.reference, audio=person.audio, steps=1)


# --- pictures that the weights do not know ---


@pytest.fixture
def choosy(weights: Path, tmp_path: Path) -> Path:
    """Weights that know no picture there is."""
    folder = shutil.copytree(weights, tmp_path / "choosy")
    known = {"least_db": 150.0, "num_pictures": 9, "height": 32, "width": 32}
    (folder / "vae" / "known.json").write_text(json.dumps(known))
    card = json.loads((folder / "card.json").read_text())
    card["can"]["people"] = "drawn people"
    (folder / "card.json").write_text(json.dumps(card))
    return folder


def test_a_reference_that_the_weights_do_not_know_is_told_everywhere(
    request_: Request, choosy: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    named = tmp_path / "[bold][" / "red].png"  # brackets are markup to rich, this end an error
    named.parent.mkdir()
    shutil.copy(request_.person.reference, named)
    words = ["generate", "--reference", str(named), "--audio", request_.person.audio]
    words += ["--steps", "1", "--out", request_.output.out, "--weights", str(choosy)]
    words += ["--no-face-crop"]
    assert cli.main(words) == 0
    (line,) = [text for text in capsys.readouterr().err.splitlines() if "warning" in text]
    told = "[bold][/red].png: unlike the pictures that the weights know, drawn people ("
    assert told in line
    values = json.loads(Path(request_.output.out).with_suffix(".json").read_text())
    assert line == f"warning: {values['warnings'][0]}"
    check = values["reference_check"]
    assert check["fidelity_db"] < check["least_db"] == 150.0
    pipe = AvatarPipeline.from_pretrained(choosy, device="cpu")
    with pytest.warns(UserWarning, match="unlike the pictures that the weights know"):
        pipe(reference=request_.person.reference, audio=request_.person.audio, face_crop=False)
    making = run(request_.changed(overwrite=True), pipe)  # as the page does
    assert "unlike the pictures that the weights know" in making.inputs.warnings[0]


def test_weights_that_say_nothing_of_pictures_check_none(request_: Request, weights: Path) -> None:
    record = carry_out(request_.changed(num_steps=1), weights=weights)
    values = json.loads(Path(request_.output.out).with_suffix(".json").read_text())
    assert record.warnings == ()
    assert values["reference_check"]["fidelity_db"] is None
    assert values["reference_check"]["note"].startswith("not checked: the weights do not say")


# --- failures ---


@pytest.mark.parametrize("out", ["out.mp4", "out.m3u8"])
def test_pixels_that_are_no_numbers_end_the_video(
    request_: Request, weights: Path, tmp_path: Path, out: str
) -> None:
    """The weights are finite, what the decoder makes of them is not."""
    folder = shutil.copytree(weights, tmp_path / "broken")
    path = folder / "vae" / "model.safetensors"
    state = load_file(path)
    state["decoder.conv_out.weight"] = torch.full_like(state["decoder.conv_out.weight"], 3e38)
    save_file(state, path)
    request = request_.changed(out=str(Path(request_.output.out).with_name(out)), num_steps=1)
    with pytest.raises(ValueError, match="chunk 0 was decoded to pixels that are not finite"):
        carry_out(request, weights=folder)
    assert [name for name in left_behind(request) if not name.startswith(".")] == []


def test_bad_input_is_found_before_any_model_is_loaded(
    request_: Request, weights: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*args: object, **kwargs: object) -> None:
        raise AssertionError("a model was loaded")

    monkeypatch.setattr(stored_pipeline, "load_pipeline", fail)
    for change, message in [
        ({"audio": "nothing.wav"}, "no such file"),
        ({"reference": request_.person.audio}, "no video stream"),
        ({"listen": "nothing.wav"}, "no such file"),
        ({"listen": request_.person.audio}, "nobody nods: these weights make no motion"),
        ({"num_steps": 0}, "--steps"),
        ({"num_steps": 10**9}, "--steps"),
        ({"prompt": "x" * 300}, "a prompt may have 256 bytes, got 300"),
    ]:
        with pytest.raises(ValueError, match=message):
            carry_out(request_.changed(**change), weights=weights)
    for device, message in [
        ("tpu9", "no such kind of device"),
        ("", "no such kind of device"),
        ("meta", "networks run on cpu, cuda, mps alone, not on meta"),
        ("xpu", "networks run on cpu, cuda, mps alone, not on xpu"),
        ("cpu:3", "there are 1 of them, numbered from 0"),
        ("cuda", "finds no CUDA device"),
    ]:
        if device == "cuda" and torch.cuda.is_available():
            continue
        with pytest.raises(ValueError, match=message):
            carry_out(request_, weights=weights, device=device)
    with pytest.raises(ValueError, match="no weights 'grand'"):
        carry_out(request_, weights="grand")
    with pytest.raises(AssertionError, match="a model was loaded"):  # the trap works
        carry_out(request_, weights=weights)
    assert left_behind(request_) == []


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("schema_version", 99, "schema version 99"),
        ("preset", "giant", "no preset 'giant'"),
    ],
)
def test_weights_of_another_version_or_preset(
    request_: Request, weights: Path, tmp_path: Path, key: str, value: object, message: str
) -> None:
    folder = tmp_path / "other"
    folder.mkdir()
    for path in weights.iterdir():
        if path.is_dir():
            (folder / path.name).symlink_to(path)
    card = {**json.loads((weights / "card.json").read_text()), key: value}
    (folder / "card.json").write_text(json.dumps(card))
    with pytest.raises(ValueError, match=message):
        carry_out(request_, weights=folder)
    assert left_behind(request_) == []


def test_an_interrupt_leaves_what_resume_needs(request_: Request, weights: Path) -> None:
    def interrupt(frames: Tensor) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        carry_out(request_, weights=weights, on_frames=interrupt)
    assert left_behind(request_) == [".out.mp4.part"]
    kept = {path.name for path in Path(request_.output.out).with_name(".out.mp4.part").iterdir()}
    assert kept == {"000000.safetensors", "request.json", "lock", "video.mp4"}


def test_an_error_in_the_model_leaves_nothing(request_: Request, weights: Path) -> None:
    with pytest.raises(ValueError, match="a prompt may have 256 bytes"):
        carry_out(request_.changed(prompt="x" * 300), weights=weights)
    assert left_behind(request_) == []
