"""Signals of a clip: faults that are planted, and what a drawn face does."""

import dataclasses
import json
import random
import struct
from pathlib import Path

import numpy as np
import pytest
import torch

from avatar_v.faces.face_reader import READ
from avatar_v.media.outputs import build_output
from avatar_v.media.reading import probe, read_audio, read_video
from avatar_v.media.writer import Writer
from avatar_v.types import MOTION_NAMES, SAMPLES_PER_FRAME
from avatar_v.world.clip import make_clip
from avatar_v.world.splits import RANGES
from avatar_v_data import cli
from avatar_v_data.curation.expression import ExpressionStage, columns
from avatar_v_data.curation.plan import Limit
from avatar_v_data.curation.probe import ProbeStage
from avatar_v_data.curation.stages import TICK, Clip, FootageRecording, Seen
from avatar_v_data.curation.steadiness import SteadinessStage, repeats
from avatar_v_data.film_faults import FAULTS, plant
from avatar_v_data.footage_drawing import spoilt, write_footage
from avatar_v_data.world_faults import (
    ALTERED,
    BROKEN,
    PLANTED,
    draw_planted,
    write_altered,
    write_broken,
)
from avatar_v_data.world_footage import Fault, FootageSettings, plan_footage
from avatar_v_eval.studies.curation_faults import Scored, broken, copies, told
from avatar_v_eval.studies.curation_signals import faults, readings
from avatar_v_eval.studies.curation_truth import Truth

NUM = 60


@pytest.fixture(scope="module")
def talk():
    """Somebody who speaks in front of a room, and the box of the face."""
    first = RANGES["validation"][0]
    return make_clip(first + 3, first + 3, first + 3, num_frames=NUM, size=128)


def seen_of(talk) -> Seen:
    boxes = [talk.face_box[n].tolist() for n in range(0, NUM, TICK)]
    return Seen(FootageRecording("x", "x", ""), {"faces": {"boxes": boxes}})


@pytest.mark.parametrize(
    ("fault", "column"),
    [("shaky", "shake"), ("choppy", "repeats"), ("light", "light_change"),
     ("flicker", "light_flicker")],
)  # fmt: skip
def test_a_fault_shows_in_its_own_column(talk, fault: Fault, column: str) -> None:
    stage, limits = SteadinessStage(), {"shake": 1.5, "repeats": 0.2, "light_change": 0.4}
    limits["light_flicker"] = 0.035
    assert talk.video is not None
    found = [
        stage.score(Clip(0, 0, NUM, list(spoilt(talk.video, each, 1))), seen_of(talk))
        for each in ("", fault)
    ]
    assert all(found[0][name] < limit for name, limit in limits.items()), found[0]
    assert found[1][column] > limits[column]


def test_each_planted_fault_is_seen_or_heard() -> None:
    first = RANGES["validation"][0]
    ids = first, first + 1, first + 2, (first + 3, first + 4)
    drawn = {fault: draw_planted(fault, *ids, 10, 32, random.Random(0)) for fault in ("", *PLANTED)}
    frames, sound, motion = drawn[""]
    for fault, (seen, heard, moved) in drawn.items():
        assert (seen.shape, heard.shape, moved.shape) == (frames.shape, sound.shape, motion.shape)
        is_heard = fault in ("music", "voices")
        assert torch.equal(seen, frames) == (is_heard or not fault), fault
        assert torch.equal(heard, sound) != is_heard, fault
    yaw = MOTION_NAMES.index("yaw")
    assert drawn["turned"][2][:, yaw].abs().min() > 0.6 > motion[:, yaw].abs().max()


def test_the_height_of_a_turned_film_is_that_which_is_shown(tmp_path: Path) -> None:
    """A telephone writes its pictures on their side, and a matrix that says so."""
    film = tmp_path / "film.mp4"
    with Writer(build_output(str(film))) as writer:
        writer.write(torch.zeros(10, 3, 32, 64, dtype=torch.uint8), torch.zeros(6400))
    data, one = film.read_bytes(), 0x10000
    plain = struct.pack(">9i", one, 0, 0, 0, one, 0, 0, 0, 0x40000000)
    turned = struct.pack(">9i", 0, one, 0, -one, 0, 0, 32 * one, 0, 0x40000000)
    for matrix, height in ((plain, 32), (turned, 64)):
        at = data.index(plain, data.index(b"tkhd"))
        film.write_bytes(data[:at] + matrix + data[at + len(plain) :])
        reader = ProbeStage().begin(Seen(FootageRecording.of(film, "film.mp4")))
        assert reader.columns["height"] == height


def test_a_folder_holds_footage_of_one_kind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn = []
    monkeypatch.setattr(
        "avatar_v_data.footage_drawing._write_one",
        lambda settings, plan, out: drawn.append((out / plan.file).write_text("drawn")),
    )
    for _ in range(2):
        write_footage(FootageSettings(2, seconds=9.0), tmp_path)
    truth = (tmp_path / "truth.jsonl").read_text()
    for _ in range(2):
        with pytest.raises(ValueError, match="footage of other settings; choose another folder"):
            write_footage(FootageSettings(2, seconds=9.0, seed=5), tmp_path)
        (tmp_path / "footage.json").unlink(missing_ok=True)  # of before there was one
    assert (tmp_path / "truth.jsonl").read_text() == truth
    assert len(drawn) == 2


def test_a_planted_recording_holds_each_fault_once_and_has_its_copies() -> None:
    plain, settings = (
        FootageSettings(2, num_persons=4),
        FootageSettings(2, num_persons=4, num_planted=2),
    )
    plans = plan_footage(settings)
    assert plans[:2] == plan_footage(plain), "what was drawn before stays"
    first, *others = plans[2:]
    assert sorted(shot.fault for shot in first.shots if shot.fault) == sorted(PLANTED)
    assert len({one.file for one in plans}) == 2 + 2 * 8
    own = [one for one in others if one.copy_of == first.file]
    assert all(one.file > first.file for one in own), "the original stays, as the first by name"
    assert [one.altered or one.broken for one in own] == [
        "mirrored", "cropped", "slowed", "empty", "headless", "truncated", "mute"
    ]  # fmt: skip


def test_copies_and_broken_files_are_what_they_are_called(tmp_path) -> None:
    whole, made = tmp_path / "whole.mp4", tmp_path / "made.mp4"
    draw = torch.Generator().manual_seed(0)
    cells = torch.randint(256, (50, 3, 6, 8), generator=draw, dtype=torch.uint8)
    frames = cells.repeat_interleave(8, 2).repeat_interleave(8, 3)
    with Writer(build_output(str(whole))) as writer:
        writer.write(frames, torch.zeros(50 * 640))
    write_altered(whole, made, "mirrored", 0.0)
    assert (read_video(made).float() - frames.flip(3).float()).abs().mean() < 10
    write_altered(whole, made, "cropped", 0.1)
    assert read_video(made).shape == (50, 3, 38, 52)
    write_altered(whole, made, "slowed", 0.8)
    assert abs(len(read_video(made)) - 62) <= 1
    write_broken(whole, made, "mute")
    assert probe(made).no_audio
    assert not probe(made).no_video
    write_broken(whole, made, "truncated")
    assert not probe(made).no_audio
    assert 0 < len(read_video(made)) < 40
    for how in ("headless", "empty"):
        write_broken(whole, made, how)
        with pytest.raises(ValueError, match="made"):
            probe(made)


def test_what_does_not_move_does_not_stutter() -> None:
    assert repeats(torch.full((50,), 0.01)) == 0
    assert repeats(torch.tensor([0.0, 2.0] * 25)) == 0.5


def test_blinks_are_short_and_shut_eyes_are_long() -> None:
    read = torch.zeros(250, len(READ))
    eyes, gaze = READ.index("eye_open"), READ.index("gaze_x")
    read[:, eyes] = 0.9
    read[20:25, eyes] = read[100:104, eyes] = read[248:, eyes] = 0.1
    read[150:200, eyes] = 0.1
    read[:50, gaze] = -0.8
    found = columns(read)
    assert found["blinks"] == 60 * 3 / 10
    assert found["eyes_shut"] == 0.2
    assert found["gaze_away"] == 0.2
    assert found["teeth"] == 0


def test_a_drawn_face_is_read_as_it_was_drawn(talk) -> None:
    pytest.importorskip("dlib")
    clip = Clip(0, 0, NUM, list(talk.video))
    found = ExpressionStage().score(clip, seen_of(talk))
    true = columns(talk.motion[:, [MOTION_NAMES.index(name) for name in READ]])
    assert abs(found["mouth_open"] - true["mouth_open"]) < 0.2
    assert abs(found["gaze_away"] - true["gaze_away"]) < 0.2
    assert abs(found["teeth"] - true["teeth"]) < 0.3


def truth(kind: str, read: float, true: float) -> Truth:
    """A recording of one clip."""
    shot = {"start": 0, "stop": NUM, "kind": kind, "person": 1, "scene": 1}
    bad = 1.0 if kind == "shaky" else 0.1
    clip = {"start": 0, "stop": NUM, "shake": bad, "repeats": 0.0, "light_change": 0.0,
            "light_flicker": 0.0, "mouth_open": read, "mouth_movement": 0.0, "gaze_away": 0.0,
            "blinks": 0.0, "teeth": 0.0}  # fmt: skip
    motion = np.zeros((NUM, 16))
    motion[:, 0] = true
    return Truth("x", [shot], [[0, NUM]], [], [clip], "", 0, [], motion)


def test_the_study_compares_clips_with_what_was_drawn() -> None:
    truths = [truth("talk", 0.1 * n, 0.2 * n) for n in range(4)]
    numbers = faults([*truths, truth("shaky", 0, 0), truth("shaky", 0, 0)])
    assert set(numbers) == {"auc_shaky"}
    assert numbers["auc_shaky"].value == 1
    assert numbers["auc_shaky"].n == 6
    assert readings(truths)["read_mouth_open"].value == pytest.approx(1)


def test_the_study_counts_what_limits_refuse() -> None:
    values = {"talk": (0.9, 0.1, 0.1, 0.1), "music": (0.3, 1.0, 1.0)}
    shots = [
        Scored(unit, kind, {"turned": value})
        for kind, own in values.items()
        for unit, value in enumerate(own)
    ]
    found = told([*shots, Scored(0, "music", {})], "turned", Limit(max=0.5), ("music",))
    assert found["recall_turned_music"].value == pytest.approx(2 / 3)
    assert found["precision_turned"].value == pytest.approx(2 / 3)
    assert found["alarms_turned"].value == 1 / 4
    assert found["auc_turned_music"].value == pytest.approx(11 / 12)


def test_the_study_counts_copies_and_broken_files() -> None:
    whole = [truth("talk", 0, 0) for _ in range(2)]
    made = [
        dataclasses.replace(
            whole[0], altered=how, left_out=[[0, stop]], failed="shows what x shows"
        )
        for how in ALTERED
        for stop in (NUM, NUM // 2)
    ]
    found = copies([*whole, *made], whole)
    assert found["copies_mirrored"].value == 3 / 4
    assert found["copies_wrong"].value == 0
    made += [dataclasses.replace(whole[0], broken=how, failed="no sound") for how in BROKEN]
    made += [
        dataclasses.replace(whole[0], broken="mute"),
        dataclasses.replace(whole[0], failed="!"),
    ]
    found = broken([*whole, *made])
    assert found["broken_empty"].value == 1
    assert found["broken_mute"].value == 1 / 2
    assert found["broken_others"].value == 8 / 9


def test_faults_are_planted_in_films(tmp_path: Path) -> None:
    films = tmp_path / "films"
    films.mkdir()
    with pytest.raises(ValueError, match="expected films of two persons or more, got 0"):
        plant(films, tmp_path / "out", num_recordings=2)
    for number, size in enumerate((64, 96)):
        own = RANGES["validation"][number]
        clip = make_clip(own, own, own, num_frames=120, size=size)
        assert clip.video is not None
        video = clip.video if number else torch.cat([clip.video] * 2, 3)[..., :114]  # 16:9
        with Writer(build_output(str(films / f"{number}.mp4"))) as writer:
            writer.write(video, clip.audio)
    words = ["plant", str(films), "--recordings", "2", "--height", "64", "--out"]
    assert cli.main([*words, str(tmp_path / "out")]) == 0
    rows = [json.loads(line) for line in (tmp_path / "out" / "truth.jsonl").open()]
    for row in rows:
        shots = row["shots"]
        assert sorted(shot["fault"] for shot in shots) == sorted([*FAULTS, "", "", ""])
        assert {shot["person"] for shot in shots} == {0, 1}
        frames, sound = (f(tmp_path / "out" / row["file"]) for f in (read_video, read_audio))
        assert len(frames) == shots[-1]["stop"]
        assert len(sound) == pytest.approx(len(frames) * SAMPLES_PER_FRAME, abs=SAMPLES_PER_FRAME)
        assert frames.shape[2:] == (64, 128)
        by_fault = {shot["fault"]: frames[shot["start"]].float() for shot in shots}
        assert by_fault["slides"].std() < by_fault["subtitle"].std() * 2
        assert by_fault["slides"].mean() > 150, "a bright page"
    assert [r["file"] for r in rows] == ["planted-000.mp4", "planted-001.mp4"]
    again = tmp_path / "again"
    assert cli.main([*words, str(again)]) == 0
    assert (again / "planted-001.mp4").read_bytes() == (
        tmp_path / "out" / "planted-001.mp4"
    ).read_bytes()
    with Writer(build_output(str(films / "short.mp4"))) as writer:
        writer.write(torch.zeros(50, 3, 64, 64, dtype=torch.uint8), torch.zeros(32_000))
    with pytest.raises(ValueError, match=r"short\.mp4 has 2\.0 s of picture and sound; expected"):
        plant(films, again, num_recordings=1)
