"""generate/run: one way from a request to frames, which each pass one place for a watermark."""

import json
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
import torch
from torch import Tensor

from avatar_v import cli
from avatar_v.generate import run as run_module
from avatar_v.generate.pipeline import AvatarPipeline
from avatar_v.generate.run import run
from avatar_v.inputs.live import LiveSound
from avatar_v.media.delivered import SoundFormat
from avatar_v.media.files import Mp4File
from avatar_v.media.reading import iter_channels, read_audio, read_video
from avatar_v.media.writer import write_wav
from avatar_v.models.dit import AvatarDiT
from avatar_v.parallel import compiling
from avatar_v.request.request import LIVE, Request, Weights
from avatar_v.request.resolve import resolved
from avatar_v.safety.sound_mark import SoundMarker
from avatar_v.safety.watermark import Mark, Marker
from avatar_v.sampling.amount import num_passes
from avatar_v.types import SAMPLE_RATE_HZ
from avatar_v.weights.card import read_card
from avatar_v.weights.weights import load_pipeline, save_pipeline
from generating import carry_out, left_behind
from page_desk import desk_of, form_of, made

NUM_FRAMES = 32


def marked(frames: Tensor) -> Tensor:
    """A white corner."""
    frames = frames.clone()
    frames[:, :, :8, :8] = 255
    return frames


def is_marked(frames: Tensor) -> bool:
    """In every frame; H.264 changes some grey levels beside its edge."""
    return bool((frames[:, :, :8, :8].float().mean((1, 2, 3)) > 235).all())


def in_memory(request: Request) -> Request:
    return request.changed(out=None)


def test_the_mark_is_in_files_and_in_memory_and_the_rest_of_the_frames_is_as_without(
    request_: Request, weights: Path, pipe: AvatarPipeline
) -> None:
    plain = torch.cat([clip.frames for clip in run(in_memory(request_), pipe)])
    assert not is_marked(plain)
    frames: list[Tensor] = []
    same = Weights(weights, device="cpu", precision="fp32")
    run(request_, same, watermark=marked).finish(frames.append)
    assert torch.equal(torch.cat(frames), marked(plain))
    whole = read_video(str(request_.output.out))
    assert len(whole) == NUM_FRAMES
    assert is_marked(whole)
    making = run(in_memory(request_), pipe, watermark=marked)
    assert torch.equal(torch.cat([clip.frames for clip in making]), marked(plain))
    assert making.record is None


def test_the_mark_is_in_a_live_video(request_: Request, pipe: AvatarPipeline) -> None:
    def blocks() -> Iterator[Tensor]:
        yield from (0.1 * torch.randn(20_000)).split(640)

    live = in_memory(request_).changed(audio=LIVE)
    making = run(live, pipe, sound=LiveSound(blocks()), watermark=marked)
    frames = torch.cat([clip.frames for clip in making])
    assert len(frames) == making.inputs.num_frames == NUM_FRAMES
    assert is_marked(frames)


def test_auto_compiles_long_videos_and_the_record_says_so(
    request_: Request, weights: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pipeline makes both kinds, each as its own length asks for; a live sound has none."""
    called = list[AvatarDiT]()

    def told(call: Callable[..., Any], dit: AvatarDiT, *args: Any, **named: Any) -> Any:
        called.append(dit)
        return call(*args, **named)

    def compile_blocks(dit: AvatarDiT, backend: str) -> None:
        for block in dit.blocks:
            block._compiled_call_impl = partial(told, block._call_impl, dit)

    monkeypatch.setattr(compiling, "compile_blocks", compile_blocks)
    how = Weights(weights, device="cpu", precision="fp32", compile="auto")
    short, long = (request_.changed(num_steps=num, overwrite=True) for num in (2, 4))
    pipe = AvatarPipeline.from_pretrained(weights, device="cpu", precision="fp32", compile="auto")
    (least, most) = (passes_of(asked, pipe) for asked in (short, long))
    assert least < most
    monkeypatch.setattr(compiling, "PAYS_FROM", most)
    ids = set[str | None]()
    for asked, source, expected in (
        (long, pipe, True), (short, pipe, False), (long, how, True), (short, how, False)
    ):  # fmt: skip
        called.clear()
        record = run(asked.changed(watermark=True), source).finish()
        assert record.compile is expected
        assert bool(called) is expected
        ids.add(record.watermark)
    assert len(ids) == 2, "a loaded and a stored pipeline name the same video"
    live = in_memory(long).changed(audio=LIVE)
    assert not run(live, pipe, sound=LiveSound(iter(()))).compiles


def passes_of(asked: Request, pipe: AvatarPipeline) -> int:
    settings = pipe.settings(resolved(asked, pipe.card, has_clips=True))
    return num_passes(settings, pipe.dit.config, NUM_FRAMES, has_reference=True)


def test_python_command_line_and_page_take_the_same_way(
    request_: Request,
    weights: Path,
    pipe: AvatarPipeline,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The watermark is in all their videos; in Python only where it is asked for."""
    monkeypatch.setattr(run_module, "Marker", lambda mark: marked)
    person, out = request_.person, str(request_.output.out)
    asked = {"reference": person.reference, "audio": person.audio, "num_steps": 1}
    assert is_marked(torch.stack(list(pipe(**asked, face_crop=False, watermark=True))))
    assert not is_marked(torch.stack(list(pipe(**asked, face_crop=False))))
    words = ["generate", "--reference", person.reference, "--audio", person.audio, "--out", out]
    words += ["--weights", str(weights), "--steps", "1", "--no-face-crop"]
    assert cli.main(words) == 0
    assert is_marked(read_video(out))
    desk = desk_of(tmp_path / "app", pipe)
    made(desk, form_of(desk, request_, num_steps=1))
    (folder,) = desk.place.jobs.iterdir()
    assert is_marked(read_video(folder / "avatar.mp4"))
    assert sorted(path.suffix for path in folder.iterdir() if path.stem == "avatar") == [
        ".json",
        ".mp4",
    ]


def test_the_command_marks_with_the_id_of_its_record(
    request_: Request,
    weights: Path,
    pipe: AvatarPipeline,
    capsys: pytest.CaptureFixture[str],
) -> None:
    person = request_.person
    # six seconds: in three, some ids are too weak in frames that are noise
    sound = 0.2 * torch.randn(640 * 149, generator=torch.Generator().manual_seed(0))
    write_wav(person.audio, sound)
    words = ["generate", "--reference", person.reference, "--audio", person.audio, "--overwrite"]
    words += ["--out", str(request_.output.out), "--weights", str(weights), "--no-face-crop"]
    words += ["--steps", "1", "--device", "cpu", "--precision", "fp32"]
    read = ["watermark", "read", str(request_.output.out)]
    record = Path(str(request_.output.out)).with_suffix(".json")
    assert cli.main([*words, "--no-watermark"]) == 0
    assert json.loads(record.read_text())["watermark"] is None
    assert cli.main(read) == 1
    unmarked = read_audio(str(request_.output.out))
    assert cli.main(words) == 0
    id_ = json.loads(record.read_text())["watermark"]
    capsys.readouterr()
    assert cli.main(read) == 0
    assert f"watermark {id_}" in capsys.readouterr().out
    heard = read_audio(str(request_.output.out))
    expected = SoundMarker(Mark(id_), SAMPLE_RATE_HZ)(unmarked[None])[0]
    changes = torch.stack([heard - unmarked, expected - unmarked])
    assert float(changes.corrcoef()[0, 1]) > 0.2, "AAC spoils noise more than the mark does"
    made = in_memory(request_).changed(num_steps=1)
    plain, again = (
        torch.cat([clip.frames for clip in run(made.changed(watermark=x), pipe)])
        for x in (False, True)
    )
    assert torch.equal(again, Marker(Mark(id_))(plain))  # another run has the same id


@pytest.mark.parametrize("suffix", [".mp4", ".m3u8"])
def test_a_video_has_the_sound_of_the_file_at_its_rate_in_its_channels(
    request_: Request, pipe: AvatarPipeline, tmp_path: Path, suffix: str
) -> None:
    """In chunks, in segments and beside; the networks hear what they hear of the mono file."""
    rate, num = 48_000, NUM_FRAMES * 1920
    draw = np.random.default_rng(0)
    left = (0.1 * np.convolve(draw.standard_normal(num), np.ones(48) / 7, "same")).astype("f4")
    stereo = np.stack([left, left])
    path, out = tmp_path / "stereo.wav", tmp_path / f"made{suffix}"
    with av.open(str(path), "w") as container:
        stream = container.add_stream("pcm_f32le", rate=rate, layout="stereo")
        packed = np.ascontiguousarray(stereo.T).reshape(1, -1)
        frame = av.AudioFrame.from_ndarray(packed, format="flt", layout="stereo")
        frame.sample_rate = rate
        container.mux(stream.encode(frame))
    beside = Mp4File(tmp_path / "beside.mp4")
    record = run(request_.changed(audio=str(path), out=str(out)), pipe, beside=[beside]).finish()
    assert record.track is not None
    assert (record.track.delivered_hz, record.track.delivered_layout) == (rate, "stereo")
    for path in (tmp_path / "beside.mp4", *([out] if suffix == ".mp4" else [])):
        with av.open(str(path)) as container:
            audio = container.streams.audio[0].codec_context
            assert (audio.sample_rate, audio.layout.name) == (rate, "stereo")
        back = torch.cat([*iter_channels(path, SoundFormat(rate, "stereo"))]).reshape(-1, 2)[:num]
        assert np.corrcoef(back[:, 1], left)[0, 1] > 0.99
    if suffix == ".m3u8":
        with av.open(str(out)) as container:
            audio = container.streams.audio[0].codec_context
            assert (audio.sample_rate, audio.layout.name) == (rate, "stereo")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sign": "none.pem"}, "--sign and --sign-key go together"),
        ({"sign": "a", "sign_key": "b", "out": "out.m3u8"}, "--sign signs an .mp4 file"),
    ],
)
def test_half_of_a_signature_is_one_error(
    request_: Request, weights: Path, options: dict[str, str], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        run(request_.changed(**options), Weights(weights))


def test_loaded_weights_write_the_record_of_those_that_are_loaded(
    request_: Request, weights: Path, pipe: AvatarPipeline
) -> None:
    first = carry_out(request_, weights=weights, device="cpu", precision="fp32")
    again = run(request_.changed(overwrite=True), pipe)
    record = again.finish()
    assert record.request == again.request
    assert (record.weights, record.weights_hash) == (first.weights, first.weights_hash)
    assert (record.precision, record.device) == (first.precision, first.device)
    assert record.timing.load_s == 0
    assert sorted(left_behind(request_)) == ["out.json", "out.mp4"]


def test_a_record_is_read_back(request_: Request, weights: Path) -> None:
    record = carry_out(request_, weights=weights, device="cpu")
    values = json.loads(Path(str(request_.output.out)).with_suffix(".json").read_text())
    assert Request.from_json(values["request"]) == record.request


def test_weights_that_know_no_sound_say_so(
    request_: Request, weights: Path, tmp_path: Path
) -> None:
    dit, conditioner = load_pipeline(weights)
    for block in dit.blocks:
        torch.nn.init.zeros_(
            block.get_parameter("audio_attention.out.weight")
        )  # as stage 1 leaves it
    save_pipeline(tmp_path / "silent", dit, conditioner, read_card(weights))
    said: list[str] = []
    for folder in (weights, tmp_path / "silent"):
        making = run(in_memory(request_), Weights(folder, device="cpu"), on_warnings=said.extend)
        next(clips := iter(making))
        clips.close()
    (warning,) = said
    assert warning.startswith("these weights know no sound (stage 1), so the video does not foll")
    silent = AvatarPipeline.from_pretrained(tmp_path / "silent", device="cpu")
    assert warning in run(in_memory(request_), silent).inputs.warnings


def test_an_iterator_that_is_closed_leaves_no_thread(request_: Request, weights: Path) -> None:
    clips = iter(run(request_, Weights(weights, device="cpu")))
    next(clips)
    assert "writer" in left_behind(request_)
    clips.close()
    assert left_behind(request_) == [".out.mp4.part"]
