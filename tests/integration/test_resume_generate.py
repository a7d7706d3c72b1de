"""`avatar-v generate --resume`: after any end the rest is made, and the frames equal one run's."""

import dataclasses
import json
import shutil
import signal
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from avatar_v import cli
from avatar_v.base.device import chosen_precision
from avatar_v.generate import generator as generator_module
from avatar_v.generate import resume as resume_module
from avatar_v.request.output_files import kept_folder, num_kept
from avatar_v.request.record import Record
from avatar_v.request.request import Request
from forked import run_script
from generating import carry_out
from written import assert_same_pictures, played

NUM_CHUNKS = 3
"""Of the request's 32 frames, in chunks of 5 latents: 17, 12 and 3 of them."""
ENDS = [(".mp4", 1), (".mp4", 3), (".m3u8", 3)]
"""Kinds of output, and blocks of frames until the end; two belong to the first chunk."""
KILLED = """
import json, os, signal, sys
from avatar_v.request.request import Request, Weights
from avatar_v.generate.run import run

left = [int(sys.argv[3])]

def on_frames(frames):
    left[0] -= 1
    if not left[0]:
        os.kill(os.getpid(), signal.SIGKILL)

request = Request.from_json(json.loads(sys.argv[1]))
run(request, Weights(sys.argv[2], device="cpu")).finish(on_frames)
"""


def whole(request: Request, weights: Path, **how: str) -> tuple[Tensor, Record]:
    """All frames that one run gives, and its record."""
    blocks: list[Tensor] = []
    record = carry_out(request, weights=weights, device="cpu", on_frames=blocks.append, **how)
    return torch.cat(blocks), record


def interrupted(request: Request, weights: Path, num_blocks: int, **how: str) -> list[object]:
    """Ends a run with Ctrl-C after some blocks of frames; what ``on_kept`` was told."""
    told: list[object] = []
    left = iter(range(num_blocks - 1))

    def on_frames(frames: Tensor) -> None:
        if next(left, None) is None:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        carry_out(
            request,
            weights=weights,
            device="cpu",
            on_frames=on_frames,
            on_kept=lambda folder, num: told.append((folder, num)),
            **how,
        )
    return told


def named(request: Request, suffix: str) -> Request:
    return request.changed(out=str(Path(request.output.out).with_suffix(suffix)))


def elsewhere(request: Request, tmp_path: Path) -> Request:
    """The same request for another folder, to compare with."""
    (tmp_path / "whole").mkdir()
    return request.changed(out=str(tmp_path / "whole" / Path(request.output.out).name))


def again(request: Request, **changes: object) -> Request:
    return request.changed(resume=True, **changes)


def left_behind(request: Request) -> set[str]:
    return {
        path.name for path in Path(request.output.out).parent.iterdir() if ".m4s" not in path.name
    }


@pytest.fixture
def num_sampled(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Chunks that were sampled, and not taken from before."""
    numbers: list[int] = []
    make = generator_module.make_chunk

    def count(velocity_of, prefixes, chunk, settings, seeds):
        numbers.append(chunk.index)
        return make(velocity_of, prefixes, chunk, settings, seeds)

    monkeypatch.setattr(generator_module, "make_chunk", count)
    return numbers


@pytest.fixture
def personal(weights: Path, tmp_path: Path) -> Path:
    """Weights that read a reference and denoise motion."""
    folder = tmp_path / "personal"
    shutil.copytree(weights, folder)
    card = json.loads((folder / "card.json").read_text())
    card["can"] |= {"reference": True, "motion": True}
    (folder / "card.json").write_text(json.dumps(card))
    return folder


# --- the same video ---


@pytest.mark.parametrize(("suffix", "num_blocks"), ENDS)
def test_a_killed_run_goes_on_to_the_same_frames(
    request_: Request,
    weights: Path,
    tmp_path: Path,
    num_sampled: list[int],
    suffix: str,
    num_blocks: int,
) -> None:
    request = named(request_, suffix).changed(watermark=True)
    words = [json.dumps(dataclasses.asdict(request)), str(weights), str(num_blocks)]
    assert run_script(KILLED, *words).returncode == -signal.SIGKILL
    folder = kept_folder(request.output.out)
    assert num_kept(folder) == (1 if num_blocks == 1 else 2)
    kept = num_kept(folder)
    if suffix == ".mp4":
        assert left_behind(request) == {folder.name}
    frames, record = whole(again(request), weights)
    assert num_sampled == list(range(kept, NUM_CHUNKS))
    assert record.resumed_chunks == kept
    other = elsewhere(request, tmp_path)
    expected, in_one = whole(other, weights)
    assert in_one.resumed_chunks == 0
    assert record.watermark == in_one.watermark is not None
    assert torch.equal(frames, expected)
    assert_same_pictures(request.output.out, other.output.out)
    assert left_behind(request) == left_behind(other)
    assert folder.name not in left_behind(request)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_motion_reference_anchor_and_fresh_noise_go_on_too(
    request_: Request, personal: Path, tmp_path: Path, precision: str
) -> None:
    request = request_.changed(overshoot=0.5, guidance_reference=1.5, anchor=True)
    expected, _ = whole(elsewhere(request, tmp_path), personal, precision=precision)
    for num_blocks in (1, 3):
        interrupted(request, personal, num_blocks, precision=precision)
        frames, record = whole(again(request), personal, precision=precision)
        assert record.resumed_chunks == (1 if num_blocks == 1 else 2)
        assert torch.equal(frames, expected)
        Path(request.output.out).unlink()
        Path(request.output.out).with_suffix(".json").unlink()


def test_a_run_that_was_killed_twice_or_before_its_first_chunk(
    request_: Request, weights: Path, tmp_path: Path, num_sampled: list[int]
) -> None:
    expected, _ = whole(elsewhere(request_, tmp_path), weights)
    folder = kept_folder(request_.output.out)
    folder.mkdir()  # what a kill while the weights load leaves
    (folder / "request.json").write_text("{}")
    (folder / "lock").touch()
    num_sampled.clear()
    interrupted(request_, weights, 1)
    interrupted(again(request_), weights, 3)
    frames, record = whole(again(request_), weights)
    assert torch.equal(frames, expected)
    assert num_sampled == [0, 1, 2]
    assert record.resumed_chunks == 2


def test_a_kill_between_the_video_and_its_record(request_: Request, weights: Path) -> None:
    interrupted(request_, weights, 4)
    assert num_kept(kept_folder(request_.output.out)) == NUM_CHUNKS
    Path(request_.output.out).write_bytes(b"of this run")
    _, record = whole(again(request_), weights)
    assert record.resumed_chunks == NUM_CHUNKS
    assert left_behind(request_) == {"out.mp4", "out.json"}
    assert len(played(request_.output.out)) == 32


def test_a_full_disk_is_one_error_and_loses_no_chunk(
    request_: Request, weights: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write, names = resume_module._write, []

    def full(path: Path, data: bytes) -> None:
        names.append(path.name)
        if path.name.startswith("000001"):
            raise OSError(28, "No space left on device", str(path))
        write(path, data)

    monkeypatch.setattr(resume_module, "_write", full)
    with pytest.raises(OSError, match="No space left on device"):
        carry_out(request_, weights=weights, device="cpu")
    assert names == ["request.json", "000000.safetensors", "000001.safetensors"]
    monkeypatch.undo()
    frames, record = whole(again(request_), weights)
    assert record.resumed_chunks == 1
    assert torch.equal(frames, whole(elsewhere(request_, tmp_path), weights)[0])


# --- what is refused ---


def test_what_is_left_needs_a_word(request_: Request, weights: Path) -> None:
    folder = kept_folder(request_.output.out)
    assert interrupted(request_, weights, 1) == [(folder, 1)]
    assert left_behind(request_) == {folder.name}
    with pytest.raises(ValueError, match=r"pass --resume to go on .*, or --overwrite to start"):
        carry_out(request_, weights=weights)
    _, record = whole(request_.changed(overwrite=True), weights)
    assert record.resumed_chunks == 0
    assert left_behind(request_) == {"out.mp4", "out.json"}
    with pytest.raises(ValueError, match=r"out\.mp4 exists; pass --overwrite"):
        carry_out(again(request_), weights=weights)


def test_the_command_says_how_to_go_on(
    request_: Request,
    weights: Path,
    capsys: pytest.CaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    words = ["generate", "--reference", request_.person.reference, "--audio", request_.person.audio]
    words += [
        "--out",
        request_.output.out,
        "--weights",
        str(weights),
        "--steps",
        "1",
        "--no-face-crop",
    ]
    push, num_pushed = generator_module.decoded, 0

    def interrupt(video: Tensor, chunk: int) -> Tensor:
        nonlocal num_pushed
        num_pushed += 1
        if num_pushed == 3:
            raise KeyboardInterrupt
        return push(video, chunk)

    monkeypatch.setattr(generator_module, "decoded", interrupt)
    assert cli.main(words) == 130
    error = " ".join(capsys.readouterr().err.split())
    assert "kept 2 chunks in" in error
    assert "the same command with --resume goes on" in error
    assert cli.main([*words, "--resume"]) == 0
    assert left_behind(request_) == {"out.mp4", "out.json"}


def test_another_request_is_told_what_differs(
    request_: Request, weights: Path, tmp_path: Path
) -> None:
    interrupted(request_, weights, 1)
    speech = Path(request_.person.audio)
    other = tmp_path / "other.wav"
    data = bytearray(speech.read_bytes())
    data[2_000] ^= 1
    other.write_bytes(data)
    same = tmp_path / "same.wav"
    same.write_bytes(speech.read_bytes())
    for changes, message in [
        ({"seed": 7}, "of another request: seed was 0, is 7; repeat that one, or start anew"),
        ({"num_steps": 3, "prompt": "x"}, "prompt was '', is 'x', num_steps was 2, is 3;"),
        ({"audio": str(other)}, "another request: sound was '[0-9a-f]{8}', is '[0-9a-f]{8}';"),
    ]:
        with pytest.raises(ValueError, match=message):
            carry_out(again(request_, **changes), weights=weights, device="cpu")
    kind = chosen_precision("auto", torch.device("cpu"))  # bf16 where the hardware has it
    other_kind = {"fp32": "bf16", "bf16": "fp32"}[kind]
    with pytest.raises(ValueError, match=f"precision was '{kind}', is '{other_kind}';"):
        carry_out(again(request_), weights=weights, device="cpu", precision=other_kind)
    assert num_kept(kept_folder(request_.output.out)) == 1
    _, record = whole(again(request_, audio=str(same)), weights)  # the same sound by another name
    assert record.resumed_chunks == 1


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"audio": "-"}, r"--resume: a live sound \(--audio -\) is gone; pass the sound as a file"),
        ({"out": "-"}, r"--resume goes on with an \.mp4 or \.m3u8, not with -"),
        ({"out": "rtmp://a/b/c"}, "not with rtmp://a/b/c"),
    ],
)
def test_what_cannot_be_resumed(
    request_: Request, weights: Path, changes: dict[str, str], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        carry_out(again(request_, **changes), weights=weights)


def test_two_processes_do_not_make_one_video(request_: Request, weights: Path) -> None:
    def meet(frames: Tensor) -> None:
        with pytest.raises(ValueError, match="another process is making this video"):
            carry_out(again(request_), weights=weights, device="cpu")

    carry_out(request_, weights=weights, device="cpu", on_frames=meet)
    assert left_behind(request_) == {"out.mp4", "out.json"}


@pytest.mark.parametrize("damage", ["cut", "renamed", "nan"])
def test_damaged_chunks_are_named(request_: Request, weights: Path, damage: str) -> None:
    interrupted(request_, weights, 1)
    (chunk,) = kept_folder(request_.output.out).glob("*.safetensors")
    if damage == "cut":
        chunk.write_bytes(chunk.read_bytes()[:100])
    else:
        state = load_file(chunk)
        odd = {"7": state["0"]} if damage == "renamed" else {"0": state["0"] * torch.nan}
        save_file(odd, chunk)
    with pytest.raises(ValueError, match=r"000000\.safetensors is damaged .* start anew with"):
        carry_out(again(request_), weights=weights, device="cpu")
    (chunk.parent / "request.json").unlink()
    with pytest.raises(ValueError, match=r"no readable request\.json; start anew with --overwrite"):
        carry_out(again(request_), weights=weights, device="cpu")
