"""safety/: a mark is read where it is and nowhere else, in any blocks, and faults are one line."""

import hashlib
import math
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

import pytest
import torch
from torch import Tensor

from avatar_v import cli
from avatar_v.media.reading import read_video
from avatar_v.media.writer import Mp4Writer
from avatar_v.safety.detect import LEAST_FRAMES, LEAST_Z, NUM_TRIALS, detect
from avatar_v.safety.key import KEY, KEY_FILE, PUBLIC_KEY, own_key
from avatar_v.safety.watermark import PERIOD, Mark, Marker
from avatar_v.world.clip import make_clip
from avatar_v.world.splits import RANGES

MARK = Mark("3fa29c01")
SECRET = b"a secret of one's own"


@lru_cache(maxsize=1)
def clip() -> Tensor:
    """Three seconds of a drawn person."""
    ids = [RANGES["validation"][7]] * 3
    video = make_clip(*ids, num_frames=75, size=64).video
    assert video is not None
    return video


def written(video: Tensor, path: Path) -> Path:
    with Mp4Writer(path, torch.zeros(640 * len(video))) as writer:
        writer.write(video)
    return path


def test_the_mark_is_read_from_an_mp4_that_was_cut_and_enlarged(tmp_path: Path) -> None:
    marked = MARK.draw(clip(), 11)  # so that the cut begins anywhere in the period
    large = marked.repeat_interleave(2, 2).repeat_interleave(2, 3)
    found = detect(read_video(written(large, tmp_path / "out.mp4")))
    assert found.id == MARK.id
    assert found.confidence > 0.99
    assert found.z > LEAST_Z == pytest.approx(9.4, abs=0.01)  # as docs/generation/watermark.md says


def test_a_mark_is_read_behind_a_crop() -> None:
    found = detect(MARK.draw(clip(), 0)[:, :, 1:61, 2:62])
    assert found.id == MARK.id


def test_no_mark_is_found_without_one_or_with_another_key() -> None:
    keys = [hashlib.sha256(b"%d" % i).digest() for i in range(4)]
    assert [detect(clip(), key).id for key in keys] == [None] * 4
    own = Mark(MARK.id, SECRET).draw(clip(), 0)
    assert detect(own, SECRET).id == MARK.id
    assert detect(own).id is None
    still = clip()[:1].expand(PERIOD, -1, -1, -1)
    assert detect(still).id is None


def test_the_best_of_all_trials_in_noise_is_where_the_normal_law_has_it() -> None:
    """Above the best of one trial, below what all trials together may give; a factor lost in the
    unit of z would show."""
    draw = torch.Generator().manual_seed(0)
    noise = torch.randint(0, 256, (PERIOD, 3, 32, 32), dtype=torch.uint8, generator=draw)
    found = detect(noise, SECRET)
    assert found.id is None
    one_trial = 4 * 2.81 / 2  # of each byte the largest of 256 normal scores, over all bytes' norm
    assert one_trial < found.z < math.sqrt(2 * math.log(NUM_TRIALS))


def test_blocks_and_the_whole_are_the_same_and_flat_areas_stay_as_they_are() -> None:
    whole = MARK.draw(clip(), 0)
    marker = Marker(MARK)
    assert torch.equal(torch.cat([marker(block) for block in clip().split(13)]), whole)
    change = (whole.float() - clip().float()).abs()
    assert 0 < change.max() <= 4
    flat = torch.full((PERIOD, 3, 48, 80), 90, dtype=torch.uint8)
    assert torch.equal(MARK.draw(flat, 0), flat)


def test_marks_of_ids_differ_and_other_ids_are_refused() -> None:
    signs = MARK.signs
    assert set(signs.unique().tolist()) == {-1.0, 1.0}
    assert (signs != Mark("3fa29c02").signs).float().mean() == pytest.approx(0.125, abs=0.02)
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
    marked = written(MARK.draw(clip(), 0), tmp_path / "marked.mp4")
    assert cli.main(["watermark", "read", str(marked)]) == 0
    assert f"watermark {MARK.id}, confidence 1.0000" in capsys.readouterr().out
    plain = written(clip(), tmp_path / "plain.mp4")
    assert cli.main(["watermark", "read", str(plain)]) == 1
    assert "no watermark found in 75 frames" in capsys.readouterr().out
    (tmp_path / "no.mp4").write_bytes(b"\x00\x00\x00\x18ftypmp42" + bytes(500))
    assert cli.main(["watermark", "read", str(tmp_path / "no.mp4")]) == 2
    assert capsys.readouterr().err.count("\n") == 1
