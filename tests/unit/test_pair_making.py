"""stages/pair_making: two samples of each condition, in a drawn order, as raters judge them."""

import json
from pathlib import Path

import pytest
import torch

from aligning import make_weights
from avatar_v.base.video_format import VideoFormat
from avatar_v.cli import main
from avatar_v.media.reading import probe
from avatar_v.media.writer import Mp4Writer
from avatar_v.pairs.making import (
    Conditions,
    Made,
    MotionSystem,
    PairSettings,
    build_samples,
    judge_pairs,
    make_pairs,
)
from avatar_v.pairs.video_systems import VideoSystem
from avatar_v.rewards.raters import Panel, SimulatedRater, Term
from avatar_v.shards.loader import read_folder, read_members
from avatar_v.shards.pairs import VIDEOS, read_pair
from avatar_v.shards.writer import Failure, write_shard
from avatar_v.types import SAMPLES_PER_FRAME
from tiny_run import make_clip

MOUTH = SimulatedRater("mouth", (Term("avatar_v.rewards.likeness.own_amplitude", 100.0),), ties=1.0)
"""Almost certain of the one whose mouth opens as far as the person's."""


def nothing(frames, audio, reference, motion, **columns) -> torch.Tensor:
    return torch.where(torch.arange(len(motion)) == 0, torch.nan, 1.0)


@pytest.fixture(scope="module")
def system(tmp_path_factory: pytest.TempPathFactory) -> MotionSystem:
    return MotionSystem.load(make_weights(tmp_path_factory.mktemp("weights")))


@pytest.fixture(scope="module")
def clips(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("clips")
    write_shard(folder / "a.tar", [make_clip(i) for i in range(4)])
    return folder


def test_pairs_of_one_system_differ_and_repeat(
    system: MotionSystem, clips: Path, tmp_path: Path
) -> None:
    settings = PairSettings(3, num_frames=9, batch_size=2, pairs_per_shard=2, seed=3)
    made = []
    for out in (tmp_path / "a", tmp_path / "b"):
        failed, winners = make_pairs(clips, out, (system, system), Panel((MOUTH,)), settings)
        assert failed == 0
        assert sum(winners.values()) == 3
        made.append([read_pair(entry) for entry in read_folder(out)])
    assert len(list((tmp_path / "a").glob("*.tar"))) == 2
    for pair, again in zip(*made, strict=True):
        assert torch.equal(pair.first, again.first)
        assert pair.judgment == again.judgment
        assert not torch.equal(pair.first, pair.second)
        # the first frame is the clip's own, up to the rounding of normalisation
        assert torch.allclose(pair.first[0], pair.clip.motion[0], atol=1e-4)
        assert torch.allclose(pair.second[0], pair.clip.motion[0], atol=1e-4)
        assert len(pair.first) == pair.clip.meta.num_frames == 9
        assert len(pair.reference) == 33
    assert len({pair.clip.key for pair in made[0]}) == 3


class Scaled(MotionSystem):
    """Opens the mouth of every sample so much."""

    def samples(self, conditions, seeds):
        motion = conditions.batch().motion.clone()
        motion[:, 1:] *= float(self.name)
        return Made(motion)


def test_the_better_system_wins_wherever_it_is_shown(system: MotionSystem) -> None:
    good, bad = (Scaled(of, system.conditioner, system.settings, 25) for of in ("1.0", "0.2"))
    conditions = Conditions(
        [make_clip(i) for i in range(16)], [make_clip(i ^ 1) for i in range(16)]
    )
    items = judge_pairs(conditions, (good, bad), Panel((MOUTH,)), 0, range(16))
    said = [item.judgment for item in items if not isinstance(item, Failure)]
    assert len(said) == 16
    assert {judgment.first for judgment in said} == {"1.0", "0.2"}
    won = [judgment.first if judgment.winner == "first" else judgment.second for judgment in said]
    assert won == ["1.0"] * 16


def test_a_pair_that_no_rater_can_judge_is_a_row_with_a_reason(
    system: MotionSystem, clips: Path, tmp_path: Path
) -> None:
    settings = PairSettings(2, num_frames=9)
    panel = Panel((SimulatedRater("lost", (Term(f"{__name__}.nothing"),)),))
    failed, winners = make_pairs(clips, tmp_path, (system, system), panel, settings)
    assert failed == 1
    assert sum(winners.values()) == 1


def test_an_error_leaves_no_pairs(system: MotionSystem, clips: Path, tmp_path: Path) -> None:
    class Ends(MotionSystem):
        def samples(self, conditions, seeds):
            if (tmp_path / "out.partial" / "pairs-000000.tar").exists():
                raise ValueError("it ends here")
            return super().samples(conditions, seeds)

    out, ends = tmp_path / "out", Ends(system.name, system.conditioner, system.settings, 25)
    settings = PairSettings(2, num_frames=9, batch_size=1, pairs_per_shard=1)
    with pytest.raises(ValueError, match="it ends here"):
        make_pairs(clips, out, (ends, ends), Panel((MOUTH,)), settings)
    assert not list(tmp_path.iterdir())
    out.mkdir()
    (out / "mine.txt").touch()
    with pytest.raises(ValueError, match="choose a new or empty folder"):
        make_pairs(clips, out, (system, system), Panel((MOUTH,)), settings)


def test_margins_are_of_the_rater_alone(system: MotionSystem) -> None:
    batch = Conditions([make_clip(0)], [make_clip(1)]).batch()
    true, small = (
        MOUTH.values(build_samples(batch, Made(scale * batch.motion))) for scale in (1.0, 0.2)
    )
    margin = float(MOUTH.margin(true, small))
    assert margin > 10
    assert float(MOUTH.margin(small, true)) == -margin


def test_the_command_says_what_does_not_fit(
    clips: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["shards", "pairs", "--shards", str(clips), "--out", str(tmp_path / "out")]
    raters = tmp_path / "raters.json"
    raters.write_text(json.dumps({"raters": []}))
    for words, said in (
        (["--pairs", "0"], "num_pairs"),
        (["--pairs", "2", "--frames", "20"], "4k + 1"),
        (["--pairs", "2", "--raters", str(raters)], "a panel has raters"),
        (["--pairs", "2"], "no person has two clips of 137 frames"),
    ):
        assert main([*command, *words]) == 2
        assert said in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def bright(frames, audio, reference, motion, **columns) -> torch.Tensor:
    assert columns["portrait"].shape[:2] == (len(frames), 4)
    assert columns["truth"].shape == frames.shape
    return frames.mean((1, 2, 3, 4))


def test_pairs_of_videos_hold_what_was_judged(clips: Path, tmp_path: Path) -> None:
    system = VideoSystem.load(make_weights(tmp_path / "weights"))
    rater = SimulatedRater("bright", (Term(f"{__name__}.bright", 1e3),), ties=1.0)
    failed, winners = make_pairs(
        clips, tmp_path / "pairs", (system, system), Panel((rater,)), PairSettings(2, 9)
    )
    assert (failed, sum(winners.values())) == (0, 2)
    for pair in [read_pair(entry, pictures=True) for entry in read_folder(tmp_path / "pairs")]:
        assert pair.pictures is not None
        videos = (pair.pictures.first, pair.pictures.second)
        assert videos[0].shape == (9, 3, *system.size)
        assert len(pair.pictures.portrait) == 4
        assert pair.clip.video is None
        levels = [float(video.float().mean()) for video in videos]
        assert pair.judgment.winner == ("first" if levels[0] > levels[1] else "second")
        assert not torch.equal(pair.first, pair.second)
        assert torch.allclose(pair.first[0], pair.clip.motion[0], atol=1e-4)


def test_pairs_of_tall_pictures_at_30_frames_a_second(clips: Path, tmp_path: Path) -> None:
    shown = VideoFormat(32, 48, 30)
    write_shard(tmp_path / "clips" / "a.tar", [make_clip(i, shown) for i in range(4)])
    system = VideoSystem.load(make_weights(tmp_path / "weights", video=shown))
    rater = SimulatedRater("bright", (Term(f"{__name__}.bright", 1e3),), ties=1.0)

    def make(folder: Path, out: Path) -> None:
        make_pairs(folder, out, (system, system), Panel((rater,)), PairSettings(2, 9))

    make(tmp_path / "clips", tmp_path / "out")
    entries = list(read_folder(tmp_path / "out"))
    assert {(entry.num_frames, entry.frame_rate_hz) for entry in entries} == {(9, 30)}
    for entry in entries:
        pictures = read_pair(entry, pictures=True).pictures
        assert pictures is not None
        assert pictures.first.shape == (9, 3, 48, 32)
        (tmp_path / "first.mp4").write_bytes(read_members(entry, [VIDEOS[0]])[VIDEOS[0]])
        assert probe(tmp_path / "first.mp4").frame_rate_hz == 30
    with pytest.raises(ValueError, match=r"makes 30 frames a second, and the clips of .* have 25"):
        make(clips, tmp_path / "other")


def test_videos_made_elsewhere_are_judged_as_they_are(
    clips: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    silence = torch.zeros(13 * SAMPLES_PER_FRAME)
    for name, level, numbers in (("bright", 200, (0, 1, 2)), ("dark", 50, (1, 2, 3))):
        (tmp_path / name).mkdir()
        for number in numbers:
            clip = make_clip(number)
            video = torch.full((13, 3, 64, 64), level, dtype=torch.uint8)
            video[0] += 10 * number  # so that it is known which file was read, and from where
            with Mp4Writer(tmp_path / name / f"{clip.key}.mp4", silence) as writer:
                writer.write(video)
    raters, term = tmp_path / "raters.json", {"path": f"{__name__}.bright", "weight": 1e3}
    rater = {"name": "r", "terms": [term], "axis": "overall", "noise": 0.0, "position_bias": 0.0}
    raters.write_text(json.dumps({"raters": [{**rater, "ties": 1.0}]}))
    folders = [str(tmp_path / name) for name in ("bright", "dark")]
    words = ["--shards", str(clips), "--out", str(tmp_path / "out"), "--raters", str(raters)]
    words += ["--trust", __name__]
    words += ["--videos", *folders, "--no-face-crop", "--size", "32", "--pairs", "4"]
    assert main(["shards", "pairs", *words, "--frames", "9"]) == 0
    pairs = [read_pair(entry, pictures=True) for entry in read_folder(tmp_path / "out")]
    assert sorted(pair.clip.meta.scene for pair in pairs) == ["1", "1", "2", "2"]
    for pair in pairs:
        clip, said = make_clip(int(pair.clip.meta.scene)), pair.judgment
        assert pair.pictures is not None
        assert torch.equal(pair.clip.audio, clip.audio[: len(pair.clip.audio)])
        assert (said.first, said.second)[said.winner == "second"] == folders[0]
        shown = pair.pictures.first if said.winner == "first" else pair.pictures.second
        assert shown.shape == (9, 3, 32, 32)
        levels = shown.float().mean((1, 2, 3))
        assert float(levels[0] - levels[1]) == pytest.approx(10 * int(pair.clip.meta.scene), abs=4)
        assert float(levels[1]) == pytest.approx(200, abs=3)
    words[words.index("--out") + 1] = str(tmp_path / "other")
    for more, told in (
        (["--frames", "17"], "13 frames, expected 17 or more"),
        (["--frames", "9", "--against", "small"], "drop --video, --weights and --against"),
    ):
        assert main(["shards", "pairs", *words, *more]) == 2
        assert told in capsys.readouterr().err
    assert (
        main(["shards", "pairs", *words, "--frames", "9", "--videos", folders[0], str(clips)]) == 2
    )
    assert "no videos in it" in capsys.readouterr().err


def test_systems_of_a_pair_make_the_same(system: MotionSystem, clips: Path, tmp_path: Path) -> None:
    of_videos = VideoSystem.load(make_weights(tmp_path / "weights"))
    with pytest.raises(ValueError, match="pictures of one size"):
        make_pairs(
            clips, tmp_path / "out", (system, of_videos), Panel((MOUTH,)), PairSettings(2, 9)
        )
