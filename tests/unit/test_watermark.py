"""safety/: a mark is read where it is and nowhere else, in any blocks, and faults are one line."""

import itertools
import math
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from avatar_v import cli
from avatar_v.media.reading import read_video
from avatar_v.media.writer import Mp4Writer
from avatar_v.safety.detect import (
    LEAST_FRAMES,
    MOST_FALSE,
    NUM_OTHERS,
    NUM_PLAIN,
    SECTION,
    detect,
    least_z,
)
from avatar_v.safety.key import KEY, KEY_FILE, PUBLIC_KEY, own_key
from avatar_v.safety.watermark import CYCLE, NUM_CYCLES, Mark, Marker
from avatar_v.world.clip import make_clip
from avatar_v.world.splits import RANGES
from watermark_thief import taken_signs, with_signs

MARK = Mark("3fa29c01")
SECRET = b"a secret of one's own"


@cache
def clip(num_frames: int = 75, person: int = 7) -> Tensor:
    """Three seconds of a drawn person."""
    ids = [RANGES["validation"][person]] * 3
    video = make_clip(*ids, num_frames=num_frames, size=64).video
    assert video is not None
    return video


def marked(video: Tensor, key: bytes = PUBLIC_KEY) -> Tensor:
    return Marker(Mark(MARK.id, key))(video)


def written(video: Tensor, path: Path) -> Path:
    with Mp4Writer(path, torch.zeros(640 * len(video))) as writer:
        writer.write(video)
    return path


def test_the_mark_is_read_from_an_mp4_that_was_cut_and_enlarged(tmp_path: Path) -> None:
    large = marked(clip())[11:].repeat_interleave(2, 2).repeat_interleave(2, 3)
    found = detect(read_video(written(large, tmp_path / "out.mp4")))
    assert found.id == MARK.id
    assert found.confidence > 0.99
    assert found.z > found.least_z == least_z(NUM_PLAIN)
    # as docs/generation/watermark.md says
    assert [least_z(n) for n in (NUM_PLAIN, NUM_OTHERS)] == pytest.approx([9.8, 10.3], abs=0.05)


@pytest.mark.parametrize("change", ["cropped", "mirrored", "in bars", "faster", "slower"])
def test_a_mark_is_read_in_other_views(change: str) -> None:
    video = marked(clip())
    seen = {
        "cropped": lambda: video[:, :, 1:61, 2:62],
        "mirrored": lambda: video.flip(3),
        "in bars": lambda: F.pad(video, (0, 0, 24, 26), value=16),
        "faster": lambda: video[(torch.arange(68) * 1.1).round().long()],
        "slower": lambda: video[(torch.arange(83) * 0.9).round().long()],
    }[change]()
    assert detect(seen).id == MARK.id


def test_a_mark_is_read_behind_a_second_without_one_and_stays_bounded_in_long_videos() -> None:
    plain = torch.full((1, 3, 64, 64), 90, dtype=torch.uint8).expand(SECTION, -1, -1, -1)
    found = detect(itertools.chain(plain, marked(clip())))
    assert (found.id, found.num_frames) == (MARK.id, SECTION + 75)
    assert found.least_z == least_z(NUM_PLAIN, 2) > least_z(NUM_PLAIN)
    shares = [NUM_PLAIN * math.exp(-(least_z(NUM_PLAIN, i) ** 2) / 2) for i in range(1, 1000)]
    assert 2 * sum(shares) == pytest.approx(MOST_FALSE, rel=0.01)


def test_no_mark_is_found_without_one_or_with_another_key() -> None:
    assert not detect(clip()).is_marked
    own = marked(clip(), SECRET)
    assert detect(own, SECRET).id == MARK.id
    assert not detect(own).is_marked


def test_the_best_of_all_trials_in_noise_is_where_the_normal_law_has_it() -> None:
    """Above the best of one trial, below what all trials together may give; a factor lost in the
    unit of z would show."""
    draw = torch.Generator().manual_seed(0)
    noise = torch.randint(0, 256, (64, 3, 32, 32), dtype=torch.uint8, generator=draw)
    found = detect(noise, SECRET)
    assert not found.is_marked
    one_trial = 4 * 2.81 * math.sqrt(3 / 16)  # of each byte the largest of 256 normal scores
    assert one_trial < found.z < math.sqrt(2 * math.log(NUM_OTHERS))


def test_a_mark_does_not_come_again_in_its_video() -> None:
    """The mean over any period of 12 s says nothing of the next 4 s."""
    video = clip(400, 8)
    drawn = marked(video)
    true = taken_signs(drawn.float() - video.float() + 128)
    first, last = 304 // CYCLE, 400 // CYCLE
    for period in range(CYCLE, 304 // 2, CYCLE):
        folded = taken_signs(drawn[:304], period)
        again = torch.stack([folded[k % (period // CYCLE)] for k in range(first, last)])
        share = (again == true[first:last]).float().mean()
        assert share == pytest.approx(0.5, abs=0.04), period
    each = (taken_signs(drawn) == true).float().mean()
    assert each > 0.65, "so much is known of a cycle from itself, so the measure can see signs"


def test_signs_taken_from_one_video_are_no_mark_in_another() -> None:
    """By their mean over a period, as a mark that repeats gives itself away, and cycle by cycle.
    Drawn on the first video they are one: its content fits."""
    video, other = clip(400, 8), clip(125, 9)
    drawn = marked(video, SECRET)
    for signs in (taken_signs(drawn, 64), taken_signs(drawn[:125])):
        assert not detect(with_signs(other, signs), SECRET).is_marked
    own = with_signs(video[:125], taken_signs(drawn[:125]))
    assert detect(own, SECRET).id == MARK.id


def test_the_mean_over_a_period_subtracted_leaves_the_mark_and_every_cycle_does_not() -> None:
    drawn = marked(clip(400, 8)[:200], SECRET)
    assert detect(with_signs(drawn, taken_signs(drawn, 64), -1), SECRET).id == MARK.id
    removed = with_signs(drawn, taken_signs(drawn), -1)
    assert not detect(removed, SECRET).is_marked  # as docs/generation/watermark.md says


def test_blocks_and_the_whole_are_the_same_and_flat_areas_stay_as_they_are() -> None:
    whole = marked(clip())
    marker = Marker(MARK)
    assert torch.equal(torch.cat([marker(block) for block in clip().split(13)]), whole)
    change = (whole.float() - clip().float()).abs()
    assert 0 < change.max() <= 4
    flat = torch.full((64, 3, 48, 80), 90, dtype=torch.uint8)
    assert torch.equal(marked(flat), flat)


def test_marks_of_ids_differ_and_other_ids_are_refused() -> None:
    other = Mark("3fa29c02")
    signs = MARK.signs(0)
    assert set(signs.unique().tolist()) == {-1.0, 1.0}
    assert torch.equal(signs, MARK.signs(NUM_CYCLES))
    assert (signs != MARK.signs(1)).float().mean() == pytest.approx(0.5, abs=0.1)
    there = [k for k in range(NUM_CYCLES) if (other.first + k - MARK.first) % NUM_CYCLES == 0]
    assert there != [0], "ids begin elsewhere"
    assert (signs != other.signs(*there)).float().mean() == pytest.approx(3 / 32, abs=0.03)
    for wrong in ("", "3fa29c0", "3fa29c011", "3fa29c0g", "3FA29C01", "3fa2 9c01"):
        with pytest.raises(ValueError, match="8 hexadecimal digits"):
            Mark(wrong)


def test_a_few_frames_are_too_few() -> None:
    def frames() -> Iterator[Tensor]:
        yield from clip()[: LEAST_FRAMES - 1]

    with pytest.raises(ValueError, match="16 frames or more, got 15"):
        detect(frames())


def test_the_key_is_public_or_of_the_environment_or_of_a_file(tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_bytes(SECRET + b"\n")
    assert own_key({}) == PUBLIC_KEY
    assert own_key({KEY: SECRET.decode()}) == own_key({KEY_FILE: str(file)}) == SECRET
    for environment, message in (
        ({KEY: "short"}, "16 to 4096 bytes, got 5"),
        ({KEY_FILE: str(tmp_path / "none")}, "cannot read"),
        ({KEY: SECRET.decode(), KEY_FILE: str(file)}, "both set"),
    ):
        with pytest.raises(ValueError, match=message):
            own_key(environment)


def test_read_says_what_it_found_and_what_it_cannot_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = written(marked(clip()), tmp_path / "marked.mp4")
    assert cli.main(["watermark", "read", str(file)]) == 0
    assert f"watermark {MARK.id}, confidence 1.0000" in capsys.readouterr().out
    plain = written(clip(), tmp_path / "plain.mp4")
    assert cli.main(["watermark", "read", str(plain)]) == 1
    assert "no watermark found in 75 frames" in capsys.readouterr().out
    (tmp_path / "no.mp4").write_bytes(b"\x00\x00\x00\x18ftypmp42" + bytes(500))
    assert cli.main(["watermark", "read", str(tmp_path / "no.mp4")]) == 2
    assert capsys.readouterr().err.count("\n") == 1
