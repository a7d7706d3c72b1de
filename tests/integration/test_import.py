"""Own videos → shards: `avatar-v shards import`, end to end."""

import json
import subprocess
import sys
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import pytest

from avatar_v.shards import importer
from avatar_v.shards.loader import read_clip, read_folder
from shard_command import run, wait_for


def write_clip(path: Path, *, frames: int, rate: int = 25, loud: float = 0.3, sound_s: float = 9):
    """Noise pictures 60 x 40, their left third red, with a tone as long as ``sound_s`` allows."""
    rng = np.random.default_rng(0)
    with av.open(str(path), "w") as container:
        video = container.add_stream("libx264", rate=rate)
        video.height, video.width, video.pix_fmt = 40, 60, "yuv420p"
        audio = container.add_stream("aac", rate=44_100) if loud else None
        for _ in range(frames):
            picture = rng.integers(0, 255, (40, 60, 3), dtype=np.uint8)
            picture[:, :20] = (200, 0, 0)
            frame = av.VideoFrame.from_ndarray(picture, format="rgb24")
            container.mux(video.encode(frame))
        container.mux(video.encode(None))
        if audio is None:
            return
        count = int(44_100 * min(frames / rate, sound_s))
        tone = loud * np.sin(2 * np.pi * 220 * np.arange(count) / 44_100)
        sound = av.AudioFrame.from_ndarray(tone[None].astype(np.float32), "fltp", "mono")
        sound.sample_rate, sound.pts, sound.time_base = 44_100, 0, Fraction(1, 44_100)
        container.mux(audio.encode(sound))
        container.mux(audio.encode(None))


def test_own_videos_become_clips_and_what_does_not_is_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, out = tmp_path / "videos", tmp_path / "shards"
    (folder / "anna").mkdir(parents=True)
    write_clip(folder / "anna" / "good one.mp4", frames=40, rate=50)  # 20 frames at 25 fps
    (folder / "anna" / "good one.txt").write_text("a red\n  wall \n")
    write_clip(folder / "anna" / "short.mp4", frames=7)
    write_clip(folder / "anna" / "mute.mp4", frames=9, loud=0)
    write_clip(folder / "anna" / "silent.mp4", frames=9, loud=1e-5)
    write_clip(folder / "anna" / "half.mp4", frames=18, sound_s=0.4)
    (folder / "broken.mp4").write_bytes(b"no video" * 99)
    words = ["import", str(folder), "--out", str(out), "--frames", "9", "--size", "32"]
    words += ["--no-face-crop", "--licence", "CC-BY-4.0", "--consent", "asked in writing"]
    assert run(*words) == 0
    report = json.loads((out / importer.REPORT_FILE).read_text())
    dropped = {(row["file"], row["frames"]): row["reason"] for row in report["dropped"]}
    assert report["clips_of"]["anna/good one.mp4"] == 2
    assert dropped["anna/good one.mp4", "18-19"] == "too short: 2 frames, a clip has 9"
    assert dropped["anna/short.mp4", "0-6"].startswith("too short: 7 frames")
    assert dropped["anna/mute.mp4", ""] == "no audio stream"
    assert dropped["anna/silent.mp4", "0-8"] == "the audio is silent"
    assert dropped["anna/half.mp4", "9-17"].startswith("the audio ends")
    assert dropped["broken.mp4", ""].startswith("not a readable media file")
    assert "no audio stream" in capsys.readouterr().out
    clips = read_folder(out)
    assert len(clips) == sum(report["clips_of"].values()) == 3
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
    assert [path.name for path in tmp_path.iterdir()] == ["empty"]


def test_a_terminated_import_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    for number in range(20):
        write_clip(tmp_path / "in" / f"{number}.mp4", frames=50)
    words = ["shards", "import", str(tmp_path / "in"), "--out", str(tmp_path / "out")]
    command = [sys.executable, "-m", "avatar_v.cli", *words, "--no-face-crop", "--frames", "5"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as job:
        wait_for(lambda: list(tmp_path.glob(".out.*.tmp/.*.tmp")))
        job.terminate()
        _, error = job.communicate(timeout=60)
    assert job.returncode == 130
    assert error.strip() == "avatar-v: interrupted"
    assert [path.name for path in tmp_path.iterdir()] == ["in"]


@pytest.mark.media
@pytest.mark.skipif(not importer.face_track.is_available(), reason="needs the [faces] extra")
def test_a_real_clip_is_cropped_to_the_face(media: Path, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "talking_head.mp4").symlink_to(media / "talking_head.mp4")
    write_clip(tmp_path / "in" / "wall.mp4", frames=50)  # nobody in it
    assert (
        run("import", str(tmp_path / "in"), "--out", str(tmp_path / "out"), "--frames", "49") == 0
    )
    report = json.loads((tmp_path / "out" / importer.REPORT_FILE).read_text())
    reasons = {row["file"]: row["reason"] for row in report["dropped"] if row["frames"] == "0-48"}
    assert reasons == {"wall.mp4": "no face in 49 of 49 frames"}
    sample = read_clip(read_folder(tmp_path / "out")[0])
    assert sample.valid.all()
    mouth = sample.mouth_box.mean(0)
    assert 0.3 < (mouth[0] + mouth[2]) / 2 < 0.7
    assert 0.5 < (mouth[1] + mouth[3]) / 2 < 0.9
    assert sample.motion[:, 0].std() > 0.05  # she speaks
