"""From files to mp4 with tiny random weights: what comes out, when, and what a failure leaves."""

import dataclasses
import json
import shutil
import threading
from fractions import Fraction
from pathlib import Path

import av
import pytest
import torch
from PIL import Image
from torch import Tensor

from avatar_v import cli
from avatar_v.critics.motion import MotionMeter
from avatar_v.generate import generator as generator_module
from avatar_v.generate import pipeline as pipeline_module
from avatar_v.generate.chunks import Span, plan
from avatar_v.generate.generator import Person, Settings, audio_tokens, generate
from avatar_v.generate.pipeline import AvatarPipeline, carry_out
from avatar_v.generate.showcase import Cast, lip_sync, showcase
from avatar_v.media import read_video
from avatar_v.models.reference import join_references, one_frame
from avatar_v.testing import make_batch
from avatar_v.types import Reference, Request, num_frames

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
    person: Person | None = None,
) -> Tensor:
    person = person or Person(picture())
    blocks = generate(pipe.dit, pipe.conditioner, person, waveform, prompt, settings)
    return torch.cat(list(blocks))


def left_behind(request: Request) -> list[str]:
    threads = [thread.name for thread in threading.enumerate() if thread.name == "writer"]
    return threads + [path.name for path in Path(request.out).parent.iterdir()]


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
    assert values["request"] == json.loads(json.dumps(dataclasses.asdict(request_)))
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


# --- chunks and streams ---


@pytest.mark.parametrize("frames", [1, 2, 17, 18, 40])
def test_as_many_frames_as_the_sound_has(pipe: AvatarPipeline, frames: int) -> None:
    assert made(pipe, sound(frames)).shape == (frames, 3, 32, 32)


def test_same_seed_same_frames(pipe: AvatarPipeline) -> None:
    first = made(pipe, sound(20))
    assert torch.equal(first, made(pipe, sound(20)))
    assert not torch.equal(first, made(pipe, sound(20), dataclasses.replace(SETTINGS, seed=4)))


def test_overshoot_comes_from_the_seed_and_leaves_the_start_alone(pipe: AvatarPipeline) -> None:
    starts = []

    def remember(module: object, args: tuple[Tensor, ...]) -> None:
        starts.append(args[0][0, -1].clone())  # the last latent is noise in every first step

    plain = made(pipe, sound(33))
    hook = pipe.dit.register_forward_pre_hook(remember)
    try:
        fresh = dataclasses.replace(SETTINGS, overshoot=0.5)
        first = made(pipe, sound(33), fresh)
        again = made(pipe, sound(33), dataclasses.replace(fresh, overshoot=1.0))
    finally:
        hook.remove()
    assert not torch.equal(first, plain)
    assert not torch.equal(first, again)
    assert torch.equal(first, made(pipe, sound(33), fresh))
    half = len(starts) // 2
    for step in range(0, half, SETTINGS.num_steps):  # each chunk starts from the same noise
        assert torch.equal(starts[step], starts[half + step])


def test_sound_and_words_change_the_frames(pipe: AvatarPipeline) -> None:
    first = made(pipe, sound(20))
    assert not torch.equal(first, made(pipe, sound(20, seed=1)))
    assert not torch.equal(first, made(pipe, sound(20), prompt="a forest"))


def test_first_frames_leave_before_the_second_chunk_is_sampled(pipe: AvatarPipeline) -> None:
    num_calls = 0

    def count(*args: object) -> None:
        nonlocal num_calls
        num_calls += 1

    hook = pipe.dit.register_forward_hook(count)
    try:
        blocks = generate(pipe.dit, pipe.conditioner, Person(picture()), sound(60), "", SETTINGS)
        next(blocks)
        assert num_calls == SETTINGS.num_steps
        rest = list(blocks)
    finally:
        hook.remove()
    assert num_calls == SETTINGS.num_steps * len(plan(60, chunk_latents=5).chunks)
    assert all(len(block) <= 16 for block in rest)  # the pixels in memory do not grow


def test_a_longer_sound_begins_with_the_same_chunk(pipe: AvatarPipeline) -> None:
    """Nothing of a chunk depends on what comes more than 2 frames after it."""
    long = sound(80)
    first, second = made(pipe, long), made(pipe, long[: 640 * 50])
    assert torch.equal(first[:41], second[:41])


# --- the person's video and motion ---


def speaker(pipe: AvatarPipeline) -> Person:
    """A person with 13 frames of reference and the motion stream."""
    with torch.no_grad():
        reference = pipe.conditioner.encode_reference(make_batch(1, 13, 32))
    assert reference.motion is not None
    return Person(picture(), reference, reference.motion[:, :1])


def test_a_reference_is_encoded_once_and_reads_as_if_it_were_every_time(
    pipe: AvatarPipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    person, num_encoded = speaker(pipe), 0
    encode = pipe.dit.encode_reference

    def count(*args, **kwargs):
        nonlocal num_encoded
        num_encoded += 1
        return encode(*args, **kwargs)

    monkeypatch.setattr(pipe.dit, "encode_reference", count)
    settings = dataclasses.replace(SETTINGS, guidance_reference=2.0)
    cached = made(pipe, sound(33), settings, person=person)
    assert num_encoded == 1
    original = generator_module.guided

    def uncached(dit, cond, *, cache, **weights):
        return original(dit, dataclasses.replace(cond, reference=person.reference), **weights)

    monkeypatch.setattr(generator_module, "guided", uncached)
    anew = made(pipe, sound(33), settings, person=person)
    assert num_encoded == 2 + SETTINGS.num_steps * len(plan(33, chunk_latents=5).chunks)
    # a pass without the reference masks it in one and lacks it in the other: sums of another order
    assert float((cached.float() - anew.float()).abs().max()) <= 1.0
    without = dataclasses.replace(person, reference=None)
    assert not torch.equal(cached, made(pipe, sound(33), SETTINGS, person=without))


def test_motion_is_carried_from_chunk_to_chunk(pipe: AvatarPipeline) -> None:
    person, calls = speaker(pipe), []

    def remember(module, args, kwargs, output) -> None:
        calls.append((kwargs["motion_t"][:1].clone(), args[1][:1].clone()))

    hook = pipe.dit.register_forward_hook(remember, with_kwargs=True)
    try:
        frames = made(pipe, sound(33), person=person)
    finally:
        hook.remove()
    assert len(frames) == 33
    assert not torch.equal(frames, made(pipe, sound(33), person=Person(picture())))
    assert torch.equal(frames, made(pipe, sound(33), person=person))
    first, second = calls[0], calls[SETTINGS.num_steps]
    assert torch.equal(first[0][:, :1], person.motion)
    assert first[1][0].tolist() == [0.0, 1.0, 1.0, 1.0, 1.0]
    assert second[1][0].tolist() == [0.0, 0.0, 1.0, 1.0, 1.0]
    # an untrained head leaves motion where it starts, so the end of a chunk is known
    assert torch.equal(second[0][:, :2], first[0][:, -2:])


# --- the appearance anchor ---


def test_the_anchor_is_the_first_latent_and_changes_later_chunks_alone(
    pipe: AvatarPipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    person, encoded = speaker(pipe), []
    encode = pipe.dit.encode_reference
    anchored = dataclasses.replace(SETTINGS, anchor=True)
    plain = made(pipe, sound(45), person=person)

    def remember(reference: Reference) -> object:
        encoded.append(reference)
        return encode(reference)

    monkeypatch.setattr(pipe.dit, "encode_reference", remember)
    frames = made(pipe, sound(45), anchored, person=person)
    assert len(plan(45, chunk_latents=5).chunks) == 4
    reference, anchor = encoded  # each once: the keys of the reference are not made again
    assert reference.latents.shape[1] == 4
    with torch.no_grad():
        image = pipe.conditioner.encode_image(person.image[None])
        heard = audio_tokens(pipe.conditioner, sound(45), 12)(Span(0, 1))
    assert anchor.motion is not None
    assert person.motion is not None
    assert torch.equal(anchor.latents, image)
    assert torch.equal(anchor.motion, person.motion)
    torch.testing.assert_close(anchor.audio, heard, atol=1e-5, rtol=1e-5)  # sums of other lengths
    assert torch.equal(frames[:17], plain[:17])
    for chunk in (frames[17:29] != plain[17:29], frames[29:41] != plain[29:41]):
        assert chunk.any()


def test_an_anchor_reads_as_if_both_clips_were_encoded_every_time(
    pipe: AvatarPipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    person = speaker(pipe)
    assert person.reference is not None
    with torch.no_grad():
        image = pipe.conditioner.encode_image(person.image[None])
        heard = audio_tokens(pipe.conditioner, sound(33), 9)(Span(0, 1))
    anchor = one_frame(image, person.reference, audio=heard, motion=person.motion)
    both = join_references([person.reference, anchor])
    anchored = dataclasses.replace(SETTINGS, anchor=True)
    cached = made(pipe, sound(33), anchored, person=person)
    original, num_calls = generator_module.guided, 0

    def uncached(dit, cond, *, cache, **weights):
        nonlocal num_calls
        reference = both if num_calls else person.reference
        num_calls += 1
        return original(dit, dataclasses.replace(cond, reference=reference), **weights)

    monkeypatch.setattr(generator_module, "guided", uncached)
    anew = made(pipe, sound(33), anchored, person=person)
    # sums of another order; the same value may round both ways
    assert float((cached.float() - anew.float()).abs().max()) <= 1.0


def test_an_anchor_needs_a_reference_to_join(
    pipe: AvatarPipeline, request_: Request, weights: Path
) -> None:
    anchored = dataclasses.replace(SETTINGS, anchor=True)
    with pytest.raises(ValueError, match="an anchor joins the reference of a person, and this one"):
        made(pipe, sound(20), anchored)
    with pytest.raises(ValueError, match="--anchor: these weights read no reference"):
        carry_out(dataclasses.replace(request_, anchor=True), weights=weights)
    with pytest.raises(ValueError, match="--anchor: these weights read no reference"):
        pipe(reference=request_.reference, audio=request_.audio, anchor=True, face_crop=False)
    assert left_behind(request_) == []


# --- interpolated transitions ---


@pytest.fixture
def pieces(pipe: AvatarPipeline, monkeypatch: pytest.MonkeyPatch) -> list[Tensor]:
    """Every latent that goes to the decoder."""
    latents: list[Tensor] = []
    stream_decoder = pipe.conditioner.vae.stream_decoder

    class Spy:
        def __init__(self) -> None:
            self.stream = stream_decoder()

        def push(self, piece: Tensor) -> Tensor:
            latents.append(piece.clone())
            return self.stream.push(piece)

    monkeypatch.setattr(pipe.conditioner.vae, "stream_decoder", Spy)
    return latents


def test_an_i_chunk_joins_the_ends_of_two_n_chunks(
    pipe: AvatarPipeline, pieces: list[Tensor]
) -> None:
    """Chunks of 9 latents: the prefix of the next one lies behind the transition."""
    settings = dataclasses.replace(SETTINGS, chunk_latents=9)
    person, calls = speaker(pipe), []

    def remember(module, args, kwargs, output) -> None:
        calls.append((args[0][:1].clone(), args[1][0].tolist(), kwargs["motion_t"][:1].clone()))

    plain = made(pipe, sound(84), settings, person=person)
    before = torch.cat(pieces, dim=1)
    pieces.clear()
    hook = pipe.dit.register_forward_hook(remember, with_kwargs=True)
    try:
        frames = made(
            pipe, sound(84), dataclasses.replace(settings, interpolate=True), person=person
        )
    finally:
        hook.remove()
    after = torch.cat(pieces, dim=1)
    assert frames.shape == plain.shape
    chunks = plan(84, chunk_latents=9).chunks  # 9 latents, 7 and 6 new ones
    assert [len(chunk.new_latents) for chunk in chunks] == [9, 7, 6]
    changed = (before != after).flatten(2).any(-1)[0]
    assert changed.nonzero().flatten().tolist() == [9, 10, 16, 17]
    assert len(calls) == settings.num_steps * 5  # N0, N1, I1, N2, I2
    latents, times, motion = calls[2 * settings.num_steps]
    assert times == [0.0, 0.0, 1.0, 1.0, 0.0]
    assert torch.equal(latents[:, :2], before[:, 7:9])
    assert torch.equal(latents[:, -1:], before[:, 11:12])
    _, _, start = calls[settings.num_steps]
    assert torch.equal(motion[:, -1:], start[:, 4:5])  # an untrained head leaves it where it starts
    noises = [calls[i * settings.num_steps][0][:, 2:4] for i in (1, 2)]
    assert not torch.equal(*noises)


def test_the_next_chunk_goes_on_from_the_transition_that_is_shown(
    pipe: AvatarPipeline, pieces: list[Tensor]
) -> None:
    """Chunks of 5 latents: the last two, prefix of the next chunk, hold one of the transition."""
    starts = []

    def remember(module: object, args: tuple[Tensor, ...]) -> None:
        starts.append((args[0][:1].clone(), args[1][0].tolist()))

    hook = pipe.dit.register_forward_pre_hook(remember)
    try:
        made(pipe, sound(41), dataclasses.replace(SETTINGS, interpolate=True))
    finally:
        hook.remove()
    latents = torch.cat(pieces, dim=1)
    assert latents.shape[1] == 11  # 5, 3 and 3 new ones
    assert len(starts) == SETTINGS.num_steps * 5
    x, times = starts[3 * SETTINGS.num_steps]
    assert times == [0.0, 0.0, 1.0, 1.0, 1.0]
    assert torch.equal(x[:, :2], latents[:, 6:8])


# --- decoding and hearing ---


def test_decoding_across_chunks_equals_decoding_whole(
    pipe: AvatarPipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    vae, pieces = pipe.conditioner.vae, []
    stream = vae.stream_decoder()

    class Spy:
        def push(self, latents: Tensor) -> Tensor:
            pieces.append(latents.clone())
            return stream.push(latents)

    monkeypatch.setattr(vae, "stream_decoder", lambda: Spy())
    frames = made(pipe, sound(45))
    monkeypatch.undo()
    latents = torch.cat(pieces, dim=1)
    assert num_frames(latents.shape[1]) == 45
    with torch.no_grad():
        whole = vae.decode(latents)[0]
    # 1 grey level: the same value may round both ways
    assert float((frames.float() - (whole + 1) * 127.5).abs().max()) <= 1.0


@pytest.mark.parametrize(
    ("span", "total"), [((0, 5), 5), ((3, 8), 30), ((20, 25), 30), ((27, 30), 30)]
)
def test_audio_tokens_of_a_chunk_equal_those_of_the_whole(
    pipe: AvatarPipeline, span: tuple[int, int], total: int
) -> None:
    waveform = sound(num_frames(total))
    with torch.no_grad():
        whole = pipe.conditioner.encode_audio(waveform[None])
        part = audio_tokens(pipe.conditioner, waveform, total)(Span(*span))
    # fp32: the same sums over other lengths
    torch.testing.assert_close(part, whole[:, span[0] : span[1]], atol=1e-5, rtol=1e-5)


def test_bf16_is_close_to_fp32(pipe: AvatarPipeline) -> None:
    first = made(pipe, sound(17)).float()
    second = made(pipe, sound(17), dataclasses.replace(SETTINGS, bf16=True)).float()
    assert not torch.equal(first, second)
    # 8 bits of mantissa over a few layers: a few of 255 grey levels on average
    assert float((first - second).abs().mean()) < 4


# --- the demo ---


def test_demo_writes_its_files(weights: Path, tmp_path: Path) -> None:
    meter = tmp_path / "meter"
    torch.manual_seed(0)
    MotionMeter().save_pretrained(meter)
    cast = Cast(person=3, scene=4, speech=5, num_frames=50)
    for _ in range(2):  # a second demo replaces the first
        record, sync = showcase(tmp_path / "demo", cast, num_steps=1, weights=weights, meter=meter)
    values = json.loads((tmp_path / "demo" / "out.json").read_text())
    assert values["world"] == {"person": 2_000_003, "scene": 2_000_005, "speech": 2_000_006}
    assert values["lip_sync"] == dataclasses.asdict(sync)
    assert record.num_frames == 50
    with Image.open(tmp_path / "demo" / "sheet.png") as sheet:
        assert sheet.width > 1000
    names = {path.name for path in (tmp_path / "demo").iterdir()}
    inputs = {"reference.mp4", "scene.png", "speech.wav"}
    assert names == {"out.mp4", "out.json", "side_by_side.mp4", "sheet.png", *inputs}


def test_demo_shows_what_a_reference_video_adds(weights: Path, tmp_path: Path) -> None:
    """Weights that read a reference also speak from one picture, and the two differ."""
    folder = tmp_path / "personal"
    shutil.copytree(weights, folder)
    card = json.loads((folder / "card.json").read_text())
    (folder / "card.json").write_text(json.dumps({**card, "reference": True}))
    cast = Cast(person=3, scene=4, speech=5, num_frames=50)
    showcase(tmp_path / "demo", cast, num_steps=1, weights=folder)
    one, whole = (read_video(tmp_path / "demo" / f"{name}.mp4") for name in ("picture", "out"))
    assert one.shape == whole.shape
    assert not torch.equal(one, whole)
    beside = read_video(tmp_path / "demo" / "side_by_side.mp4")
    assert beside.shape[0] == 50


def test_lip_sync_score_knows_truth_from_chance() -> None:
    time = torch.arange(250) / 25
    truth = (torch.sin(9 * time) * torch.sin(2.3 * time + 1)).abs()
    noise = 0.05 * torch.randn(250, generator=torch.Generator().manual_seed(0))
    sync = lip_sync(0.5 * truth + noise, truth, truth)
    assert sync.generated > 0.9
    assert sync.true_video == pytest.approx(1.0)
    assert abs(sync.shuffled_mean) < 0.2
    assert lip_sync(torch.zeros(250), truth, truth).generated == 0.0
