"""The demonstration: its files, its two videos and the score it prints."""

import dataclasses
import json
import shutil
from pathlib import Path

import pytest
import torch
from PIL import Image

from avatar_v.critics.motion import MotionMeter
from avatar_v.demo.showcase import Cast, lip_sync, showcase
from avatar_v.faces import face_track
from avatar_v.inputs.framing import NOT_LOOKED_FOR
from avatar_v.media.reading import read_video


def test_demo_writes_its_files(weights: Path, tmp_path: Path) -> None:
    meter = tmp_path / "meter"
    torch.manual_seed(0)
    MotionMeter().save_pretrained(meter)
    cast = Cast(person=3, scene=4, speech=5, num_frames=50)
    (tmp_path / "demo").mkdir()
    for name in ("out.mp4", "out.json", "reference.mp4", "sheet.png"):  # of a demo before
        (tmp_path / "demo" / name).write_bytes(b"old")
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


def test_demo_shows_what_a_reference_video_adds(
    weights: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Weights that read a reference also speak from one picture, and the two differ. Without dlib:
    drawn people need none."""
    monkeypatch.setattr(face_track, "is_available", lambda: False)
    folder = tmp_path / "personal"
    shutil.copytree(weights, folder)
    card = json.loads((folder / "card.json").read_text())
    (folder / "card.json").write_text(
        json.dumps({**card, "can": {**card["can"], "reference": True}})
    )
    cast = Cast(person=3, scene=4, speech=5, num_frames=50)
    record, _ = showcase(tmp_path / "demo", cast, num_steps=1, weights=folder)
    assert record.warnings.count(NOT_LOOKED_FOR) == 1
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
