"""Single frames that stand for a reference: as trained so read, and told from the anchor."""

import dataclasses

import pytest
import torch
from test_reference_attention import NUM_FRAMES, SIZE, TOLERANCE, target
from torch import Tensor

from avatar_v.faces.face_track import spread_frames
from avatar_v.inputs.inputs import Inputs
from avatar_v.inputs.person import encode_clips, pick_stills
from avatar_v.inputs.reference_clip import ReferenceClip
from avatar_v.models.conditioner import Conditioner, latent_validity
from avatar_v.models.config import DiTConfig
from avatar_v.models.dit import AvatarDiT
from avatar_v.models.reference import (
    NUM_STILLS,
    anchor_frame,
    join_references,
    reference_moments,
)
from avatar_v.motion.style import motion_moments
from avatar_v.motion.vectors import known_mask, pack_motion
from avatar_v.training.personality import Personality, draw_reference
from avatar_v.types import Batch, Reference
from avatar_v.weights.presets import build
from avatar_v.weights.random import make_batch, motion_stats
from random_models import make_cond, make_dit, make_reference, randomise, run

STATS = motion_stats()

PARTS = ("latents", "valid", "segment", "audio", "motion", "moments")


@pytest.fixture(scope="module")
def conditioner() -> Conditioner:
    conditioner = build("tiny", motion_stats=STATS)[1]
    randomise(conditioner.audio_encoder)
    return conditioner


@pytest.fixture(scope="module")
def dit() -> AvatarDiT:
    return make_dit(DiTConfig.tiny())


def close(a: Tensor, b: Tensor) -> None:
    torch.testing.assert_close(a, b, atol=TOLERANCE, rtol=TOLERANCE)


def batch_of(
    conditioner: Conditioner, frames: list[int], hidden: int | None = None, num_frames: int = 13
) -> Batch:
    """A clip with stills of ``frames``."""
    batch = make_batch(1, num_frames, 32)
    assert batch.video is not None
    pixels = ((batch.video + 1) * 127.5).round()
    video, valid = pixels / 127.5 - 1, batch.valid.clone()
    if hidden is not None:
        valid[:, hidden] = False
    with torch.no_grad():
        stills = conditioner.encode_image(video[0, frames])[:, 0]
    return dataclasses.replace(
        batch,
        video=video,
        valid=valid,
        stills=stills[None],
        stills_valid=torch.ones(1, len(frames), dtype=torch.bool),
        still_frames=torch.tensor([frames], dtype=torch.int32),
    )


def clip_of(batch: Batch, start: int = 0) -> ReferenceClip:
    assert batch.video is not None
    return ReferenceClip(
        video=((batch.video[0, start:] + 1) * 127.5).round().to(torch.uint8),
        valid=batch.valid[0, start:],
        audio=batch.audio[0, 640 * start :],
        motion=batch.motion[0, start:],
    )


def person_of(conditioner: Conditioner, clips: tuple[ReferenceClip, ...], stills: int) -> Reference:
    inputs = Inputs(clips[0].video[0], torch.zeros(640), 1, 0, (), clips)
    reference = encode_clips(inputs, conditioner, (32, 32), faces=False, stills=stills)
    assert reference is not None
    return reference


def test_generation_reads_the_stills_that_training_shows(conditioner: Conditioner) -> None:
    visible = [frame for frame in range(21) if frame != 6]
    frames = spread_frames(torch.arange(21) != 6, NUM_STILLS).tolist()
    assert set(frames) < set(visible)
    batch = batch_of(conditioner, frames, hidden=6, num_frames=21)
    with torch.no_grad():
        trained = conditioner.encode_stills(batch, torch.arange(NUM_STILLS))
    moments = motion_moments(pack_motion(batch.motion, STATS), latent_validity(batch.valid), STATS)
    trained = dataclasses.replace(trained, moments=moments)
    read = person_of(conditioner, (clip_of(batch),), NUM_STILLS)
    assert read.segment.tolist() == [list(range(NUM_STILLS))]
    for name in PARTS:
        torch.testing.assert_close(getattr(read, name), getattr(trained, name), msg=name)


def test_some_of_the_stills_are_those_of_all(conditioner: Conditioner) -> None:
    batch = batch_of(conditioner, list(range(16)), num_frames=17)
    with torch.no_grad():
        whole = conditioner.encode_stills(batch, torch.arange(NUM_STILLS))
        some = conditioner.encode_stills(batch, torch.tensor([1, 13]))
    for name in ("latents", "valid", "audio", "motion"):
        torch.testing.assert_close(getattr(some, name), getattr(whole, name)[:, [1, 13]])
    assert some.segment.tolist() == [[0, 1]]
    with pytest.raises(ValueError, match="avatar-v shards stills"):
        conditioner.encode_stills(dataclasses.replace(batch, stills=None), torch.arange(4))


def test_a_clip_with_fewer_stills_shows_none_of_them_twice(conditioner: Conditioner) -> None:
    """Clips of 3, 0 and 16 stills in one batch, padded as the loader does."""
    batch = make_batch(3, 17, 32)
    counts = torch.tensor([3, 0, 16])
    number = torch.arange(16)
    batch = dataclasses.replace(
        batch,
        stills=number.float()[None, :, None, None, None].expand(3, -1, 16, 4, 4),
        stills_valid=number < counts[:, None],
        still_frames=number.expand(3, -1),
    )
    with torch.no_grad():
        for places in (torch.arange(16), torch.tensor([4, 9]), torch.tensor([0, 15])):
            shown = conditioner.encode_stills(batch, places)
            for row, count in enumerate(counts.tolist()):
                expected = sorted({int(place) * count // 16 for place in places} if count else ())
                assert shown.latents[row, shown.valid[row], 0, 0, 0].tolist() == expected


def test_an_encoder_of_whole_recordings_hears_no_moments(
    conditioner: Conditioner, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = batch_of(conditioner, list(range(13)))
    monkeypatch.setattr(Conditioner, "hears_moments", False)
    with torch.no_grad():
        assert conditioner.encode_stills(batch, torch.arange(3)).audio is None
    assert person_of(conditioner, (clip_of(batch),), 3).audio is None
    assert person_of(conditioner, (clip_of(batch),), 0).audio is not None


def test_habits_are_those_of_all_clips_though_frames_stand_for_them(
    conditioner: Conditioner,
) -> None:
    batch = batch_of(conditioner, [0])
    first, second = clip_of(batch), clip_of(batch, 4)
    whole = [person_of(conditioner, (clip,), 0) for clip in (first, second)]
    found = [moments for clip in whole if (moments := reference_moments(clip, STATS)) is not None]
    assert len(found) == 2
    for stills in (1, 3):
        both = person_of(conditioner, (first, second), stills)
        assert both.latents.shape[1] == 2 * stills
        close(reference_moments(both, STATS), found[0] + found[1])  # pyright: ignore[reportArgumentType]


def test_what_an_extractor_does_not_tell_counts_as_an_average_person_s(
    conditioner: Conditioner,
) -> None:
    """In generation and in training alike: the habits of these clips, whatever stands for them."""
    batch, known = batch_of(conditioner, [0]), ("yaw", "eye_open")
    clip = dataclasses.replace(clip_of(batch), habits_known=known)
    mask = known_mask(known)
    expected = conditioner.clip_moments(batch.motion, batch.valid, known=mask)
    assert float((expected - conditioner.clip_moments(batch.motion, batch.valid)).abs().max()) > 0.1
    partly = dataclasses.replace(batch, habits_known=mask)
    for stills in (0, 1):
        close(person_of(conditioner, (clip,), stills).moments, expected)  # pyright: ignore[reportArgumentType]
        personality = Personality(stills_share=float(stills))
        with torch.no_grad():
            trained = draw_reference(partly, conditioner, personality, None)
        close(reference_moments(trained, STATS), expected)  # pyright: ignore[reportArgumentType]


def test_stills_show_the_face_and_a_clip_without_one_stays_as_it_is(
    conditioner: Conditioner,
) -> None:
    batch = batch_of(conditioner, [0])
    clip = dataclasses.replace(clip_of(batch), valid=torch.arange(13) % 2 == 1)
    shown = pick_stills(clip, 3)
    assert [part.num_frames for part in shown] == [1, 1, 1]
    for part, frame in zip(shown, (3, 7, 11), strict=True):
        assert part.valid.tolist() == [True]
        assert torch.equal(part.video[0], clip.video[frame])
        assert part.motion is not None
        assert torch.equal(part.motion[0], batch.motion[0, frame])
    hidden = dataclasses.replace(clip, valid=torch.zeros(13, dtype=torch.bool))
    assert pick_stills(hidden, 3) == [hidden]
    assert pick_stills(clip, 0) == [clip]
    silent = dataclasses.replace(clip, audio=None, motion=None)
    assert [part.audio for part in pick_stills(silent, 2)] == [None, None]
    assert person_of(conditioner, (silent,), 2).moments is None


@pytest.mark.parametrize("known", [None, ("yaw", "jaw")])
def test_moments_beside_stills_are_read_and_joined(dit: AvatarDiT, known) -> None:
    """The anchor's habits are read in those components that the clip's are."""
    config, (x_t, t) = dit.config, target(dit.config)
    clip = make_reference(config, torch.ones(2, 3, dtype=torch.bool), size=SIZE, has_motion=True)
    mask = None if known is None else known_mask(known)
    clip = dataclasses.replace(clip, habits_known=mask)
    own = reference_moments(clip, STATS)
    assert own is not None
    more = dataclasses.replace(clip, moments=5 * own)
    anchor = anchor_frame(
        clip.latents[:, :1],
        clip,
        audio=clip.audio[:, :1],  # pyright: ignore[reportOptionalSubscript]
        motion=clip.motion[:, :1],  # pyright: ignore[reportOptionalSubscript]
        stats=STATS,
    )
    together = join_references([more, anchor])
    expected = reference_moments(anchor, STATS)
    assert expected is not None
    one = torch.ones(2, 1, dtype=torch.bool)
    assert anchor.motion is not None
    assert torch.equal(expected, motion_moments(anchor.motion, one, STATS, mask))
    close(together.moments, 5 * own + expected)  # pyright: ignore[reportArgumentType]
    cond = make_cond(config, 2, NUM_FRAMES, reference=together)
    told = dataclasses.replace(cond, reference=None, moments=5 * own + expected)
    as_is = dataclasses.replace(clip, moments=own)
    plain = dataclasses.replace(cond, reference=join_references([as_is, anchor]))
    past = dit.encode_reference(together)
    got, same, other = (dit(x_t, t, c, past=past) for c in (told, cond, plain))
    close(got, same)
    assert (got - other).abs().max() > 1e-4


def test_what_marks_the_anchor_begins_at_zero_and_counts_for_it_alone() -> None:
    config = DiTConfig.tiny()
    assert not AvatarDiT(config).anchor_embed.any()
    clip = make_reference(config, torch.ones(2, 3, dtype=torch.bool), size=SIZE)
    anchor = anchor_frame(
        clip.latents[:, :1],
        clip,
        audio=clip.audio[:, :1],  # pyright: ignore[reportOptionalSubscript]
        motion=None,
    )
    x_t, t = target(config)
    outputs = []
    for mark in (1.0, 0.0):
        dit = make_dit(config)
        dit.anchor_embed.data *= mark
        with_anchor = make_cond(config, 2, NUM_FRAMES, reference=join_references([clip, anchor]))
        without = dataclasses.replace(with_anchor, reference=clip)
        outputs.append((run(dit, x_t, t, with_anchor), run(dit, x_t, t, without)))
    assert (outputs[0][0] - outputs[1][0]).abs().max() > 1e-4
    assert torch.equal(outputs[0][1], outputs[1][1])


def test_moments_of_another_number_are_refused(dit: AvatarDiT) -> None:
    clip = make_reference(dit.config, torch.ones(2, 3, dtype=torch.bool), size=SIZE)
    with pytest.raises(ValueError, match=r"moments must have shape \(2, 65\)"):
        dit.encode_reference(dataclasses.replace(clip, moments=torch.zeros(2, 9)))
