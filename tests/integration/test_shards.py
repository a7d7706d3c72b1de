"""World → shards → latents → a look at them. The commands, end to end."""

import dataclasses
import os
import signal
import subprocess
import sys
from pathlib import Path

import matplotlib.image
import pytest
import torch

from avatar_v.models.vae import VideoVAE
from avatar_v.shards import pictures as pictures_module
from avatar_v.shards.datamodule import ShardData
from avatar_v.shards.encode import encode_folder
from avatar_v.shards.loader import read_clip, read_folder
from avatar_v.shards.pictures import FACE_CROPS, add_pictures, face_crops, ref_frames
from avatar_v.shards.schema import CLOSE_UPS, FACES, STILLS
from avatar_v.shards.writer import ClipEntry, read_index, write_shard
from avatar_v.types import Batch
from avatar_v.world import clip as world_clip
from avatar_v.world.redrawn import close_ups
from avatar_v.world.splits import RANGES
from avatar_v_data import world_set
from avatar_v_data.world_set import clip_ids, write_world
from avatar_v_data.world_settings import WorldSettings
from shard_command import run, wait_for

TINY = {"num_frames": 5, "size": 32, "clips_per_person": 2, "clips_per_shard": 3,
        "close_ups": True}  # fmt: skip
WORDS = "--clips 6 --frames 5 --size 32 --clips-per-person 2 --clips-per-shard 3 --close-ups"
"""The same for the command."""


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """6 clips of 3 persons in 2 shards, by 2 processes."""
    out = tmp_path_factory.mktemp("world")
    assert run("world", "--out", str(out), "--workers", "2", *WORDS.split()) == 0
    return out


@pytest.fixture(scope="module")
def vae_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(0)
    path = tmp_path_factory.mktemp("vae")
    VideoVAE.tiny().save_pretrained(path)
    return path


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def test_the_bytes_do_not_depend_on_processes_and_interruptions(
    world: Path, tmp_path: Path
) -> None:
    settings = WorldSettings(num_clips=6, **TINY)
    write_world(settings, tmp_path, num_workers=1)
    assert contents(tmp_path) == contents(world)
    kept, lost = sorted(tmp_path.glob("*.tar"))
    lost.unlink()
    lost.with_suffix(".index.json").unlink()  # as if stopped before the second shard
    before = kept.stat().st_mtime_ns
    heard: list[int] = []
    write_world(settings, tmp_path, num_workers=2, on_clip=heard.append)
    assert contents(tmp_path) == contents(world)
    assert kept.stat().st_mtime_ns == before
    assert heard[0] == 3
    assert heard[-1] == 6


def test_a_set_that_is_whole_is_kept_and_the_command_says_so(
    world: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = contents(world)
    capsys.readouterr()
    assert run("world", "--out", str(world), *WORDS.split()) == 0
    said = capsys.readouterr().out
    assert "6 clips in 2 shards" in said
    assert f"{world} (all kept from before; others need another --out and --seed)" in said
    assert contents(world) == before


def test_a_world_set_holds_the_world(world: Path) -> None:
    clips = read_folder(world)
    sample = read_clip(clips[4])
    person, scene, speech = clip_ids(WorldSettings(num_clips=6, **TINY), 4)
    truth = world_clip.make_clip(person, scene, speech, num_frames=5, size=32)
    assert sample.key == f"0000004_{person}_{scene}_{speech}"
    assert sample.meta.text == truth.text
    assert torch.equal(sample.motion, truth.motion)
    assert torch.equal(sample.phonemes.long(), truth.phonemes.long())
    assert sample.video is not None
    assert truth.video is not None
    # H.264 at crf 8 with grain: a few grey levels
    assert (sample.video.float() - truth.video.float()).abs().mean() < 4
    assert (sample.meta.licence, sample.meta.consent) == ("CC0-1.0", "synthetic")


def test_other_settings_and_foreign_folders_are_refused(world: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="other settings"):
        write_world(WorldSettings(num_clips=8, **TINY), world)
    (tmp_path / "a.tar").touch()
    with pytest.raises(ValueError, match="another origin"):
        write_world(WorldSettings(num_clips=6, **TINY), tmp_path)
    with pytest.raises(ValueError, match=r"a\.tar is a file; shards go into a folder"):
        write_world(WorldSettings(num_clips=6, **TINY), tmp_path / "a.tar")


def test_an_interrupt_ends_all_processes_without_a_traceback(tmp_path: Path) -> None:
    """As Ctrl-C in a terminal does it: everyone gets the signal, here while workers begin.
    A shell that runs the tests in the background would have them ignore it."""
    words = ["world", "--clips", "400", "--frames", "25", "--workers", "2", "--out"]
    command = [sys.executable, "-m", "avatar_v_data.cli", *words, str(tmp_path / "out")]
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    ) as job:
        wait_for(lambda: (tmp_path / "out").exists())
        os.killpg(job.pid, signal.SIGINT)
        _, error = job.communicate(timeout=60)
    # By the signal itself where it met an exec(), as a dataclass being made: CPython's way with -m.
    assert job.returncode in (130, -signal.SIGINT)
    *bar, last = error.strip().splitlines()
    assert last == "avatar-v-data: interrupted"
    assert all("world train" in line for line in bar)
    assert not list((tmp_path / "out").glob(".*.tmp"))


@pytest.mark.parametrize(
    "change",
    [
        {"split": "reserved"},
        {"num_frames": 6},
        {"clips_per_person": 1},
        {"num_clips": 1},
        {"clips_per_shard": 0},
        {"seed": -1},
    ],
)
def test_world_settings_are_checked(change: dict) -> None:
    with pytest.raises(ValueError, match=r"\d|reserved"):
        WorldSettings(**{"num_clips": 6, **TINY, **change})


@pytest.mark.parametrize("size", [0, 24, 36, 80_000])
def test_the_size_of_pictures_is_checked_before_one_is_drawn(size: int) -> None:
    with pytest.raises(ValueError, match=rf"^--size is a multiple of 8 from 32 .* got {size}$"):
        WorldSettings(**{"num_clips": 6, **TINY, "size": size})


@pytest.mark.parametrize("num_clips", [8, 1000, 1003])
@pytest.mark.parametrize("split", ["train", "validation", "test"])
def test_every_person_is_in_several_scenes_of_the_split(num_clips: int, split) -> None:
    settings = WorldSettings(num_clips=num_clips, split=split, clips_per_person=4, seed=5)
    ids = [clip_ids(settings, index) for index in range(num_clips)]
    assert all(value in RANGES[split] for clip in ids for value in clip)
    scenes: dict[int, list[int]] = {}
    for person, scene, _ in ids:
        scenes.setdefault(person, []).append(scene)
    assert len(scenes) == num_clips // 4
    assert all(len(set(of)) == len(of) >= 4 for of in scenes.values())
    assert len({speech for _, _, speech in ids}) == num_clips


def test_a_clip_that_fails_is_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = world_set.make_sample

    def failing(settings: WorldSettings, index: int):
        if index == 1:
            raise ZeroDivisionError("no light")
        return real(settings, index)

    monkeypatch.setattr(world_set, "make_sample", failing)
    settings = WorldSettings(num_clips=3, **TINY)
    index = write_shard(tmp_path / "a.tar", world_set._items(settings, 0))
    assert len(index.clips) == 2
    (failure,) = read_index(tmp_path / "a.index.json").failures
    assert (failure.key, failure.reason) == ("clip 1", "ZeroDivisionError: no light")


def test_latents_are_the_vae_s_and_the_rest_is_copied(
    world: Path, vae_path: Path, tmp_path: Path
) -> None:
    words = ("encode", "--shards", str(world), "--vae", str(vae_path), "--threads", "1")
    assert run(*words, "--out", str(tmp_path / "both"), "--batch-size", "2") == 0
    vae = VideoVAE.from_pretrained(vae_path)
    for old, new in zip(read_folder(world), read_folder(tmp_path / "both"), strict=True):
        before, after = read_clip(old), read_clip(new)
        assert after.meta.vae_hash == new.vae_hash == vae.hash()
        assert before.video is not None
        assert after.video is not None
        assert torch.equal(before.video, after.video)  # not encoded twice
        assert after.latents is not None
        with torch.inference_mode():
            expected = vae.encode(before.video[None].float() / 127.5 - 1)[0]
        # fp16 has 11 bits: 0.05 % of values that are about 1
        assert torch.allclose(after.latents.float(), expected, rtol=1e-3, atol=1e-3)
    assert run(*words, "--out", str(tmp_path / "both")) == 0  # finished shards are kept
    with pytest.raises(ValueError, match="other settings"):
        run(*words, "--out", str(tmp_path / "both"), "--drop-video")
    with pytest.raises(ValueError, match="another folder"):
        run(*words, "--out", str(world))
    assert run(*words, "--out", str(tmp_path / "latents"), "--drop-video") == 0
    with pytest.raises(ValueError, match="no video to encode"):
        run("encode", "--shards", str(tmp_path / "latents"), "--out", "x", "--vae", str(vae_path))
    data = ShardData(
        str(tmp_path / "latents"), 2, decode_video=False, pairs=True, vae_hash=vae.hash()
    )
    batch = next(iter(data.train_dataloader()))
    assert batch.latents is not None
    assert batch.latents.shape == (2, 2, vae.latent_channels, 4, 4)
    assert batch.reference is not None
    assert batch.reference.person == batch.person
    assert set(batch.reference.scene).isdisjoint(batch.scene) or batch.person[0] == batch.person[1]


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"device": "banana"}, "--device banana: no such kind of device"),
        ({"num_threads": 0}, "--threads is a whole number from 1 to .*, got 0"),
        ({"num_threads": -1}, "--threads is a whole number from 1 to .*, got -1"),
    ],
)
def test_a_machine_that_is_not_there_is_refused_before_anything_is_written(
    world: Path, vae_path: Path, tmp_path: Path, change: dict, text: str
) -> None:
    with pytest.raises(ValueError, match=text):
        encode_folder(world, tmp_path / "out", vae_path, **change)
    assert not (tmp_path / "out").exists()
    with pytest.raises(ValueError, match=text):
        add_pictures(FACE_CROPS, world, vae_path, **change)


def test_show_prints_and_pictures(
    world: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("show", str(world), "-n", "2", "--out", str(tmp_path / "sheet.png")) == 0
    printed = capsys.readouterr().out
    for clip in (read_folder(world)[0], read_folder(world)[5]):
        assert clip.key in printed
        assert read_clip(clip).meta.text in printed
    assert matplotlib.image.imread(tmp_path / "sheet.png").std() > 0.1
    with pytest.raises(ValueError, match=r"\.png"):
        run("show", str(world), "--out", "sheet.tiff")
    with pytest.raises(ValueError, match="no finished shards"):
        run("show", str(tmp_path / "nowhere"))


@pytest.fixture
def encoded(world: Path, vae_path: Path, tmp_path: Path) -> Path:
    """The world set with latents."""
    words = ("--shards", str(world), "--out", str(tmp_path / "encoded"), "--vae", str(vae_path))
    assert run("encode", *words, "--threads", "1") == 0
    return tmp_path / "encoded"


def added(kind: str, encoded: Path, vae_path: Path) -> tuple[list[ClipEntry], Batch]:
    """The clips behind `avatar-v shards faces` or `stills`, whose other members are what they were,
    and a batch of references."""
    before = [read_clip(clip) for clip in read_folder(encoded)]
    words = ("--shards", str(encoded), "--vae", str(vae_path), "--threads", "1")
    assert run(kind, *words) == 0
    clips = read_folder(encoded)
    for old, clip in zip(before, clips, strict=True):
        new = read_clip(clip)
        assert new.meta == old.meta
        for name in ("audio", "motion", "latents", "valid", "face_box"):
            assert torch.equal(getattr(new, name), getattr(old, name)), name
    data = ShardData(str(encoded), 2, decode_video=False, pairs=True)
    batch = next(iter(data.train_dataloader()))
    assert batch.reference is not None
    return clips, batch.reference


def test_faces_are_added_to_latents_and_nothing_else_changes(
    encoded: Path, vae_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    clips, reference = added("faces", encoded, vae_path)
    assert "6 clips with faces" in capsys.readouterr().out
    vae = VideoVAE.from_pretrained(vae_path)
    for clip in clips:
        new = read_clip(clip)
        assert new.faces is not None
        assert new.face_frames is not None
        assert new.face_frames.tolist() == [0, 1, 3, 4]  # 4 of 5, evenly
        person, scene, speech = (int(name) for name in clip.key.split("_")[1:])
        pictures = close_ups(person, scene, speech, new.motion[new.face_frames.long()], size=32)
        with torch.inference_mode():
            expected = vae.encode(pictures[:, None].float() / 127.5 - 1)[:, 0]
        assert torch.allclose(new.faces.float(), expected, rtol=1e-3, atol=1e-3)  # fp16
    assert reference.faces is not None
    assert reference.faces.shape == (2, 4, vae.latent_channels, 4, 4)


def test_adding_faces_goes_on_where_it_stopped(
    encoded: Path, vae_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ("faces", "--shards", str(encoded), "--vae", str(vae_path), "--threads", "1")
    real, calls = pictures_module.pictures_member, []

    def stopping(*args):
        calls.append(args)
        if len(calls) == 5:  # in the second shard
            raise KeyboardInterrupt
        return real(*args)

    monkeypatch.setattr(pictures_module, "pictures_member", stopping)
    with pytest.raises(KeyboardInterrupt):
        run(*words)
    assert [FACES in clip.members for clip in read_folder(encoded)] == [True] * 3 + [False] * 3
    assert run(*words) == 0
    assert len(calls) == 5 + 3
    assert all(FACES in clip.members for clip in read_folder(encoded))
    assert run(*words) == 0
    assert len(calls) == 8


def test_faces_without_their_latents_are_refused(
    world: Path, encoded: Path, vae_path: Path, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=r"world-train-000000\.tar, clip .*no latents"):
        run("faces", "--shards", str(world), "--vae", str(vae_path))
    torch.manual_seed(1)
    VideoVAE.tiny().save_pretrained(tmp_path / "other")
    with pytest.raises(ValueError, match="pictures go beside latents of VAE"):
        run("faces", "--shards", str(encoded), "--vae", str(tmp_path / "other"))


def test_face_crops_without_close_ups_are_cut_out_of_the_video(world: Path) -> None:
    sample = read_clip(read_folder(world)[0])
    real = dataclasses.replace(sample, close_ups=None, close_up_frames=None)
    pictures, frames = face_crops(real)
    drawn, same = face_crops(sample)
    assert torch.equal(frames, same)
    assert pictures.shape == drawn.shape == (4, 3, 32, 32)
    # the same faces, sharper where they are drawn again; other crops differ by 30 and more
    assert (pictures.float() - drawn.float()).abs().mean() < 15
    hidden = dataclasses.replace(real, valid=torch.zeros(5, dtype=torch.bool))
    assert face_crops(hidden)[0].shape == (0, 3, 32, 32)
    with pytest.raises(ValueError, match="no video to take pictures"):
        face_crops(dataclasses.replace(real, video=None))


def test_stills_are_added_to_latents_and_nothing_else_changes(
    encoded: Path, vae_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    clips, reference = added("stills", encoded, vae_path)
    assert "6 clips with stills" in capsys.readouterr().out
    for clip in clips:
        new = read_clip(clip)
        assert new.faces is None
        assert new.latents is not None
        assert new.stills is not None
        assert new.still_frames is not None
        assert new.still_frames.tolist() == [0, 1, 2, 3, 4]  # 16 are asked for
        assert new.stills.shape == (5, *new.latents.shape[1:])
    assert reference.stills is not None
    assert reference.stills.shape[:2] == (2, 5)


def test_reference_frames_are_frames_of_the_video(world: Path) -> None:
    sample = read_clip(read_folder(world)[0])
    assert sample.video is not None
    pictures, frames = ref_frames(sample)
    assert torch.equal(pictures, sample.video[frames])
    with pytest.raises(ValueError, match="no video to take pictures"):
        ref_frames(dataclasses.replace(sample, video=None))
    hidden = dataclasses.replace(sample, valid=torch.zeros(5, dtype=torch.bool))
    assert ref_frames(hidden)[0].shape == (0, 3, 32, 32)


def test_encode_adds_pictures_when_asked(world: Path, vae_path: Path, tmp_path: Path) -> None:
    out = str(tmp_path / "out")
    words = ("encode", "--shards", str(world), "--out", out, "--vae", str(vae_path), "--faces")
    assert run(*words, "--stills", "--threads", "1", "--drop-video") == 0
    for clip in read_folder(out):
        assert {FACES, STILLS} <= set(clip.members)
        assert CLOSE_UPS not in clip.members
        assert not clip.has_video
    with pytest.raises(ValueError, match="other settings"):
        run(*words[:-1], "--threads", "1", "--drop-video")
