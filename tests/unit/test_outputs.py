"""media/files: files that play while they grow, and after a kill."""

import io
from fractions import Fraction
from itertools import pairwise
from pathlib import Path

import av
import pytest
import torch

from avatar_v.media import files
from avatar_v.media.files import GrowingMp4, HlsPlaylist
from avatar_v.media.kinds import output_kind
from avatar_v.media.outputs import FragmentStream
from avatar_v.media.writer import Writer
from forked import FORKS
from shard_command import wait_for
from written import (
    block,
    joined,
    num_decoded,
    packet_times,
    segments,
    write,
    write_for_ever,
    write_to_a_full_disk,
    writer_threads,
)


@pytest.mark.parametrize(
    ("out", "kind"),
    [("a/b.mp4", "mp4"), ("B.M3U8", "hls"), ("rtmp://host/app/key", "rtmp"), ("-", "stdout")],
)
def test_the_name_tells_the_kind(out: str, kind: str) -> None:
    assert output_kind(out) == kind


@pytest.mark.parametrize("out", ["x.avi", "x", "http://host/x", ""])
def test_other_names_are_refused(out: str) -> None:
    with pytest.raises(ValueError, match=r"an \.mp4 file, an \.m3u8 playlist"):
        output_kind(out)


# --- HLS ---


def test_a_finished_playlist_plays_whole(tmp_path: Path) -> None:
    path = tmp_path / "live.m3u8"
    write(HlsPlaylist(path), 7)
    text = path.read_text()
    assert "#EXT-X-PLAYLIST-TYPE:EVENT" in text
    assert '#EXT-X-MAP:URI="live_init.mp4"' in text
    assert text.rstrip().endswith("#EXT-X-ENDLIST")
    frames, samples = num_decoded(str(path))
    assert frames == 70
    assert samples >= 70 * 640  # AAC fills its last frame
    names = {p.name for p in tmp_path.iterdir()}
    assert names == {"live.m3u8", "live_init.mp4", *(p.name for p in segments(path))}
    assert len(segments(path)) >= 2
    assert writer_threads() == []


def test_tracks_of_hls_start_together(tmp_path: Path) -> None:
    path = tmp_path / "live.m3u8"
    write(HlsPlaylist(path), 5)
    with av.open(joined(path)) as container:
        first = {}
        for packet in container.demux():
            if packet.pts is not None:
                first.setdefault(packet.stream.type, packet.pts * packet.time_base)
    # AAC's first packet is its encoder's delay, 1024 samples before the sound
    assert abs(first["video"] - first["audio"]) <= Fraction(1024, 16_000)


def test_a_new_playlist_replaces_the_old_one_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "live.m3u8"
    write(HlsPlaylist(path), 8)
    (tmp_path / "live_notes.m4s").write_text("mine")
    (tmp_path / "other_00001.m4s").write_text("mine")
    write(HlsPlaylist(path), 3)
    assert num_decoded(str(path))[0] == 30
    left = {p.name for p in tmp_path.iterdir()} - {p.name for p in segments(path)}
    assert left == {"live.m3u8", "live_init.mp4", "live_notes.m4s", "other_00001.m4s"}


def test_a_failure_of_the_model_leaves_what_was_made(tmp_path: Path) -> None:
    path = tmp_path / "live.m3u8"

    def interrupted() -> None:
        with Writer(HlsPlaylist(path)) as writer:
            for _ in range(20):  # the queue is short: all but its blocks are encoded by then
                writer.write(*block())
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert "#EXT-X-ENDLIST" in path.read_text()
    assert num_decoded(str(path))[0] >= 150
    assert writer_threads() == []


def test_a_percent_sign_in_the_path_is_refused() -> None:
    with pytest.raises(ValueError, match="may not hold a %"):
        output_kind("a/50%d.m3u8")


@pytest.mark.parametrize("name", ["live.m3u8", "out.mp4"])
def test_after_a_kill_hls_plays_and_no_broken_mp4_is_in_place(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    reader, told = FORKS.Pipe(duplex=False)
    process = FORKS.Process(target=write_for_ever, args=(str(path), told))
    process.start()
    while reader.recv() < 25 * 15:  # 4 blocks wait, one is in hand: the others are encoded
        continue
    process.kill()
    process.join()
    if name == "out.mp4":
        assert not path.exists()
        return
    listed = segments(path)
    assert len(listed) >= 5
    assert all(segment.is_file() for segment in listed)
    assert "#EXT-X-ENDLIST" not in path.read_text()
    assert num_decoded(joined(path))[0] >= 5 * 25
    with av.open(str(path), options={"live_start_index": "0"}) as container:  # as a player does
        assert next(container.decode(video=0)).width == 32


@pytest.mark.parametrize("quota", [25_000, 60_000, 90_000])
def test_a_disk_that_fills_up_leaves_what_is_listed_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, quota: int
) -> None:
    """All files together have so many bytes; renaming and removing work, as on a disk."""
    left = [quota]

    class Full(io.FileIO):
        def write(self, data) -> int:
            num = min(left[0], len(data))
            left[0] -= num
            if num == 0 and len(data):
                raise OSError(28, "No space left on device")
            return super().write(data[:num])

    monkeypatch.setattr(files, "open", lambda p, mode, buffering: Full(p, "w"), raising=False)
    path = tmp_path / "live.m3u8"
    draw = torch.Generator().manual_seed(0)
    frames = torch.randint(0, 255, (25, 3, 32, 32), dtype=torch.uint8, generator=draw)

    def write_noise() -> None:
        with Writer(HlsPlaylist(path)) as writer:
            for _ in range(6):
                writer.write(frames, torch.zeros(16_000))

    with pytest.raises(OSError, match=r"live\.m3u8: no space left on device on the disk at /"):
        write_noise()
    assert not list(tmp_path.glob("*.tmp"))
    assert writer_threads() == []
    if quota > 25_000:  # else not even the first segment fits
        assert path.read_text().endswith("#EXT-X-ENDLIST\n")
        assert num_decoded(str(path))[0] == 25 * len(segments(path)) > 0


# --- a growing mp4 ---


def test_fragments_keep_the_time_and_hold_nearly_nothing_back() -> None:
    """Each picture is 40 ms behind the one before it. When a block has been handed over, all but
    its last picture and 80 ms of sound have left."""
    pieces = list[bytes]()
    times: dict[str, list[Fraction]] = {}
    with Writer(FragmentStream("the client", pieces.append)) as writer:
        for _ in range(3):
            writer.write(*block(12))
        wait_for(lambda: len(packet_times(pieces)["video"]) >= 35)
        times = packet_times(pieces)
        assert times["audio"][-1] > Fraction(36, 25) - Fraction(2, 25) - Fraction(1024, 48_000)
    times = packet_times(pieces)
    assert times["video"] == [Fraction(i, 25) for i in range(36)]
    assert times["audio"][:2] == [Fraction(-1024, 48_000), 0]  # the encoder begins before


@pytest.mark.slow
def test_pictures_and_sound_stay_together_for_an_hour() -> None:
    """By the times at which a player shows and plays them."""
    pieces = list[bytes]()
    with Writer(FragmentStream("the client", pieces.append)) as writer:
        for _ in range(3_600):
            writer.write(*block(25))
    times = packet_times(pieces)
    assert times["video"] == [Fraction(i, 25) for i in range(90_000)]
    steps = {b - a for a, b in pairwise(times["audio"])}
    assert steps == {Fraction(1024, 48_000)}
    assert abs(times["audio"][-1] + Fraction(1024, 48_000) - 3_600) < Fraction(1, 25)


def test_a_growing_mp4_plays_at_any_length(tmp_path: Path) -> None:
    path, growing = tmp_path / "out.mp4", tmp_path / "video.mp4"
    seen = []
    with Writer(GrowingMp4(path, growing)) as writer:
        for _ in range(12):
            writer.write(*block())
            if growing.exists() and growing.stat().st_size > (len(seen[-1]) if seen else 0):
                seen.append(growing.read_bytes())
        while not seen:  # 4 blocks wait at most, the others are being encoded
            if growing.exists():
                seen.append(growing.read_bytes())
    for data in seen:
        assert num_decoded(io.BytesIO(data))[0] % 10 == 0  # whole fragments
    assert num_decoded(str(path))[0] == 120
    assert [p.name for p in tmp_path.iterdir()] == ["out.mp4"]
    data = path.read_bytes()
    assert data.index(b"moov") < data.index(b"mdat")  # players may begin before they have it all
    with av.open(str(path)) as container:
        video, audio = container.streams.video[0], container.streams.audio[0]
        assert video.start_time == audio.start_time == 0
        assert (
            video.duration * video.time_base
            == audio.duration * audio.time_base
            == Fraction(120, 25)
        )


def test_a_failure_leaves_a_growing_mp4_with_all_that_was_handed_over(tmp_path: Path) -> None:
    growing = tmp_path / "video.mp4"
    growing.write_bytes(b"of a run before")

    def failing(num_blocks: int) -> None:
        with Writer(GrowingMp4(tmp_path / "out.mp4", growing)) as writer:
            for _ in range(num_blocks):
                writer.write(*block())
            raise RuntimeError("the model")

    for num_blocks in (12, 3):
        with pytest.raises(RuntimeError, match="the model"):
            failing(num_blocks)
        assert [p.name for p in tmp_path.iterdir()] == ["video.mp4"]
        assert num_decoded(str(growing))[0] == 120  # also after the shorter one
    growing.unlink()
    with pytest.raises(RuntimeError, match="the model"):
        failing(0)
    assert list(tmp_path.iterdir()) == []
    assert writer_threads() == []


@pytest.mark.parametrize("name", ["out.mp4", "live.m3u8"])
def test_a_full_disk_is_one_error(tmp_path: Path, name: str) -> None:
    reader, told = FORKS.Pipe(duplex=False)
    process = FORKS.Process(target=write_to_a_full_disk, args=(str(tmp_path / name), told))
    process.start()
    process.join()
    assert reader.poll(), "it wrote 400 frames of noise to 20 kB"
    assert reader.recv().startswith(f"{tmp_path / name}: file too large on the disk at /")
    assert ".mp4" not in {p.suffix for p in tmp_path.iterdir() if "init" not in p.name}
    assert not list(tmp_path.glob(".*.part"))
