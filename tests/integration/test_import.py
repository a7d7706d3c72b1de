"""Own videos → shards: `avatar-v-data import`, end to end."""

import json
import re
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from av.video.reformatter import ColorTrc

from avatar_v.faces.face_track import FaceTrack
from avatar_v.media.writer import write_wav
from avatar_v.shards.loader import read_clip, read_folder
from avatar_v.shards.schema import to_float
from avatar_v_data import importer
from avatar_v_data.curation import samples
from avatar_v_data.curation.store import CurationStore
from avatar_v_data.import_plan import find_sources
from forked import run_script
from hostile_media import CASES
from own_videos import SMALL, folder_of, write_clip
from shard_command import run


def test_own_videos_become_clips_and_what_does_not_is_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, out = tmp_path / "videos", tmp_path / "shards"
    (folder / "anna").mkdir(parents=True)
    write_clip(folder / "anna" / "good one.mp4", frames=40, rate=50)  # 20 frames at 25 fps
    (folder / "anna" / "good one.txt").write_text("a red\n  wall \n")
    write_clip(folder / "anna" / "short.mp4", frames=7)
    (folder / "anna" / "half.txt").write_bytes(b"caf\xe9")
    (folder / "anna" / "short.txt").write_text("x" * 355)
    write_clip(folder / "anna" / "mute.mp4", frames=9, loud=0)
    write_clip(folder / "anna" / "silent.mp4", frames=9, loud=1e-5)
    write_clip(folder / "anna" / "half.mp4", frames=18, sound_s=0.4)
    (folder / "broken.mp4").write_bytes(b"no video" * 99)
    words = ["import", str(folder), "--out", str(out), "--frames", "9", "--size", "32"]
    words += ["--no-face-crop", "--licence", "CC-BY-4.0", "--consent", "asked in writing"]
    words += ["--person", "folder"]
    assert run(*words) == 0
    report = json.loads((out / importer.REPORT_FILE).read_text())
    dropped = {(row["file"], row["frames"]): row["reason"] for row in report["dropped"]}
    assert report["clips_of"]["anna/good one.mp4"] == 3  # the last one begins at frame 11
    noted = {row["file"]: row["reason"] for row in report["noted"]}
    assert "half.txt is no UTF-8; the caption was read as Windows-1252" in noted["anna/half.mp4"]
    assert noted["anna/short.mp4"].startswith("a caption of 355 bytes is too long")
    assert dropped["anna/short.mp4", "0-6"].startswith("too short: 7 frames")
    assert dropped["anna/mute.mp4", ""] == "no audio stream"
    assert dropped["anna/silent.mp4", "0-8"] == "the audio is silent"
    assert dropped["anna/half.mp4", "9-17"].startswith("the audio ends")
    assert dropped["broken.mp4", ""].startswith("not a readable media file")
    assert "no audio stream" in capsys.readouterr().out
    clips = read_folder(out)
    assert len(clips) == sum(report["clips_of"].values()) == 4
    assert [clip.key[-6:] for clip in clips] == ["000000", "000009", "000011", "000000"]
    assert report["persons"] == {"anna": ["anna/good one.mp4", "anna/half.mp4"]}
    assert read_clip(clips[3]).meta.text == "café"
    sample = read_clip(clips[0])
    assert (sample.meta.person, sample.meta.text) == ("anna", "a red wall")
    assert (sample.meta.licence, sample.meta.consent) == ("CC-BY-4.0", "asked in writing")
    assert sample.meta.motion_known == sample.meta.habits_known == ()
    assert sample.video is not None
    assert sample.video.shape == (9, 3, 32, 32)
    red = sample.video[:, 0].float().mean((0, 1)) - sample.video[:, 1].float().mean((0, 1))
    assert red[:7].min() > 100  # the centre square of 60 x 40 begins 10 pixels in: 8 of 32 are red
    assert red[10:].abs().max() < 60
    with pytest.raises(ValueError, match="already exists"):
        run(*words)


def test_the_voice_that_a_person_listens_to_is_cut_with_the_film(tmp_path: Path) -> None:
    """Also where the person says nothing. A sound without a film is a file without a picture."""
    folder, out = tmp_path / "videos", tmp_path / "shards"
    folder.mkdir()
    write_clip(folder / "a.mp4", frames=18, loud=1e-5)
    for name in ("alone", "broken", "early"):
        shutil.copy(folder / "a.mp4", folder / f"{name}.mp4")
    steps = torch.tensor([0.1, 0.4]).repeat_interleave(9 * 640)  # of each clip one
    write_wav(folder / "a.heard.wav", steps)
    write_wav(folder / "orphan.heard.wav", steps)
    write_wav(folder / "early.heard.wav", steps[:640])
    (folder / "broken.heard.mp3").write_bytes(b"no sound" * 99)
    assert run("import", str(folder), "--out", str(out), *SMALL, "--frames", "9") == 0
    clips = [read_clip(clip) for clip in read_folder(out)]
    heard = [clip.heard for clip in clips if clip.meta.source == "a.mp4"]
    for sound, level in zip(heard, (0.1, 0.4), strict=True):
        assert sound is not None
        assert len(sound) == 9 * 640
        assert (to_float(sound) - level).abs().max() < 1e-3  # 16 bits
    report = json.loads((out / importer.REPORT_FILE).read_text())
    dropped = {row["file"]: row["reason"] for row in report["dropped"]}
    assert dropped.keys() == {"alone.mp4", "broken.mp4", "early.mp4", "orphan.heard.wav"}
    assert dropped["alone.mp4"] == "the audio is silent"
    assert "broken.heard.mp3" in dropped["broken.mp4"]
    assert dropped["early.mp4"] == "what the person listens to ends 9 frames early"
    write_wav(folder / "a.heard.flac", steps)
    with pytest.raises(ValueError, match=r"one sound, found a\.heard\.flac, a\.heard\.wav"):
        find_sources(folder, None, None)


def test_import_says_what_it_cannot_begin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = str(tmp_path / "out")
    with pytest.raises(ValueError, match="no such folder"):
        run("import", str(tmp_path / "gone"), "--out", out)
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match="holds no media files"):
        run("import", str(tmp_path / "empty"), "--out", out)
    write_clip(tmp_path / "empty" / "a.mp4", frames=9)
    for words in (["--frames", "10"], ["--size", "30"]):
        with pytest.raises(ValueError, match=r"10|30"):
            run("import", str(tmp_path / "empty"), "--out", out, *words)
    monkeypatch.setattr(importer.face_track, "is_available", lambda: False)
    with pytest.raises(ValueError, match=r"pip install 'avatar_v\[faces\]'.*--no-face-crop"):
        run("import", str(tmp_path / "empty"), "--out", out)
    assert not Path(out).exists()
    Path(out).symlink_to(tmp_path / "nowhere")
    with pytest.raises(ValueError, match="out is a link to nothing"):
        run("import", str(tmp_path / "empty"), "--out", out, "--no-face-crop")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["empty", "out"]


def test_hdr_is_noted(tmp_path: Path) -> None:
    (tmp_path / "videos").mkdir()
    write_clip(tmp_path / "videos" / "hdr.mp4", frames=9, trc=ColorTrc.SMPTE2084)
    note = "has PQ colours; they are converted to standard range (BT.709)"
    out = tmp_path / "out"
    assert run("import", str(tmp_path / "videos"), "--out", str(out), *SMALL) == 0
    report = json.loads((out / importer.REPORT_FILE).read_text())
    assert [row["reason"] for row in report["noted"]] == [note]


def tree(folder: Path) -> dict[str, bytes]:
    """Every file below a folder; of the report all but the folder's own name."""
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


STOPPED = """
import os, sys
from avatar_v_data import cli
from avatar_v_data.curation import engine, local
perform, left = local.perform, int(sys.argv[2])
def stopped(*args):
    global left
    if left == 0:
        os.kill(os.getpid(), int(sys.argv[1]))
    left -= 1
    return perform(*args)
local.perform, engine.FLUSH_S = stopped, 0.0
sys.exit(cli.main(sys.argv[3:]))
"""  # the import gets a signal when so many files are finished


def test_a_stopped_import_goes_on_with_the_same_bytes(tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "in", *(f"{n}.mp4" for n in range(6)))
    (folder / "broken.mp4").write_bytes(b"no video" * 99)
    assert run("import", str(folder), "--out", str(tmp_path / "whole"), *SMALL) == 0
    out = tmp_path / "out"
    words = ["import", str(folder), "--out", str(out), *SMALL]
    work, kept = tmp_path / ".out.import", {}
    for end in (signal.SIGTERM, signal.SIGKILL):
        job = run_script(STOPPED, str(int(end)), "2", *words)
        assert not out.exists()
        if end == signal.SIGTERM:
            assert job.returncode == 130
            *_, first, last = job.stderr.strip().splitlines()  # behind the progress bar
            assert "finished files are kept in" in first
            assert last == "avatar-v-data: interrupted"
        else:
            assert job.returncode == -signal.SIGKILL
        for place, time in kept.items():
            assert place.stat().st_mtime_ns == time  # it was not read again
        done = list(work.glob("files/*.tar"))
        assert len(CurationStore(work).results("samples")) == len(done) == len(kept) + 2
        kept = {place: place.stat().st_mtime_ns for place in done}
    assert run(*words, "--workers", "2") == 0
    assert not work.exists()
    assert tree(out) == tree(tmp_path / "whole")


def test_a_second_import_to_one_folder_is_refused_till_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, out = folder_of(tmp_path / "in", "a.mp4"), tmp_path / "out"
    true = importer.write_shards

    def beside(*args: Any) -> None:
        monkeypatch.setattr(importer, "write_shards", true)
        with pytest.raises(ValueError, match="another process works on this run"):
            run("import", str(folder), "--out", str(out), *SMALL)
        true(*args)

    monkeypatch.setattr(importer, "write_shards", beside)
    assert run("import", str(folder), "--out", str(out), *SMALL) == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in", "out"]


def test_no_hostile_file_ends_an_import(tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "in", "good.mp4", ".hidden/part.mp4", frames=15)
    for number, case in enumerate(CASES.values()):
        (folder / f"{number}").mkdir()
        case.make(folder / f"{number}" / f"file{case.suffix}")
    out = tmp_path / "out"
    assert run("import", str(folder), "--out", str(out), "--no-face-crop", "--frames", "9") == 0
    report = json.loads((out / importer.REPORT_FILE).read_text())
    assert report["clips_of"]["good.mp4"] == 2
    assert not any("hidden" in file for file in report["clips_of"])
    for number, (name, case) in enumerate(CASES.items()):
        if case.suffix == ".mp4" and name == "folder":
            continue  # a folder is looked into
        file = f"{number}/file{case.suffix}"
        reasons = [row["reason"] for row in report["dropped"] if row["file"] == file]
        notes = [row["reason"] for row in report["noted"] if row["file"] == file]
        why = [pattern for pattern in (case.video, case.audio) if pattern]
        assert not why or any(re.search("|".join(why), reason) for reason in reasons), (
            name,
            reasons,
        )
        if not why:
            assert report["clips_of"][file] > 0, name
            assert re.search(case.warning, " ".join(notes)), (name, notes)


def test_a_face_that_is_often_hidden_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def tracked(frames: torch.Tensor) -> FaceTrack:
        num = len(frames)
        points = torch.rand(1, 68, 2, generator=torch.Generator().manual_seed(0)).repeat(num, 1, 1)
        box = torch.tensor([[0.3, 0.3, 0.7, 0.7]]).repeat(num, 1)
        return FaceTrack(box, points, torch.arange(num) < 6, num_faces=2)

    monkeypatch.setattr(samples.face_track, "track_faces", tracked)
    monkeypatch.setattr(samples.face_track, "is_available", lambda: True)
    folder = folder_of(tmp_path / "in", "a.mp4", frames=9)
    words = ("--frames", "9", "--size", "16")
    assert run("import", str(folder), "--out", str(tmp_path / "out"), *words) == 0
    report = json.loads((tmp_path / "out" / importer.REPORT_FILE).read_text())
    assert [(row["frames"], row["reason"]) for row in report["noted"]] == [
        ("0-8", "a face in 6 of 9 frames (66 %); kept"),
        ("0-8", "2 faces in one picture: the largest is taken"),
    ]
