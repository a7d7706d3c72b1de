"""From files to mp4 with tiny random weights: what comes out, and what a failure leaves."""

import dataclasses
import json
from fractions import Fraction
from pathlib import Path

import av
import pytest
import torch
from torch import Tensor

from avatar_v import cli
from avatar_v.generate import pipeline as pipeline_module
from avatar_v.generate.pipeline import AvatarPipeline, carry_out
from avatar_v.types import Request
from generating import left_behind

# --- files ---


def test_files_to_mp4_and_json(request_: Request, weights: Path) -> None:
    seen = []
    record = carry_out(request_, weights=weights, on_frames=seen.append)
    with av.open(request_.out) as container:
        video, audio = container.streams.video[0], container.streams.audio[0]
        assert (video.codec_context.name, audio.codec_context.name) == ("h264", "aac")
        assert (video.width, video.height) == (32, 32)
        assert video.average_rate == 25
        assert video.frames == 32  # 1.25 s are 31.25 frames
        assert video.duration * video.time_base == Fraction(32, 25)
        assert audio.duration * audio.time_base == Fraction(32, 25)
    assert sum(map(len, seen)) == record.num_frames == 32
    values = json.loads(Path(request_.out).with_suffix(".json").read_text())
    # what it had left to the weights
    decided = dataclasses.replace(request_, anchor=False, guidance_audio=2.0, guidance_motion=1.0)
    assert values["request"] == json.loads(json.dumps(dataclasses.asdict(decided)))
    assert values["weights_card"]["preset"] == "tiny"
    assert len(values["weights_hash"]) == 16
    assert values["timing"]["total_s"] >= values["timing"]["first_frame_s"] > 0
    assert values["timing"]["peak_rss_mib"] > 50
    assert values["versions"]["torch"] == torch.__version__
    assert sorted(left_behind(request_)) == ["out.json", "out.mp4"]


def test_command_line(request_: Request, weights: Path, capsys: pytest.CaptureFixture) -> None:
    words = ["generate", "--reference", request_.reference, "--audio", request_.audio]
    words += ["--out", request_.out, "--weights", str(weights), "--steps", "1", "--no-face-crop"]
    assert cli.main(words) == 0
    assert "32 frames (1.3 s)" in capsys.readouterr().out
    assert cli.main(words) == 2  # it exists now
    assert "pass --overwrite" in capsys.readouterr().err
    assert cli.main([*words, "--overwrite"]) == 0


def test_frames_of_the_python_interface(pipe: AvatarPipeline, request_: Request) -> None:
    frames = pipe(reference=request_.reference, audio=request_.audio, num_steps=1, face_crop=False)
    first = next(frames)
    assert first.shape == (3, 32, 32)
    assert first.dtype == torch.uint8
    assert sum(1 for _ in frames) == 31
    with pytest.raises(ValueError, match="no such file"):  # at the call, not at the first frame
        pipe(reference="nobody.mp4", audio=request_.audio)


# --- failures ---


def test_bad_input_is_found_before_any_model_is_loaded(
    request_: Request, weights: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*args: object, **kwargs: object) -> None:
        raise AssertionError("a model was loaded")

    monkeypatch.setattr(pipeline_module, "load_pipeline", fail)
    for change, message in [
        ({"audio": "nothing.wav"}, "no such file"),
        ({"reference": request_.audio}, "no video stream"),
        ({"num_steps": 0}, "--steps"),
    ]:
        with pytest.raises(ValueError, match=message):
            carry_out(dataclasses.replace(request_, **change), weights=weights)
    for device, message in [("tpu9", "no such kind of device"), ("cuda", "finds no CUDA device")]:
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
        ("preset", "giant", "no format for weights of preset"),
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
    kept = {path.name for path in Path(request_.out).with_name(".out.mp4.part").iterdir()}
    assert kept == {"000000.safetensors", "request.json", "lock", "video.mp4"}


def test_an_error_in_the_model_leaves_nothing(request_: Request, weights: Path) -> None:
    with pytest.raises(ValueError, match="a prompt may have 256 bytes"):
        carry_out(dataclasses.replace(request_, prompt="x" * 300), weights=weights)
    assert left_behind(request_) == []
