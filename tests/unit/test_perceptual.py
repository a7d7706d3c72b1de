"""training/perceptual: which predictions critics see, behind which past, with which sound."""

import dataclasses
from pathlib import Path

import pytest
import torch
from untrained import untrained_critics

from avatar_v.critics.look import Faces
from avatar_v.critics.mfcc import batched_mfcc
from avatar_v.critics.sync import audio_windows, mfcc
from avatar_v.models.vae import VideoVAE
from avatar_v.training.judged_frames import (
    CloseUp,
    decode_behind,
    reference_faces,
    sound_windows,
)
from avatar_v.training.perceptual import TERMS, PerceptualLosses, PerceptualTerms, Predicted
from avatar_v.types import MOTION_NAMES
from avatar_v.weights.card import ASSETS
from avatar_v.weights.random import make_batch, motion_stats
from face_files import dino_folder, recogniser_file, syncnet_file


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.fixture
def critics(tmp_path: Path) -> dict[str, str]:
    return untrained_critics(tmp_path)


def predicted(t: list[float], num_latents: int = 6) -> Predicted:
    shape = (len(t), num_latents, 16, 4, 4)
    clean = torch.randn(shape, generator=seeded())
    return Predicted(
        latents=clean + 0.1 * torch.randn(shape, generator=seeded(1)),
        clean=clean,
        t=torch.tensor(t),
        motion=torch.zeros(len(t), num_latents, 64),
        motion_stats=motion_stats(),
        clips=dataclasses.replace(
            make_batch(len(t), 29, 32, latent_channels=16),
            reference=make_batch(len(t), 25, 32, latent_channels=16),
            audio=0.1 * torch.randn(len(t), 640 * 29, generator=seeded(2)),
        ),
        start=torch.zeros(len(t), dtype=torch.long),
    )


def test_nothing_is_judged_early_in_the_flow_or_before_its_step(critics) -> None:
    vae = VideoVAE.tiny().requires_grad_(False)
    losses = PerceptualLosses(PerceptualTerms(identity={0: 0.0, 10: 1.0}, **critics))
    assert losses.loss(predicted([0.1, 0.2]), vae, 9, seeded())[1] == {}
    assert losses.loss(predicted([0.9, 0.8]), vae, 10, seeded())[1] == {}
    assert set(losses.loss(predicted([0.9, 0.2]), vae, 10, seeded())[1]) == {"perceptual_identity"}
    assert losses.loss(predicted([0.1], num_latents=3), vae, 10, seeded())[1] == {}  # too short


def test_judged_predictions_are_drawn_from_all_that_are_late_enough(critics) -> None:
    vae = VideoVAE.tiny().requires_grad_(False)
    given = predicted([0.1, 0.8, 0.5, 0.3])
    values = set()
    for latest, num in ((0.7, 3), (0.9, 4)):
        losses = PerceptualLosses(
            PerceptualTerms(features={0: 1.0}, max_samples=1, latest_t=latest, **critics)
        )
        found = [losses.loss(given, vae, 0, seeded(i))[1] for i in range(20)]
        found = {round(float(logs["perceptual_features"]), 6) for logs in found}
        # a run may start at latent 2, 3 or 4
        assert num < len(found) <= 3 * num
        values |= found
    with pytest.raises(ValueError, match="latest_t"):
        PerceptualTerms(latest_t=0.0)


def test_a_perfect_prediction_costs_nothing_to_perception(critics) -> None:
    vae = VideoVAE.tiny().requires_grad_(False)
    losses = PerceptualLosses(PerceptualTerms(features={0: 2.0}, **critics))
    same = predicted([0.2])
    same = dataclasses.replace(same, latents=same.clean)
    assert float(losses.loss(same, vae, 0, seeded())[0]) == pytest.approx(0.0, abs=1e-6)
    assert float(losses.loss(predicted([0.2]), vae, 0, seeded())[0]) > 1e-6


def test_a_run_is_decoded_as_within_its_video() -> None:
    vae = VideoVAE.tiny().requires_grad_(False)
    latents = torch.randn(1, 4, 16, 4, 4, generator=seeded())
    whole = vae.decode(latents, clamp=False)
    run = decode_behind(vae, latents[:, :2], latents[:, 2:])
    torch.testing.assert_close(run, whole[:, 5:], atol=1e-5, rtol=1e-5)


def test_the_sound_of_a_run_is_that_of_its_frames() -> None:
    audio = torch.randn(2, 640 * 29, generator=seeded())
    windows = sound_windows(audio, torch.tensor([1, 4]), 8)
    assert windows.shape == (2, 4, 20, 13)
    of_clip = [audio_windows(mfcc(x)) for x in audio]  # one a frame, from frame 0
    torch.testing.assert_close(windows[0], of_clip[0][1:5])  # latent 1 holds frames 1 to 4
    torch.testing.assert_close(windows[1], of_clip[1][13:17])


def test_sound_of_many_clips_has_the_coefficients_of_each() -> None:
    for num in (300, 400, 401, 640 * 9):
        noise = 0.2 * torch.randn(num, generator=seeded())
        audio = torch.stack([noise, 1e-4 * noise, torch.zeros(num)])
        expected = torch.stack([mfcc(x) for x in audio])
        torch.testing.assert_close(batched_mfcc(audio), expected, rtol=1e-5, atol=1e-5)


def test_the_face_of_a_reference_is_the_first_one_that_is_seen() -> None:
    vae = VideoVAE.from_pretrained(ASSETS / "small" / "vae").requires_grad_(False)
    latents = torch.randn(1, 7, 16, 4, 4, generator=seeded())
    whole, rows = vae.decode(latents), torch.tensor([0])
    clip = dataclasses.replace(make_batch(1, 25, 32), video=None, latents=latents)
    hidden = clip.valid.clone()
    # a latent is seen when all its frames are: latent 3 holds frames 9 to 12
    for first, shown in ((0, 0), (9, 12), (25, 0)):
        valid = hidden.clone()
        valid[:, :first] = False
        face = reference_faces(vae, dataclasses.replace(clip, valid=valid), rows)
        distance = (whole[0] - face[0]).abs().mean((1, 2, 3))
        assert int(distance.argmin()) == shown
        # behind two latents, in place of all that came before; decoded alone it is .1 away
        assert distance[shown] < 0.02
    valid[:, :3], valid[:, 3:] = False, True
    video = make_batch(2, 25, 32, seed=3).video
    assert video is not None
    given = dataclasses.replace(make_batch(2, 25, 32), video=video, valid=valid.expand(2, -1))
    face = reference_faces(vae, given, torch.tensor([1]))
    torch.testing.assert_close(face, vae.decode(vae.encode(video[1:, 3:4])))


def test_terms_are_checked() -> None:
    with pytest.raises(ValueError, match="identity needs an entry for step 0"):
        PerceptualTerms(identity={5: 1.0})
    with pytest.raises(ValueError, match=r"motion\[0\] is at least 0"):
        PerceptualTerms(motion={0: -1.0})
    with pytest.raises(ValueError, match="num_latents >= 2"):
        PerceptualTerms(sync={0: 0.0, 9: 1.0}, num_latents=1)
    with pytest.raises(ValueError, match="component weights are not negative"):
        PerceptualTerms(components={"nose": 2.0})


def test_a_component_counts_by_its_weight_in_what_is_predicted(critics) -> None:
    vae = VideoVAE.tiny().requires_grad_(False)

    def value(components: dict[str, float]) -> float:
        losses = PerceptualLosses(
            PerceptualTerms(motion={0: 1.0}, components=components, **critics)
        )
        return float(losses.loss(predicted([0.2]), vae, 0, seeded())[0])

    alone = [value(dict.fromkeys(MOTION_NAMES, 0.0) | {name: 1.0}) for name in MOTION_NAMES]
    assert value({}) == pytest.approx(sum(alone) / len(alone), rel=1e-4)
    assert len(set(alone)) == len(alone)


def test_motion_that_was_not_read_losses_nothing(critics) -> None:
    vae = VideoVAE.tiny().requires_grad_(False)
    losses = PerceptualLosses(PerceptualTerms(motion={0: 1.0}, **critics))
    given = predicted([0.1, 0.2])
    known = torch.zeros(2, len(MOTION_NAMES), dtype=torch.bool)
    assert float(losses.loss(given, vae, 0, seeded())[0]) > 0
    clips = dataclasses.replace(given.clips, motion_known=known)
    unread = dataclasses.replace(given, clips=clips)
    assert float(losses.loss(unread, vae, 0, seeded())[0]) == 0
    known[0, MOTION_NAMES.index("yaw")] = True
    some = [
        losses.loss(dataclasses.replace(unread, motion=motion), vae, 0, seeded())[0]
        for motion in (torch.zeros(2, 6, 64), torch.ones(2, 6, 64))
    ]
    assert float(some[0]) > 0
    assert float(some[0]) != float(some[1])


@pytest.fixture(scope="module")
def of_films(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Critics of filmed faces, by the options of PerceptualTerms."""
    pytest.importorskip("onnx", reason="the [arcface] extra is not installed")
    folder = tmp_path_factory.mktemp("weights")
    return {
        "face_critic": str(recogniser_file(folder / "w600k_r50.onnx")),
        "feature_critic": str(dino_folder(folder / "dinov2")),
        "sync_critic": str(syncnet_file(folder / "syncnet_v2.model")),
        "motion_meter": "reader",
    }


def test_critics_of_films_see_the_face_alone_and_only_where_it_is_visible(of_films) -> None:
    vae = VideoVAE.tiny().requires_grad_(False)
    on = {name: {0: 1.0} for name in TERMS}
    losses = PerceptualLosses(PerceptualTerms(**on, **of_films, close_up=2))
    given = predicted([0.1, 0.2])
    shown = torch.tensor([0.25, 0.25, 0.75, 0.75]).expand(2, 29, 4)
    valid = given.clips.valid.clone()
    valid[1, 12:] = False
    clips = dataclasses.replace(given.clips, face_box=shown, valid=valid)
    latents = given.latents.clone().requires_grad_(True)
    given = dataclasses.replace(given, clips=clips, latents=latents)
    found = losses.values(given, torch.tensor([0, 1]), 3, vae, TERMS)
    for name in TERMS:
        assert float(found[name][0]) > 0 == float(found[name][1]), name
    sum(x.sum() for x in found.values()).backward()
    assert latents.grad is not None
    reached = latents.grad[0].abs().sum((0, 1)) > 0
    assert reached.tolist() == [[0 < i < 3 and 0 < j < 3 for j in range(4)] for i in range(4)]
    same = dataclasses.replace(given, latents=given.clean)
    for name in ("motion", "features"):
        assert float(losses.values(same, torch.tensor([0]), 3, vae, (name,))[name]) < 1e-9


def test_a_point_of_the_face_stays_where_it_is_in_a_close_up() -> None:
    latents = torch.arange(6 * 8.0).view(1, 1, 1, 6, 8)
    box = torch.tensor([[[0.6, 0.3, 0.9, 0.6]]])
    faces = Faces(box, box.view(1, 1, 2, 2).repeat(1, 1, 34, 1), torch.ones(1, 1).bool())
    for side in (3, 7):
        part = CloseUp.around(faces, side, 6, 8)
        cut, moved = part.of(latents), part.faces(faces, 6, 8)
        assert cut.shape[3:] == (min(side, 6), min(side, 8))
        assert moved.landmarks is not None
        for corner in range(2):
            assert torch.equal(moved.landmarks[0, 0, corner], moved.box.view(2, 2)[corner])
            x, y = (box.view(2, 2)[corner] * torch.tensor([8, 6])).tolist()
            there = moved.box.view(2, 2)[corner] * torch.tensor([cut.shape[4], cut.shape[3]])
            first = int(cut[0, 0, 0, 0, 0])
            assert there.tolist() == pytest.approx([x - first % 8, y - first // 8], abs=1e-5)


def test_what_is_not_supplied_is_said_once_or_an_error(of_films, tmp_path: Path) -> None:
    on = {name: {0: 1.0} for name in TERMS}
    missing = of_films | {"sync_critic": str(tmp_path / "syncnet_v2.model")}
    with pytest.raises(ValueError, match=r"critic of sync.*is missing.*syncnet_v2\.model from"):
        PerceptualTerms(**on, **missing)
    terms = PerceptualTerms(**on, **missing, if_supplied=True)
    with pytest.warns(UserWarning, match=r"off: the critic of sync, .* is missing") as said:
        losses = PerceptualLosses(terms)
    assert len(said) == 1
    assert set(losses.critics) == set(TERMS) - {"sync"}
    vae, given = VideoVAE.tiny().requires_grad_(False), predicted([0.1])
    given = dataclasses.replace(given, clips=dataclasses.replace(given.clips, landmarks=None))
    with pytest.warns(UserWarning, match="68 landmarks, which a clip of 0 lacks") as said:
        found = [losses.loss(given, vae, 0, seeded())[1] for _ in range(2)]
    assert (len(said), found) == (1, [{}, {}])
    strict = PerceptualLosses(PerceptualTerms(motion={0: 0.0, 9: 1.0}, motion_meter="reader"))
    with pytest.raises(ValueError, match="import clips with the extra faces"):
        strict.loss(given, vae, 0, seeded())
    (tmp_path / "syncnet_v2.model").write_bytes(b"something else")
    with pytest.raises(ValueError, match=r"syncnet_v2\.model is not a readable"):
        PerceptualLosses(terms)
    with pytest.raises(ValueError, match=r"close_up is 2, but whole frames go to \['face'\]"):
        PerceptualLosses(PerceptualTerms(identity={0: 1.0}, close_up=2))
