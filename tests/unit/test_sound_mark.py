"""safety/: a mark in a sound is read where it is and nowhere else, in any blocks, without delay."""

from functools import lru_cache
from pathlib import Path
from typing import cast

import av
import numpy as np
import pytest
import torch
from av.audio.stream import AudioStream
from torch import Tensor

from avatar_v import cli
from avatar_v.engines.drawn_voice import DrawnVoice
from avatar_v.media.reading import read_audio
from avatar_v.media.sound import normalise_loudness, resampled
from avatar_v.media.writer import write_wav
from avatar_v.safety.key import PUBLIC_KEY
from avatar_v.safety.sound_detect import NUM_PLAIN, SPEEDS, detect_sound, least_z
from avatar_v.safety.sound_mark import STRENGTH_DB, SoundMarker
from avatar_v.safety.watermark import Mark
from avatar_v.types import SAMPLE_RATE_HZ
from avatar_v_eval.studies.sound_mark import DRAWN_TEXT, coded

ID = "3fa29c01"


@lru_cache(maxsize=1)
def speech() -> Tensor:
    return normalise_loudness(DrawnVoice(3).speak(DRAWN_TEXT, seed=0)[: 8 * SAMPLE_RATE_HZ])


def marked(sound: Tensor, rate_hz: int = SAMPLE_RATE_HZ, key: bytes = PUBLIC_KEY) -> Tensor:
    return SoundMarker(Mark(ID, key), rate_hz)(sound)


@pytest.mark.parametrize(
    ("codec", "container", "rate_hz"),
    [("libmp3lame", "mp3", SAMPLE_RATE_HZ), ("aac", "mp4", SAMPLE_RATE_HZ),
     ("libopus", "ogg", 48_000)],
)  # fmt: skip
def test_the_mark_is_read_from_a_file_whose_beginning_is_cut_off(
    codec: str, container: str, rate_hz: int
) -> None:
    sound = coded(marked(speech()[None])[0], codec, container, rate_hz, 64_000)
    found = detect_sound(sound[round(1.3 * SAMPLE_RATE_HZ) :].split(1000))
    assert found is not None
    assert (found.id, found.least_z) == (ID, least_z(NUM_PLAIN))
    assert found.num_frames == pytest.approx(25 * (8 - 1.3), abs=3)


def test_there_is_none_without_the_key_and_without_a_mark() -> None:
    for sound in (speech(), marked(speech()[None], key=b"a secret of one's own")[0]):
        found = detect_sound([sound[: 4 * SAMPLE_RATE_HZ]])
        assert found is not None
        assert not found.is_marked
    assert detect_sound([speech()[:SAMPLE_RATE_HZ]]) is None, "a second says nothing"


def test_it_is_read_in_stereo_at_another_rate_and_speed() -> None:
    stereo = resampled(speech(), SAMPLE_RATE_HZ, 44_100)[None] * torch.tensor([[1.0], [0.5]])
    made = marked(stereo, 44_100)
    torch.testing.assert_close(made[1], made[0] / 2, rtol=0, atol=1e-5)
    assert 1.02 in SPEEDS
    found = detect_sound([resampled(made[0], round(44_100 * 1.02))])
    assert found is not None
    assert found.id == ID


def test_blocks_and_what_comes_later_change_nothing() -> None:
    """The mark is causal: what a block becomes does not wait for the next one."""
    sound = speech()[None, : SAMPLE_RATE_HZ + 7]
    whole, marker = marked(sound), SoundMarker(Mark(ID), SAMPLE_RATE_HZ)
    parts = [marker(part) for part in sound.tensor_split([1, 640, 1280, 1377, 9000], 1)]
    # sums of a filter's taps in another order
    torch.testing.assert_close(torch.cat(parts, 1), whole, rtol=0, atol=1e-6)
    assert torch.equal(marked(torch.zeros(1, 5000)), torch.zeros(1, 5000)), "silence stays silent"
    change_db = 20 * (whole.square().mean().sqrt() / sound.square().mean().sqrt()).log10()
    assert abs(float(change_db)) < STRENGTH_DB / 4


def test_speak_marks_what_it_says(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "talk.wav"
    assert cli.main(["speak", "--script", DRAWN_TEXT, "--out", str(out)]) == 0
    id_ = capsys.readouterr().out.strip().rpartition("mark ")[2]
    assert cli.main(["watermark", "read", str(out)]) == 0
    told = capsys.readouterr().out
    assert f"{out}: watermark {id_}, confidence 1.0000, in " in told
    assert "frames" not in told
    with_cover = tmp_path / "cover.mp4"
    _with_a_picture(read_audio(out), with_cover)
    assert cli.main(["watermark", "read", str(with_cover)]) == 0
    told = capsys.readouterr().out
    assert "16 frames or more, got 1" in told
    assert f"watermark {id_}, confidence" in told
    write_wav(out, torch.zeros(3 * SAMPLE_RATE_HZ))
    assert cli.main(["watermark", "read", str(out)]) == 1
    assert "no watermark found in 3.0 s of sound" in capsys.readouterr().out


def _with_a_picture(sound: Tensor, path: Path) -> None:
    """As players of music show it: the sound, and one picture of its record."""
    with av.open(str(path), "w") as output:
        picture = output.add_stream("mjpeg", rate=25, width=64, height=64, pix_fmt="yuvj420p")
        stream = cast(AudioStream, output.add_stream("aac", rate=SAMPLE_RATE_HZ, layout="mono"))
        red = np.full((64, 64, 3), (200, 0, 0), np.uint8)
        for frame in (av.VideoFrame.from_ndarray(red, format="rgb24"), None):
            output.mux(picture.encode(frame))
        for part in sound.split(1024):
            frame = av.AudioFrame.from_ndarray(part[None].numpy(), format="fltp", layout="mono")
            frame.sample_rate = SAMPLE_RATE_HZ
            output.mux(stream.encode(frame))
        output.mux(stream.encode(None))
