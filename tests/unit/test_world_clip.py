"""Whole clips of the world: determinism, what style and scene decide, prompts, errors."""

import hashlib
import subprocess
import sys

import pytest
import torch

from avatar_v.types import MOTION_NAMES
from avatar_v.world.clip import WorldClip, make_clip
from avatar_v.world.prompt import scene_prompt
from avatar_v.world.scene import sample_scene
from avatar_v.world.style import sample_style

_IDS = (2_000_001, 7, 1_000_003)
_PRINT_DIGEST = f"""
from avatar_v.world.clip import make_clip
from hashlib import sha256
c = make_clip(*{_IDS}, num_frames=5, size=64)
parts = (c.video, c.audio, c.motion, c.phonemes, c.face_box, c.mouth_box, c.landmarks, c.valid)
print(sha256(b"".join(p.numpy().tobytes() for p in parts) + c.text.encode()).hexdigest())
"""


def quiet_clip(person: int, scene: int, speech: int, num_frames: int = 101) -> WorldClip:
    return make_clip(person, scene, speech, num_frames=num_frames, size=64, render_video=False)


def test_a_clip_has_all_its_parts() -> None:
    clip = make_clip(3, 4, 5, num_frames=9, size=64)
    assert clip.video is not None
    assert clip.video.shape == (9, 3, 64, 64)
    assert clip.video.dtype == torch.uint8
    assert clip.audio.shape == (9 * 640,)
    assert clip.motion.shape == (9, len(MOTION_NAMES))
    assert clip.phonemes.shape == (9,)
    assert clip.face_box is not None
    assert clip.face_box.shape == (9, 4)
    assert clip.valid is not None
    assert (clip.person_id, clip.scene_id, clip.sentence_id) == (3, 4, 5)
    assert clip.video.float().std() > 10  # of 255: a picture, and not one colour


def test_bytes_are_equal_in_another_process(capsys: pytest.CaptureFixture[str]) -> None:
    """Another hash seed, another number of threads, nothing made before."""
    threads = str(torch.get_num_threads() % 2 + 1)
    other = subprocess.run(
        [sys.executable, "-c", _PRINT_DIGEST],
        capture_output=True,
        text=True,
        check=True,
        env={"PYTHONHASHSEED": "7", "OMP_NUM_THREADS": threads},
    )
    exec(_PRINT_DIGEST, {})
    here = capsys.readouterr().out
    assert len(here.strip()) == 64
    assert other.stdout == here


def test_bytes_do_not_depend_on_what_was_made_before() -> None:
    def digest() -> str:
        clip = quiet_clip(11, 12, 13, 25)
        return hashlib.sha256(
            clip.audio.numpy().tobytes() + clip.motion.numpy().tobytes()
        ).hexdigest()

    first = digest()
    torch.manual_seed(5)
    quiet_clip(1, 2, 3, 25)
    assert digest() == first


def test_video_can_be_left_out_without_changing_the_rest() -> None:
    seen = make_clip(3, 4, 5, num_frames=5, size=64)
    unseen = quiet_clip(3, 4, 5, 5)
    assert unseen.video is None
    assert unseen.face_box is None
    assert torch.equal(seen.audio, unseen.audio)
    assert torch.equal(seen.motion, unseen.motion)


def test_a_person_keeps_voice_and_mouth_in_another_scene() -> None:
    here, there = quiet_clip(6, 1, 9), quiet_clip(6, 2, 9)
    assert torch.equal(here.audio, there.audio)
    opening = MOTION_NAMES.index("mouth_open")
    assert torch.equal(here.motion[:, opening], there.motion[:, opening])
    assert here.seed != there.seed
    assert not torch.equal(here.motion, there.motion)


def test_style_shows_in_motion_of_every_scene() -> None:
    """The larger sway of two persons is the larger in each of several scenes."""
    calm, *_, lively = sorted(range(60), key=lambda i: sample_style(i).sway_yaw)
    for scene in (0, 1, 2):
        assert _swing(lively, scene) > 2 * _swing(calm, scene)


def _swing(person: int, scene: int) -> float:
    """Median deviation of yaw, so that a moment of looking away does not decide."""
    yaw = quiet_clip(person, scene, scene, 401).motion[:, MOTION_NAMES.index("yaw")]
    return float((yaw - yaw.median()).abs().median())


def test_prompts_tell_the_scene_and_nothing_else() -> None:
    for scene_id in range(60):
        scene = sample_scene(scene_id)
        text = scene_prompt(scene)
        assert scene.clothing in text
        assert scene.clothing_color in text
        if scene.background != "garden":
            assert scene.background_color in text
        assert " a orange" not in text
    assert quiet_clip(1, 17, 3, 5).text == quiet_clip(2, 17, 4, 5).text


def test_prompts_vary() -> None:
    texts = {scene_prompt(sample_scene(i)) for i in range(100)}
    assert len(texts) > 80


@pytest.mark.parametrize("ids", [(-1, 0, 0), (0, 5_000_000, 0), (0, 0, 10_000_000)])
def test_ids_of_no_split_are_refused(ids: tuple[int, int, int]) -> None:
    with pytest.raises(ValueError, match="in no split"):
        make_clip(*ids, num_frames=5, size=64)


def test_wrong_sizes_are_refused() -> None:
    with pytest.raises(ValueError, match="at least 1 frame, got 0"):
        make_clip(0, 0, 0, num_frames=0, size=64)
    with pytest.raises(ValueError, match="got 30"):
        make_clip(0, 0, 0, num_frames=5, size=30)
