"""bench/controls.py and the options of our own generator as a system."""

import dataclasses
from pathlib import Path

import pytest
import torch

from avatar_v.media.reading import read_audio, read_video
from avatar_v_eval.bench.controls import (
    CONTROLS,
    blurred,
    coded,
    cropped,
    late,
    still,
    unsynced,
    write_controls,
)
from avatar_v_eval.bench.manifest import BenchManifest, load_manifest
from avatar_v_eval.bench.own_system import parse_options
from avatar_v_eval.bench.systems import parse_system
from avatar_v_eval.bench.world70 import DrawnSet
from avatar_v_eval.cli import main
from bench_cases import make_manifest


@pytest.fixture(scope="module")
def manifest(tmp_path_factory: pytest.TempPathFactory) -> BenchManifest:
    plan = DrawnSet(name="w", num_cases=2, num_frames=26, first=11, size=64)
    return make_manifest(tmp_path_factory.mktemp("made") / "w", plan)


def test_each_control_spoils_one_thing():
    frames = torch.randint(0, 256, (6, 3, 32, 32), dtype=torch.uint8)
    assert torch.equal(still(frames), frames[[0] * 6])
    assert torch.equal(unsynced(frames), frames[[3, 4, 5, 0, 1, 2]])
    soft = blurred(frames)
    assert soft.shape == frames.shape
    assert soft.dtype == torch.uint8
    assert float(soft.float().std()) < 0.5 * float(frames.float().std())  # fine detail is gone
    assert abs(float(soft.float().mean() - frames.float().mean())) < 2  # brightness is not
    assert torch.equal(late(frames), frames[[0, 0, 1, 2, 3, 4]])
    ramp = torch.arange(32, dtype=torch.uint8).expand(1, 3, 32, 32)
    assert 0 < float((coded(8 * ramp).float() - 8 * ramp.float()).abs().mean()) < 8
    assert (cropped(ramp)[..., 0] == 1).all()
    assert (cropped(ramp)[..., -1] == 31).all()
    with pytest.raises(ValueError, match="2 x 2"):
        blurred(frames[..., :2, :2])


def test_controls_are_written_for_all_cases_with_the_right_sound(
    manifest: BenchManifest, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    assert main(["cases", "controls", str(manifest.root), "--out", str(tmp_path)]) == 0
    said = capsys.readouterr()
    assert [Path(line).name for line in said.out.splitlines()] == [c.name for c in CONTROLS]
    assert not said.err, "a progress bar leaves nothing in a file"
    case = manifest.cases[1]
    truth = manifest.path(case, "truth")
    for control in CONTROLS:
        path = tmp_path / control.name / f"{case.id}.mp4"
        frames = read_video(path)
        # H.264 twice, at crf 16
        wanted = control.change(read_video(truth)).float()
        assert float((frames.float() - wanted).abs().mean()) < 6
        if control.name not in ("coded", "late", "cropped"):
            assert float((frames.float() - read_video(truth).float()).abs().mean()) > 0.5
        sounds = read_audio(path), read_audio(truth)
        num = min(map(len, sounds))
        both = torch.stack([sound[:num] for sound in sounds])
        assert float(torch.corrcoef(both)[0, 1]) > 0.95
    before = (tmp_path / "still" / f"{case.id}.mp4").stat().st_mtime_ns
    write_controls(manifest, tmp_path)
    assert (tmp_path / "still" / f"{case.id}.mp4").stat().st_mtime_ns == before


def test_controls_need_true_videos(tmp_path: Path, manifest: BenchManifest):
    case = dataclasses.replace(manifest.cases[0], truth=None)
    bare = dataclasses.replace(load_manifest(manifest.root), cases=(case,))
    with pytest.raises(ValueError, match="without one: w_00"):
        write_controls(bare, tmp_path / "none")
    assert not (tmp_path / "none").exists()


def test_our_generator_takes_options(tmp_path: Path):
    assert parse_options("num_steps=12&reference_s=0.5&motion=meter") == {
        "num_steps": 12, "reference_s": 0.5, "motion": "meter",
    }  # fmt: skip
    assert parse_options("precision=fp32") == {"precision": "fp32"}
    assert parse_options("") == {}
    for text, words in (
        ("steps=3", "steps"),
        ("seed=1&seed=2", "seed"),
        ("seed=one", "seed=one"),
        ("precision=fp8", "precision is one of auto, fp32, bf16, got 'fp8'"),
    ):
        with pytest.raises(ValueError, match=words):
            parse_options(text)
    image = parse_system("image=pipeline:small?reference_s=0", tmp_path, 1.0)
    video = parse_system("video=pipeline:small", tmp_path, 1.0)
    assert image.source != video.source
    with pytest.raises(ValueError, match="at most once"):
        parse_system("x=pipeline:small?speed=9", tmp_path, 1.0)
