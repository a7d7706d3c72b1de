"""Faces read from patches: cut alike wherever a face is, mirrored gaze, faces to learn from."""

from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

from avatar_v.faces.face_reader import EYES, GAZE, READ, FaceReader
from avatar_v.faces.face_track import FaceTrack
from avatar_v.faces.patches import SIZE, FacePoints, face_patches
from avatar_v.motion.extractors import components, extract, find_extractor, known
from avatar_v.motion.landmarks import head_pose
from avatar_v.objectives.critic import CriticBatch
from avatar_v.objectives.critic_reader import WEIGHT_SHUT, ReaderTask, ShownPatches
from avatar_v.types import MOTION_NAMES
from avatar_v_data.drawn_faces import draw_faces


def smooth(size: int) -> Tensor:
    """A picture whose colours change slowly, in [-1, 1]."""
    y, x = torch.meshgrid(torch.arange(size), torch.arange(size), indexing="ij")
    return torch.stack([torch.sin(x / 17), torch.cos(y / 23), torch.sin((x + y) / 31)])[None]


def moved(points: FacePoints, change) -> FacePoints:
    return FacePoints(change(points.eyes), change(points.mouth))


POINTS = FacePoints(
    torch.tensor([[[60.0, 80.0], [85.0, 82.0], [110.0, 82.0], [135.0, 80.0]]]),
    torch.tensor([[97.0, 130.0]]),
)


def test_patches_follow_a_face_that_is_moved_turned_and_enlarged():
    picture = smooth(192)
    eyes, mouth = face_patches(picture, POINTS)
    assert (eyes.shape, mouth.shape) == ((1, 2, 3, SIZE, SIZE), (1, 3, SIZE, SIZE))
    turned = picture.rot90(1, (2, 3))  # (x, y) goes to (y, 191 - x)
    there = moved(POINTS, lambda p: torch.stack([p[..., 1], 191 - p[..., 0]], -1))
    for one, other in zip(face_patches(turned, there), (eyes, mouth), strict=True):
        torch.testing.assert_close(one, other, atol=1e-4, rtol=0)
    larger = torch.nn.functional.interpolate(picture, scale_factor=2, mode="bilinear")
    there = moved(POINTS, lambda p: 2 * p + 0.5)
    for one, other in zip(face_patches(larger, there), (eyes, mouth), strict=True):
        torch.testing.assert_close(one, other, atol=0.03, rtol=0)
    jittered = face_patches(picture, POINTS, torch.Generator().manual_seed(0))[1]
    assert float((jittered - mouth).abs().max()) > 0.05


def test_of_a_face_in_a_mirror_only_the_gaze_changes():
    """The patches of both eyes change places, so their mean does too."""
    torch.manual_seed(0)
    reader = FaceReader().eval()
    reader.center.fill_(0.25)
    reader.center[GAZE] = 0.0
    picture = torch.rand(1, 3, 192, 192) * 2 - 1
    mirror = FacePoints(
        (torch.tensor([191.0, 0.0]) - POINTS.eyes * torch.tensor([1.0, -1.0])).flip(1),
        torch.tensor([191.0, 0.0]) - POINTS.mouth * torch.tensor([1.0, -1.0]),
    )
    read, other = reader.measure(picture, POINTS), reader.measure(picture.flip(3), mirror)
    expected = read[:, : len(EYES)].clone()
    expected[:, GAZE] *= -1
    torch.testing.assert_close(other[:, : len(EYES)], expected, atol=1e-4, rtol=0)


def test_the_loss_wants_the_mirrored_gaze_of_the_right_eye_and_none_of_shut_eyes():
    torch.manual_seed(0)
    truth = torch.rand(6, len(READ))
    truth[:3, EYES.index("eye_open")], truth[3:, EYES.index("eye_open")] = 0.1, 0.9
    model = FaceReader()
    model.center.copy_(torch.rand(len(READ)))
    model.scale.fill_(0.5)
    eyes = truth[:, None, : len(EYES)].repeat(1, 2, 1)
    eyes[:, 1, GAZE] *= -1
    said = (eyes - model.center[: len(EYES)]) / model.scale[: len(EYES)]
    mouths = (truth[:, len(EYES) :] - model.center[len(EYES) :]) / model.scale[len(EYES) :]
    batch = CriticBatch(
        torch.zeros(6, 2, 3, SIZE, SIZE), ShownPatches(torch.zeros(6, 3, SIZE, SIZE), truth)
    )

    def loss(said: Tensor) -> float:
        networks = SimpleNamespace(model=lambda *_: (said, mouths))
        networks.model.center, networks.model.scale = model.center, model.scale
        return float(ReaderTask().loss(networks, batch))

    assert loss(said) == pytest.approx(0, abs=1e-9)
    shut, wide = said.clone(), said.clone()
    shut[:3, :, GAZE] += 2
    wide[3:, :, GAZE] += 2
    assert loss(shut) == pytest.approx(WEIGHT_SHUT * loss(wide))


def test_drawn_faces_look_to_all_sides_and_are_where_they_are_said_to_be():
    faces = draw_faces("validation", 3, 4, 96)
    assert faces.images.shape == (12, 3, 96, 96)
    gaze = faces.motion[:, MOTION_NAMES.index("gaze_x")]
    assert float(gaze.max() - gaze.min()) > 1
    assert not faces.motion[:, MOTION_NAMES.index("cover")].any()
    assert bool((faces.points.eyes[:, 1:, 0] > faces.points.eyes[:, :-1, 0]).all())
    assert bool((faces.points.mouth[:, 1] > faces.points.eyes[..., 1].amax(1)).all())
    again = draw_faces("validation", 3, 4, 96)
    assert torch.equal(faces.images, again.images)
    assert torch.equal(faces[torch.tensor([5])].motion[0], again.motion[5])


def test_the_extractor_fills_what_it_knows_of_frames_with_a_face():
    reader = find_extractor("reader", face_crop=True)
    assert reader is not None
    faces = draw_faces("validation", 1, 4, 192)
    landmarks = torch.rand(4, 68, 2, generator=torch.Generator().manual_seed(0))
    landmarks[:, [36, 39, 42, 45]] = faces.points.eyes / 192
    landmarks[:, 48:60] = faces.points.mouth[:, None] / 192
    found = torch.tensor([True, True, False, True])
    track = FaceTrack(torch.zeros(4, 4), landmarks, found, 1)
    motion = extract(reader, faces.images, track)
    assert not motion[2].any()
    filled = {name for i, name in enumerate(MOTION_NAMES) if motion[found][:, i].any()}
    assert filled == set(known(reader)) == {*READ, "yaw", "pitch", "roll"}
    assert set(components(reader)) <= filled
    pose = motion[found][:, [MOTION_NAMES.index(n) for n in ("yaw", "pitch", "roll")]]
    torch.testing.assert_close(pose, head_pose(landmarks[found]))
    with pytest.raises(ValueError, match="the reader needs a face track"):
        reader(faces.images, None)
    with pytest.raises(ValueError, match="--motion reader needs the face track; drop --no-face"):
        find_extractor("reader", face_crop=False)
