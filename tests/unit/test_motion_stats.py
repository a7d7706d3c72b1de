"""Motion statistics: the file, how they are computed, and who must have them."""

import dataclasses
import json
from pathlib import Path

import pytest
import torch
from test_checks import OBJECTIVE, OPTIM

from avatar_v.cli import main
from avatar_v.motion.stats import MotionStats, read_stats, same_units, write_stats
from avatar_v.motion.style import motion_moments, style_shrinking, style_statistics
from avatar_v.motion.vectors import pack_motion
from avatar_v.objectives.a2v import A2V
from avatar_v.shards.datamodule import ShardData
from avatar_v.shards.loader import read_clip, read_folder
from avatar_v.shards.motion_stats import ClipMotion, motion_stats, stats_of_folder
from avatar_v.training.settings import Models
from avatar_v.types import MOTION_NAMES
from avatar_v.weights.card import Capabilities, Card
from avatar_v.weights.presets import build
from avatar_v.weights.random import motion_stats as shipped
from avatar_v.weights.weights import load_pipeline, save_pipeline
from avatar_v_data.world_set import write_world
from avatar_v_data.world_settings import WorldSettings
from tiny_run import make_shards

NUM = len(MOTION_NAMES)
ALL = torch.ones(NUM, dtype=torch.bool)


def clip(person: str, seed: int, *, known: torch.Tensor = ALL, told: torch.Tensor = ALL):
    generator = torch.Generator().manual_seed(seed)
    motion = (1 + seed % 3) * torch.randn(41, NUM, generator=generator) + 0.3 * seed
    valid = torch.rand(41, generator=generator) > 0.2
    return ClipMotion(person, motion, valid, known, told)


def test_the_file_gives_back_the_same_numbers(tmp_path: Path) -> None:
    stats = dataclasses.replace(shipped(), mean=torch.randn(NUM), num_people=7)
    write_stats(tmp_path, stats)
    found = read_stats(tmp_path)
    assert same_units(found, stats)
    assert (found.num_clips, found.num_people) == (stats.num_clips, 7)
    assert same_units(read_stats(tmp_path / "motion.json"), stats)


@pytest.mark.parametrize("change", ["missing", "order", "deviation"])
def test_a_damaged_file_is_one_clear_error(tmp_path: Path, change: str) -> None:
    write_stats(tmp_path, shipped())
    path = tmp_path / "motion.json"
    values = json.loads(path.read_text())
    if change == "missing":
        del values["components"][0]["mean"]
    elif change == "order":
        values["components"].reverse()
    else:
        values["components"][3]["deviation"] = 0.0
    path.write_text(json.dumps(values))
    with pytest.raises(ValueError, match=r"motion\.json"):
        read_stats(tmp_path)


def test_statistics_are_those_of_visible_frames_and_of_people() -> None:
    clips = [clip("a", 0), clip("b", 1), clip("a", 2), clip("c", 4)]
    found = motion_stats(lambda: clips)
    seen = torch.cat([one.motion[one.valid] for one in clips]).double()
    torch.testing.assert_close(found.mean, seen.mean(0).float())
    torch.testing.assert_close(found.deviation, seen.std(0, correction=0).float())
    rows, raw = [], []
    for person in "abc":
        total = torch.zeros(1, 1 + 4 * NUM)
        for one in (one for one in clips if one.person == person):
            packed = pack_motion(one.motion[None], found)
            whole = one.valid[1:].unflatten(0, (10, 4)).all(1)
            valid = torch.cat([one.valid[:1], whole])[None]
            total += motion_moments(packed, valid, found)
        rows.append(style_statistics(total)[0])
        raw.append(rows[-1] / style_shrinking(total[:, :1])[0])
    expected = torch.stack(rows).std(0).clamp_min(0.05)
    torch.testing.assert_close(found.style_deviation, expected, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(found.style_average, torch.stack(raw).mean(0), atol=1e-5, rtol=1e-4)
    assert (found.num_clips, found.num_people) == (4, 3)


def test_what_nobody_tells_and_what_never_moves_keeps_its_own_unit() -> None:
    known, told = ALL.clone(), ALL.clone()
    known[4] = told[4] = told[5] = False
    clips = [clip(person, i, known=known, told=told) for i, person in enumerate("ab")]
    for one in clips:
        one.motion[:, 2] = 0.25
    found = motion_stats(lambda: clips)
    assert float(found.mean[2]) == 0.25
    assert float(found.deviation[2]) == 1
    assert (float(found.mean[4]), float(found.deviation[4])) == (0, 1)
    both = (found.style_average, found.style_deviation)
    average, differ = (x.unflatten(0, (4, NUM)) for x in both)
    for index in (4, 5):
        assert not average[:, index].any()
        assert bool((differ[:, index] == 1).all())
    with pytest.raises(ValueError, match="two people"):
        motion_stats(lambda: clips[:1])


def test_the_command_writes_what_shards_say(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    make_shards(tmp_path)
    assert main(["shards", "stats", "shards/tiny/train", "--out", "motion.json"]) == 0
    assert "8 clips of 4 people" in capsys.readouterr().out
    assert same_units(read_stats("motion.json"), stats_of_folder("shards/tiny/train"))
    assert main(["shards", "stats", "shards/tiny/train", "--out", "nowhere/motion.json"]) == 2
    assert "nowhere" in capsys.readouterr().err


def test_weights_that_know_motion_come_with_its_statistics(tmp_path: Path) -> None:
    card = Card("tiny", can=Capabilities(motion=True))
    with pytest.raises(ValueError, match="statistics"):
        save_pipeline(tmp_path / "without", *build("tiny"), card)
    folder = tmp_path / "weights"
    save_pipeline(folder, *build("tiny", motion_stats=shipped()), card)
    dit, conditioner = load_pipeline(folder)
    assert dit.motion_stats is not None
    assert dit.motion_stats is conditioner.motion_stats
    assert same_units(dit.motion_stats, shipped())
    (folder / "motion.json").unlink()
    with pytest.raises(ValueError, match="avatar-v shards stats"):
        load_pipeline(folder)


def test_a_pipeline_without_them_reads_no_motion_and_says_how_to_make_them() -> None:
    dit, conditioner = build("tiny")
    with pytest.raises(ValueError, match="avatar-v shards stats"):
        conditioner.pack_motion(torch.zeros(1, 5, NUM))
    with pytest.raises(ValueError, match="without motion statistics"):
        dit._embed_style(torch.zeros(1, 65))


def test_a_checkpoint_carries_them() -> None:
    stages = [
        A2V(Models("tiny", motion_stats=of), OPTIM, OBJECTIVE, 0.0, 0.0) for of in ("small", None)
    ]
    for stage in stages:
        stage.configure_model()
    checkpoint: dict = {}
    stages[0].on_save_checkpoint(checkpoint)
    assert stages[1].conditioner.motion_stats is None
    stages[1].on_load_checkpoint(checkpoint)
    found = stages[1].dit.motion_stats
    assert isinstance(found, MotionStats)
    assert same_units(found, shipped())


def test_drawn_shards_of_motion_alone_are_read_as_such(tmp_path: Path) -> None:
    """The motion, sound and validity of the clips that are drawn, in batches without pictures."""
    folders = {}
    for name, pictures in (("drawn", True), ("alone", False)):
        settings = WorldSettings(
            2, num_frames=9, size=32, clips_per_person=2, seed=5, pictures=pictures
        )
        write_world(settings, tmp_path / name)
        clips = read_folder(tmp_path / name)
        folders[name] = [read_clip(clip, decode_video=False) for clip in clips]
    for drawn, alone in zip(folders["drawn"], folders["alone"], strict=True):
        assert torch.equal(drawn.motion, alone.motion)
        assert torch.equal(drawn.audio, alone.audio)
        assert torch.equal(drawn.valid, alone.valid)
        assert (alone.video, alone.meta.height) == (None, 0)
    data = ShardData(str(tmp_path / "alone"), batch_size=2, pictures=False, pairs=True)
    data.setup()
    batch = next(iter(data.train_dataloader()))
    assert batch.video is None
    assert batch.latents is None
    assert batch.motion.shape == (2, 9, NUM)
    assert batch.reference is not None
    assert batch.person == batch.reference.person
    with pytest.raises(ValueError, match="close-ups"):
        WorldSettings(4, close_ups=True, pictures=False)
