"""rewards/terms.py and rewards/shipped.py: what rewards say, and what is missing of it."""

import dataclasses
import math
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from avatar_v.critics.look import Faces
from avatar_v.critics.motion import MotionMeter
from avatar_v.critics.quality import flicker
from avatar_v.critics.world_sync import WorldSyncNet
from avatar_v.faces.face import FaceCritic
from avatar_v.rewards.shipped import EYE_OPEN, MOUTH_OPEN, as_stored, by_latent
from avatar_v.rewards.terms import Rewards, RewardSamples, RewardTerm
from avatar_v.types import MOTION_NAMES, SAMPLES_PER_FRAME, Batch
from avatar_v.weights.random import make_batch
from avatar_v.world.clip import make_clip
from avatar_v.world.splits import RANGES
from face_files import recogniser_file, syncnet_file

NUM, FRAMES, LATENTS = 4, 25, 7
GIVEN = "avatar_v.rewards.shipped."


def says(frames, audio, reference, motion, *, value: Any = 1.0, **columns) -> Any:
    """A reward of the tests, named by its path as a user's."""
    if isinstance(value, str):
        raise RuntimeError(value)
    return value(motion) if callable(value) else value


def samples(motion: Tensor, reference: Batch | None = None, **changes: Any) -> RewardSamples:
    num = len(motion)
    audio = torch.zeros(num, motion.shape[1] * SAMPLES_PER_FRAME)
    reference = make_batch(num, 75) if reference is None else reference
    values = {"frames": None, "condition": torch.arange(num), "num_given": 0, **changes}
    return RewardSamples(audio=audio, reference=reference, motion=motion, **values)


def judged(name: str, given: RewardSamples, **options: Any) -> Tensor:
    """The values of one of the rewards that come along; a warning would be an error."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        (values,) = Rewards([RewardTerm(GIVEN + name, options=options)])(given).values()
    return values


def of_values(*values: Any) -> Rewards:
    return Rewards(
        [RewardTerm(f"{__name__}.says", name=f"r{i}", options={"value": value})
         for i, value in enumerate(values)]
    )  # fmt: skip


def test_what_a_reward_cannot_say_is_a_missing_value_that_is_told_once() -> None:
    still = samples(torch.zeros(NUM, FRAMES, len(MOTION_NAMES)))
    rewards = of_values(
        torch.arange(4.0), [1.0, None, math.nan, 2.0], None, "it broke",
        torch.zeros(3), torch.ones(NUM, LATENTS),
    )  # fmt: skip
    with pytest.warns(UserWarning, match="counted as missing") as told:
        values = rewards(still)
    texts = "\n".join(str(w.message) for w in told)
    for word in ("r1: 2 of 4 values", "r2: it gave None", "r3: RuntimeError: it broke", r"r4"):
        assert word in texts
    assert values["r0"].tolist() == [0, 1, 2, 3]
    assert torch.isfinite(values["r1"]).tolist() == [True, False, False, True]
    assert all(torch.isnan(values[name]).all() for name in ("r2", "r3", "r4"))
    assert values["r5"].shape == (NUM, LATENTS)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        rewards(still)


def test_another_number_of_missing_values_is_not_told_again() -> None:
    rewards = of_values(lambda motion: [math.nan, *([1.0] * (len(motion) - 1))])
    with pytest.warns(UserWarning, match="1 of 4 values"):
        rewards(samples(torch.zeros(4, FRAMES, 16)))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        rewards(samples(torch.zeros(2, FRAMES, 16)))


@pytest.mark.filterwarnings("ignore:reward r")
def test_a_batch_of_which_nothing_is_known_is_one_error_with_all_reasons() -> None:
    with pytest.raises(ValueError, match=r"no reward has a value.*gave None.*it broke"):
        of_values(None, "it broke")(samples(torch.zeros(NUM, FRAMES, 16)))


@pytest.mark.parametrize(
    ("term", "words"),
    [
        ({"path": "avatar_v.rewards.shipped.no_such"}, "cannot be imported"),
        ({"path": "no_such_package.reward"}, "cannot be imported"),
        ({"path": "blinks"}, "package.module.name"),
        ({"path": GIVEN + "blinks", "weight": -1.0}, "weight"),
        ({"path": GIVEN + "EYE_OPEN"}, "no function"),
        ({"path": GIVEN + "Identity", "options": {"folder": "x"}}, "options do not fit"),
    ],
)
def test_what_is_no_reward_is_refused_when_it_is_named(term: dict, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Rewards([RewardTerm(**term)])


def test_held_out_critics_are_no_rewards(tmp_path: Path) -> None:
    FaceCritic(width=12, num_heads=2, held_out=True).save_pretrained(tmp_path / "face")
    WorldSyncNet(width=12, num_heads=2, held_out=True).save_pretrained(tmp_path / "sync")
    MotionMeter(width=12, num_heads=2, held_out=True).save_pretrained(tmp_path / "motion")
    for name, folder in {"Identity": "face", "Sync": "sync", "MouthOpening": "motion"}.items():
        critic = str(tmp_path / folder)
        with pytest.raises(ValueError, match="held out"):
            Rewards([RewardTerm(GIVEN + name, options={"critic": critic})])


def blinking(num: int, num_frames: int, every: int, first: int = 6) -> Tensor:
    """Tracks that shut their eyes every so many frames."""
    motion = torch.zeros(num, num_frames, len(MOTION_NAMES))
    motion[..., EYE_OPEN] = 1
    for frame in range(first, num_frames - 4, every):
        motion[:, frame : frame + 3, EYE_OPEN] = 0
    return motion


def test_blinks_are_wanted_where_people_blink_more_and_not_where_they_blink_less() -> None:
    motion = blinking(NUM, FRAMES, 100)  # one in each
    motion[0] = blinking(1, FRAMES, 100, first=60)[0]  # none
    closed = by_latent(1 - motion[..., EYE_OPEN], "mean") > 0

    def credit(every: int) -> Tensor:
        reference = dataclasses.replace(make_batch(NUM, 401), motion=blinking(NUM, 401, every))
        return judged("blinks", samples(motion, reference), around=0)

    more, less = credit(9), credit(200)
    assert more[closed].min() > 0
    assert less[closed].max() < 0
    assert more[0].abs().max() == less[0].abs().max() == 0
    assert (judged("blinks", samples(motion), around=0)[~closed] == 0).all()
    hidden = dataclasses.replace(make_batch(NUM, 401), valid=torch.zeros(NUM, 401).bool())
    with pytest.warns(UserWarning, match="None"), pytest.raises(ValueError, match="no reward"):
        Rewards([RewardTerm(GIVEN + "blinks")])(samples(motion, hidden))


def test_levels_are_of_what_was_made_and_fade_where_they_agree() -> None:
    generator = torch.Generator().manual_seed(0)
    own = torch.randn(NUM, 403, len(MOTION_NAMES), generator=generator)
    reference = dataclasses.replace(make_batch(NUM, 401), motion=own[:, :401])
    for name in ("sway", "amplitude"):
        small = judged(name, samples(own[:, :FRAMES] * 0.5, reference, num_given=1))
        same = judged(name, samples(own[:, :FRAMES], reference, num_given=1))
        assert small.shape == (NUM, LATENTS)
        assert small.min() >= 0
        assert same.abs().mean() < 0.3 * small.abs().mean()
    frozen = own[:, :FRAMES].clone()
    frozen[:, 9:] = frozen[:, 9:10]
    assert judged("frozen_motion", samples(own[:, :FRAMES], reference)).tolist() == [0] * NUM
    assert judged("frozen_motion", samples(frozen, reference, num_given=3)).max() < -0.4


def test_a_mouth_may_move_as_far_as_its_person_s() -> None:
    own = torch.zeros(2, 401, len(MOTION_NAMES))
    own[..., MOUTH_OPEN] = (torch.arange(401) % 2) * torch.tensor([[0.2], [0.6]])
    reference = dataclasses.replace(make_batch(2, 401), motion=own)
    motion = torch.zeros(4, FRAMES, len(MOTION_NAMES))
    motion[..., MOUTH_OPEN] = (torch.arange(FRAMES) % 2) * torch.tensor(
        [[0.2], [0.6], [0.6], [0.1]]
    )
    condition = torch.tensor([0, 0, 1, 1])
    values = judged("over_articulation", samples(motion, reference, condition=condition))
    assert values.tolist() == pytest.approx([0, -1.9, 0, 0], abs=0.02)


@pytest.fixture(scope="module")
def people() -> list:
    first = RANGES["validation"][0]
    return [
        make_clip(first + i, i, 7 + i, num_frames=FRAMES, size=64) for i in range(2)
    ]  # fmt: skip


def test_pictures_are_judged_against_their_person_sound_and_truth(people: list) -> None:
    def video(clip: Any) -> Tensor:
        return torch.as_tensor(clip.video).float() / 127.5 - 1

    first, second = (video(clip) for clip in people)
    true = torch.stack([first, second])
    audio = torch.stack([torch.as_tensor(people[0].audio).float()] * 2)
    grey = first.mean(1, keepdim=True).expand_as(first)
    shots = samples(
        torch.zeros(2, FRAMES, 16),
        frames=true,
        condition=torch.tensor([0, 0]),
        columns={"truth": torch.stack([grey, grey]), "portrait": true[:, :2]},
    )
    shots = dataclasses.replace(shots, audio=audio)
    own, other = judged("Identity", shots)
    assert own > 0.9 > other
    fits, alien = judged("Sync", shots).mean(1)
    assert fits > alien + 0.2
    assert judged("saturation", shots)[0] < -1
    blurred = torch.nn.functional.avg_pool2d(first, 3, 1, 1)
    soft = dataclasses.replace(shots, frames=torch.stack([first, blurred]), columns={"truth": true})
    sharp, dull = judged("sharpness", soft)
    assert sharp == 1 > dull
    noisy = first + 0.1 * torch.randn(first.shape, generator=torch.Generator().manual_seed(0))
    noisy[:-8] = first[:-8]  # the last two latent frames alone
    restless = dataclasses.replace(soft, frames=torch.stack([first, noisy]))
    steady, uneasy = judged("flicker", restless)
    assert bool((uneasy[-2:] < steady[-2:]).all())
    torch.testing.assert_close(uneasy[:-3], steady[:-3])
    assert float(judged("flicker", soft)[1].sum()) >= float(judged("flicker", soft)[0].sum())


def test_critics_of_films_judge_samples_where_the_true_face_is(tmp_path: Path) -> None:
    pytest.importorskip("onnx", reason="the [arcface] extra is not installed")
    arcface = str(recogniser_file(tmp_path / "w600k_r50.onnx"))
    syncnet = str(syncnet_file(tmp_path / "syncnet_v2.model"))
    draw = torch.Generator().manual_seed(0)
    video = torch.rand(1, 9, 3, 48, 48, generator=draw) * 2 - 1
    clips = make_batch(1, 9)
    valid = clips.valid.clone()
    valid[:, 7:] = False
    where = Faces.of(dataclasses.replace(clips, valid=valid))
    columns = {"portrait": video[:, :1], "truth": video, "faces": where,
               "portrait_faces": where.at(torch.tensor([[0]]), torch.tensor([[0]]))}  # fmt: skip
    shots = samples(
        torch.rand(2, 9, 16, generator=draw),
        frames=torch.cat([video[:, :1].expand_as(video), video]),
        condition=torch.tensor([0, 0]),
        columns=columns,
    )
    same, other = judged("Identity", shots, critic=arcface)
    assert same == pytest.approx(1, abs=1e-5)
    assert other < 0.999
    assert judged("MouthOpening", shots, critic="reader").shape == (2, 3)
    with pytest.warns(UserWarning, match="2 of 6 values"):
        fit = Rewards([RewardTerm(GIVEN + "Sync", options={"critic": syncnet})])(shots)["sync"]
    assert torch.isfinite(fit).tolist() == [[True, True, False]] * 2  # not where it is hidden
    blind = dataclasses.replace(shots, columns={**columns, "faces": None})
    with pytest.raises(ValueError, match="arcface looks by 68 landmarks"):
        Rewards([RewardTerm(GIVEN + "Identity", options={"critic": arcface})])(blind)


def test_flicker_where_nothing_moves_is_measured_by_half_of_the_clip_s_mean() -> None:
    """The truth alternates in the last half alone; what is made alternates in the first, too."""
    num = 33
    sign = (-1.0) ** torch.arange(num)[None, :, None, None, None]
    late = (torch.arange(num) >= num // 2)[None, :, None, None, None]
    true = (0.4 * sign * late).expand(1, num, 3, 16, 16).contiguous()
    still = (0.15 * sign * ~late).expand_as(true)
    shots = samples(
        torch.zeros(1, num, 16),
        frames=true + still,
        condition=torch.tensor([0]),
        columns={"truth": true},
    )
    made, truth = (
        by_latent(flicker(as_stored(of[0]))[None], "mean")[0] for of in (true + still, true)
    )
    assert truth[2] == 0
    expected = float(-(made[2] / (0.5 * truth.mean()) - 1 - 0.02))
    assert -1.9 < expected < -0.1, "inside of the bounds"
    assert judged("flicker", shots)[0, 2].item() == pytest.approx(expected)


def test_mouths_that_follow_less_far_than_the_true_ones_are_to_open_further(people: list) -> None:
    clip = people[0]
    true = torch.as_tensor(clip.video).float() / 127.5 - 1
    opening = torch.as_tensor(clip.motion)[..., MOUTH_OPEN]
    widest, shut = true[opening.argmax()], true[opening.argmin()]
    less, more = (
        torch.where((opening > level)[:, None, None, None], other, true)
        for level, other in ((opening.mean(), shut), (opening.mean(), widest))
    )
    motion = torch.as_tensor(clip.motion).float()[None].repeat(2, 1, 1)

    def credit(*videos: Tensor) -> Tensor:
        shown = samples(
            motion, frames=torch.stack(videos), condition=torch.tensor([0, 0]),
            columns={"truth": true[None]},
        )  # fmt: skip
        return judged("MouthOpening", shown)

    half = 0.5 * (true + less)
    follows, not_at_all = credit(true, less)
    assert follows.sum() > not_at_all.sum() + 1, "to follow further earns more"
    assert credit(half, less).sum(1).diff() < 0
    follows, too_far = credit(true, more)
    assert follows.sum() > too_far.sum(), "and too far earns less"
    assert float(credit(true, true).abs().max()) < 1e-5
