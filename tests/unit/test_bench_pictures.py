"""scoring/pictures.py: a long video read in blocks says what one in memory says."""

from pathlib import Path

import pytest
import torch

from avatar_v.critics.sync import MFCC_BLOCK, embed_clip, embed_stream, joined, mfcc
from avatar_v.critics.world_sync import WorldSyncNet
from avatar_v.faces.face_track import follow_faces
from avatar_v.media import reading
from avatar_v.scoring import pictures
from avatar_v.scoring.pictures import (
    CentreSquares,
    FramesInMemory,
    FramesOfFile,
    in_blocks,
    open_pictures,
)
from avatar_v.scoring.registry import build, find_scorers
from avatar_v_eval.bench.footage import Footage, read_footage
from bench_cases import judged, pixels, world_clip, write_video


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    clip = world_clip(0, 75)
    found = tmp_path_factory.mktemp("v") / "v.mp4"
    write_video(found, clip.video, clip.audio)
    return found


def test_long_videos_are_decoded_and_short_ones_kept(path: Path, monkeypatch: pytest.MonkeyPatch):
    kept = open_pictures(path)
    monkeypatch.setattr(pictures, "KEPT_BYTES", 20 * 3 * 64 * 64)
    decoded = open_pictures(path)
    assert isinstance(kept, FramesInMemory)
    assert isinstance(decoded, FramesOfFile)
    assert (decoded.num_frames, decoded.size) == (kept.num_frames, kept.size) == (75, (64, 64))
    for _ in range(2):  # again and again
        assert torch.equal(torch.stack(list(decoded.frames())), kept.tensor)


def test_a_picture_that_changes_size_is_no_video(monkeypatch: pytest.MonkeyPatch):
    shown = [torch.zeros(3, 4, 4, dtype=torch.uint8), torch.zeros(3, 4, 6, dtype=torch.uint8)]
    monkeypatch.setattr(reading, "iter_video", lambda path: iter(shown))
    with pytest.raises(ValueError, match=r"x.mp4: the picture changes size"):
        open_pictures(Path("x.mp4"))


@pytest.mark.parametrize(("limit", "overlap"), [(50, 0), (7, 0), (7, 2), (1, 4)])
def test_blocks_hold_every_frame_once(monkeypatch: pytest.MonkeyPatch, limit: int, overlap: int):
    monkeypatch.setattr(pictures, "BLOCK_FRAMES", limit)
    frames = torch.arange(23, dtype=torch.uint8)[:, None, None, None].repeat(1, 3, 4, 6)
    seen: list[int] = []
    for numbers, block in in_blocks(FramesInMemory(frames), None, overlap):
        assert block[:, 0, 0, 0].tolist() == numbers
        assert len(block) <= max(limit, overlap + 1)
        assert numbers[: overlap if seen else 0] == seen[len(seen) - overlap :] or not seen
        seen += numbers[overlap if seen else 0 :]
    assert seen == list(range(23))
    chosen = [n for numbers, _ in in_blocks(FramesInMemory(frames), [0, 5, 22], 0) for n in numbers]
    assert chosen == [0, 5, 22]
    squares = CentreSquares(FramesInMemory(frames))
    assert squares.size == (4, 4)
    assert torch.stack(list(squares.frames())).shape == (23, 3, 4, 4)


def test_windows_leave_out_the_rest():
    video = Footage.of(torch.arange(23, dtype=torch.uint8)[:, None, None, None].repeat(1, 3, 4, 4),
                       torch.zeros(23 * 640))  # fmt: skip
    assert [w[:, 0, 0, 0].tolist() for w in video.windows(10)] == [
        list(range(10)),
        list(range(10, 20)),
    ]


def test_every_metric_says_the_same_of_a_stream(path: Path, monkeypatch: pytest.MonkeyPatch):
    metrics = [build(one, {}) for one in find_scorers([], {}, "drawn")[0] if not one.reads_timing]
    clip = judged(0, read_footage(path))
    whole = {metric.name: metric.score(clip) for metric in metrics}
    monkeypatch.setattr(pictures, "KEPT_BYTES", 0)
    monkeypatch.setattr(pictures, "BLOCK_FRAMES", 7)
    streamed = judged(0, read_footage(path))
    assert isinstance(streamed.video.pictures, FramesOfFile)
    for metric in metrics:
        again = metric.score(streamed)
        # networks on batches of another size: some last bits in fp32
        assert again.values == pytest.approx(whole[metric.name].values, rel=1e-4, abs=1e-5)
        for key, frames in again.frames.items():
            assert [n for n, _ in frames] == [n for n, _ in whole[metric.name].frames[key]]


def test_sync_of_a_stream_is_that_of_the_whole():
    critic, clip = WorldSyncNet.from_pretrained(), world_clip(1, 60)
    whole = embed_clip(critic, clip.video, clip.audio)
    streamed = embed_stream(critic, clip.video.split(9), 60, clip.audio)
    for a, b in zip(whole, streamed, strict=True):
        assert torch.equal(a, b)  # the same batches


def test_mfccs_of_a_long_sound_are_those_of_its_parts():
    import python_speech_features

    audio = torch.randn(
        int(2.3 * MFCC_BLOCK) * 160 + 77, generator=torch.Generator().manual_seed(0)
    )
    audio = audio.clamp(-3, 3) * 0.1
    expected = python_speech_features.mfcc((audio.double().numpy() * 32768).round(), 16_000)
    # the same rows; products of matrices of another size may round otherwise
    torch.testing.assert_close(
        mfcc(audio), torch.from_numpy(expected).float(), rtol=1e-5, atol=1e-4
    )


def test_nothing_to_join_is_an_error():
    with pytest.raises(ValueError, match="no frames"):
        joined([], 3)
    with pytest.raises(ValueError, match="got none"):
        follow_faces(lambda: [])
    assert joined([torch.ones(2, 3), torch.zeros(1, 3)], 5).tolist() == [[1] * 3] * 2 + [[0] * 3]


def test_pixels_are_those_of_the_file(path: Path):
    assert pixels(read_footage(path)).shape == (75, 3, 64, 64)
