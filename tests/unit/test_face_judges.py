"""Critics of filmed faces as losses: where they look, gradients, files, and what is refused."""

import dataclasses
import functools
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from avatar_v.critics.dino import Dino
from avatar_v.critics.look import FaceJudge, FaceReading, Faces, Square, cut
from avatar_v.critics.syncnet import SyncNet
from avatar_v.faces.face import FaceCritic
from avatar_v.faces.face_reader import FaceReader
from avatar_v.faces.face_track import FaceTrack, head_box, track_faces
from avatar_v.faces.objectives import objective
from avatar_v.faces.patches import from_68
from avatar_v.faces.recogniser import Recogniser, aligned
from avatar_v.media.reading import read_video
from face_files import dino_folder, recogniser_file, syncnet_file

MEAN_FACE = torch.rand(68, 2, generator=torch.Generator().manual_seed(0)) * 0.4 + 0.3
for _place, _rows in (
    ((0.42, 0.45), range(36, 42)), ((0.58, 0.45), range(42, 48)), ((0.5, 0.63), range(48, 68))
):  # fmt: skip
    MEAN_FACE[list(_rows)] = torch.tensor(_place) + 0.1 * (MEAN_FACE[list(_rows)] - 0.5)
MEAN_FACE[[36, 39, 42, 45, 30, 48, 54]] = torch.tensor(
    [
        [0.38, 0.45],
        [0.46, 0.45],
        [0.54, 0.45],
        [0.62, 0.46],
        [0.5, 0.55],
        [0.44, 0.63],
        [0.56, 0.64],
    ]
)


def faces(num: int, num_frames: int) -> Faces:
    landmarks = MEAN_FACE.expand(num, num_frames, 68, 2)
    box = torch.tensor([0.3, 0.2, 0.7, 0.75]).expand(num, num_frames, 4)
    return Faces(box, landmarks, torch.ones(num, num_frames, dtype=torch.bool))


def smooth(num_frames: int, height: int = 96, width: int = 128, seed: int = 0) -> Tensor:
    """Frames of a few large spots, "1 f 3 h w"."""
    coarse = torch.randn(num_frames, 3, 6, 8, generator=torch.Generator().manual_seed(seed))
    size = (height, width)
    return 0.4 * torch.nn.functional.interpolate(coarse, size, mode="bicubic").clamp(-2, 2)[None]


@functools.cache
def filmed(media: Path) -> tuple[Tensor, Faces]:
    """Five frames of a real person, "1 f 3 h w", and where the face is."""
    frames = read_video(media / "presenter.mp4", max_frames=5)
    track: FaceTrack = track_faces(frames)
    assert bool(track.found.all())
    where = Faces(head_box(track.landmarks)[None], track.landmarks[None], track.found[None])
    return (frames.float() / 127.5 - 1)[None], where


def judgement(judge: FaceJudge, video: Tensor, where: Faces) -> Tensor:
    """A number of all that a critic says of five frames."""
    crops = judge.look(video, where)
    if isinstance(judge, Dino):
        maps = judge.features(crops.flatten(0, 1))
        assert [tuple(x.shape) for x in maps] == [(5, 32, 2, 2)] * 4
        return torch.stack([x.square().mean() for x in maps]).sum()
    if isinstance(judge, SyncNet):
        return judge.embed_video(crops).square().mean()
    assert isinstance(judge, FaceReading)
    read = judge.read(crops.flatten(0, 1))
    return (read * torch.linspace(-1, 1, read.shape[1])).sum(1).square().mean()


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("weights")
    (folder / "arcface").mkdir()
    pytest.importorskip("onnx", reason="the [arcface] extra is not installed")
    recogniser_file(folder / "arcface" / "w600k_r50.onnx")
    (folder / "arcface" / "det_10g.onnx").write_bytes(b"something else")
    dino_folder(folder / "dinov2", num_layers=4)
    syncnet_file(folder / "syncnet_v2.model")
    return folder


@pytest.mark.parametrize("fineness", [0.7, 1.0, 1.7, 4.0, 6.5])
def test_a_square_is_cut_where_it_lies_however_fine_the_picture(fineness: float) -> None:
    """A picture whose colours are places, which averaging keeps."""
    size, half = 8, 4 * fineness
    y, x = torch.meshgrid(torch.arange(90.0), torch.arange(120.0), indexing="ij")
    middle = torch.tensor([[60.3, 45.1], [50.0, 40.0]])
    turned = torch.tensor([[0.8, 0.6], [1.0, 0.0]])
    down = torch.stack([-turned[:, 1], turned[:, 0]], dim=1)
    found = cut(torch.stack([x, y])[None].repeat(2, 1, 1, 1), Square(middle, half * turned,
                half * down), size)  # fmt: skip
    steps = (torch.arange(size) + 0.5) / size * 2 - 1
    across = steps[None, None, :, None] * half * turned[:, None, None]
    expected = middle[:, None, None] + across + steps[None, :, None, None] * half * down[:, None,
                None]  # fmt: skip
    torch.testing.assert_close(found, expected.movedim(-1, 1), atol=2e-4, rtol=0)
    stripes = (torch.arange(120) % 2 * 2.0 - 1).expand(1, 1, 90, 120)
    square = Square(torch.tensor([[60.5, 45.5]]), torch.tensor([[half, 0.0]]),
                    torch.tensor([[0.0, half]]))  # fmt: skip
    seen = cut(stripes, square, size).abs().max()
    assert bool(seen < 0.01) == (fineness > 2)  # all or nothing of what is too fine


@pytest.mark.parametrize("what", ["identity", "features", "sync", "motion"])
def test_gradients_go_through_crop_and_network(what: str, files: Path) -> None:
    """Against differences along a few large spots. 3 %: fp32, and the kinks of ReLUs."""
    names = {"identity": "arcface", "features": "dinov2", "sync": "syncnet_v2.model"}
    judge = objective(what, str(files / names[what]) if what in names else "reader")
    video, where = smooth(5), faces(1, 5)
    step = smooth(5, seed=1)
    leaf = video.clone().requires_grad_(True)
    judgement(judge, leaf, where).backward()
    assert leaf.grad is not None
    assert all(not p.requires_grad for p in judge.parameters())
    half = 1e-3
    with torch.no_grad():
        ends = [float(judgement(judge, video + h * step, where)) for h in (half, -half)]
    change = (ends[0] - ends[1]) / (2 * half)
    assert float((leaf.grad * step).sum()) == pytest.approx(change, rel=0.03)
    corner = leaf.grad[..., :8, :8].abs().max()
    assert float(corner) == 0 < float(leaf.grad.abs().max())  # far from the face


def test_the_recogniser_is_that_of_onnxruntime_and_its_crop_that_of_insightface(
    files: Path,
) -> None:
    """Unit embeddings within 1e-5: sums of another order. Crops: cv2 computes places in 1/32
    pixel, and pictures have whole numbers."""
    zoo = pytest.importorskip("insightface.model_zoo", reason="the [arcface] extra is missing")
    from insightface.utils.face_align import norm_crop

    model = zoo.get_model(str(files / "arcface" / "w600k_r50.onnx"))
    picture = ((smooth(1, 224, 224)[0, 0] + 1) * 127.5).round().clamp(0, 255)
    landmarks = MEAN_FACE[None] * 224
    points = torch.stack([landmarks[0, a:b].mean(0) for a, b in ((36, 42), (42, 48), (30, 31),
                          (48, 49), (54, 55))])  # fmt: skip
    bgr = np.ascontiguousarray(picture.flip(0).permute(1, 2, 0).byte().numpy())
    theirs = norm_crop(bgr, points.numpy())
    crop = cut(picture[None], aligned(landmarks), 112)[0]
    theirs_rgb = torch.from_numpy(theirs).permute(2, 0, 1).flip(0).float()
    assert float((crop - theirs_rgb).abs().mean()) < 0.5
    expected = torch.nn.functional.normalize(torch.from_numpy(model.get_feat(theirs)), dim=1)
    own = Recogniser(files / "arcface").read(theirs_rgb[None] / 127.5 - 1)
    torch.testing.assert_close(own, expected, atol=1e-5, rtol=0)


def test_files_that_are_no_recogniser_are_one_error(files: Path, tmp_path: Path) -> None:
    from onnx import helper, load, save

    good = load(str(files / "arcface" / "w600k_r50.onnx"))
    recogniser_file(tmp_path / "short.onnx", num_out=128)
    good.graph.node[1].op_type = "Softplus"
    save(good, str(tmp_path / "other.onnx"))
    good.graph.node[1].op_type = "PRelu"
    good.graph.node[0].attribute.append(helper.make_attribute("auto_pad", "SAME_UPPER"))
    save(good, str(tmp_path / "padded.onnx"))
    for name, words in {
        "short.onnx": r"gives \(1, 128\), not 512.*buffalo_l",
        "other.onnx": "operators that are not read: Softplus",
        "padded.onnx": "attributes auto_pad are not read",
        "none.onnx": r"no \.onnx file; expected w600k_r50\.onnx",
    }.items():
        with pytest.raises(ValueError, match=words):
            Recogniser(tmp_path / name)
    with pytest.raises(ValueError, match=r"det_10g\.onnx is not a readable ONNX file"):
        Recogniser(files / "arcface" / "det_10g.onnx")
    (tmp_path / "two").mkdir()
    for name in ("two/a", "two/b"):
        (tmp_path / f"{name}.onnx").write_bytes((files / "arcface/w600k_r50.onnx").read_bytes())
    with pytest.raises(ValueError, match="2 recognisers"):
        Recogniser(tmp_path / "two")


def test_a_name_leads_to_its_critic(files: Path, tmp_path: Path) -> None:
    found: dict[str, type] = {
        "arcface": Recogniser, "dinov2": Dino, "syncnet_v2.model": SyncNet
    }  # fmt: skip
    for what, (name, kind) in zip(("identity", "features", "sync"), found.items(), strict=True):
        judge = objective(what, str(files / name))
        assert isinstance(judge, kind)
        assert judge.by_face
        assert len(judge.hash()) == 12
    assert type(objective("motion", "reader")) is FaceReader
    assert type(objective("identity", "face")) is FaceCritic
    assert not objective("features", "face").by_face
    assert isinstance(objective("sync", "sync"), FaceJudge)
    with pytest.raises(ValueError, match=r"syncnet_v2\.model from https"):
        objective("sync", str(tmp_path / "syncnet_v2.model"))
    with pytest.raises(ValueError, match=r"does not fit|not a readable"):
        objective("sync", str(files / "arcface" / "w600k_r50.onnx"))
    with pytest.raises(ValueError, match="held out"):
        objective("identity", "face_held_out")


def test_syncnet_looks_where_its_own_pipeline_cuts() -> None:
    """For a face that stands still, within the picture; its pipeline truncates to whole pixels."""
    from avatar_v.faces.syncnet_crop import CropPlan

    torch.manual_seed(0)
    video, where = smooth(5, 240, 320), faces(1, 5)
    narrow = torch.tensor([0.35, 0.2, 0.65, 0.75]).expand(1, 5, 4)
    where = dataclasses.replace(where, box=narrow)
    own = SyncNet().look(video, where)[0]
    brow = where.box[0].clone()
    brow[:, 1] = brow[:, 3] - 0.65 * (brow[:, 3] - brow[:, 1])
    stored = ((video[0] + 1) * 127.5).round().clamp(0, 255).byte()
    plan = CropPlan(brow[:1].repeat(25, 1), 240, 320)  # its median spans 13 frames
    theirs = plan(stored, 10).float() / 127.5 - 1
    assert float((own - theirs).abs().mean()) < 0.03
    assert float((own - theirs.flip(-1)).abs().mean()) > 0.1


@pytest.mark.media
@pytest.mark.faces
@pytest.mark.parametrize(
    ("what", "side", "down"), [("identity", 1.0, 0.0), ("features", 1.4, 0.0), ("sync", 1.0, 0.3)]
)
def test_critics_look_at_a_filmed_face_and_nowhere_else(
    what: str, side: float, down: float, media: Path, files: Path
) -> None:
    """The gradient reaches each pixel between brows and mouth, and none outside a square of
    ``side`` around a middle so far ``down``, in heights of the head. SyncNet sees the neck, too,
    and DINO's small crop is of blurred pixels from further around."""
    names = {"identity": "arcface", "features": "dinov2", "sync": "syncnet_v2.model"}
    judge = objective(what, str(files / names[what]))
    frames, where = filmed(media)
    assert where.landmarks is not None
    video = frames.clone().requires_grad_(True)
    said = judgement(judge, video, where)
    said.backward()
    assert video.grad is not None
    assert bool(torch.isfinite(said))
    assert bool(torch.isfinite(video.grad).all())
    height, width = video.shape[3:]
    size = torch.tensor([width, height])
    for seen, points, box in zip(
        video.grad[0].abs().sum(1), where.landmarks[0, :, 17:], where.box[0], strict=True
    ):
        between = box_mask(points.amin(0) * size, points.amax(0) * size, height, width)
        assert float((seen[between] > 0).float().mean()) > 0.99
        low, high = box[:2] * size, box[2:] * size
        tall = (high - low)[1]
        middle = (low + high) / 2 + torch.stack([tall * 0, down * tall])
        outside = ~box_mask(middle - side / 2 * tall, middle + side / 2 * tall, height, width)
        assert float(outside.float().mean()) > 0.1
        assert not seen[outside].any()


def box_mask(low: Tensor, high: Tensor, height: int, width: int) -> Tensor:
    """The pixels between two corners, "h w"."""
    y, x = torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")
    return (x >= low[0]) & (x <= high[0]) & (y >= low[1]) & (y <= high[1])


@pytest.mark.media
@pytest.mark.faces
def test_the_reader_sees_a_filmed_face_alike_as_a_loss_and_as_a_measure(media: Path) -> None:
    """In real pictures, three times as fine as the patches; and the gradient of the lids lies on
    the eyes."""
    frames, where = filmed(media)
    height, width = frames.shape[3:]
    assert where.landmarks is not None
    video = frames.clone().requires_grad_(True)
    reader = FaceReader.from_pretrained()
    read = reader.read(reader.look(video, where).flatten(0, 1))
    points = where.landmarks[0] * torch.tensor([width, height])
    measured = reader.measure(video[0].detach(), from_68(points))
    # the measure averages by whole factors, the loss between halvings
    assert float((read - measured).detach().abs().mean()) < 0.05
    read[:, reader.reads.index("eye_open")].sum().backward()
    assert video.grad is not None
    seen = video.grad[0].abs().sum((0, 1))
    low, high = points[:, 36:48].amin((0, 1)), points[:, 36:48].amax((0, 1))
    reach = float(high[0] - low[0]) / 2
    rows = slice(int(low[1] - reach), int(high[1] + reach))
    columns = slice(int(low[0] - reach), int(high[0] + reach))
    assert float(seen[rows, columns].sum()) == pytest.approx(float(seen.sum()), rel=1e-4)
    moved = dataclasses.replace(where, landmarks=where.landmarks + 0.05)
    elsewhere = reader.read(reader.look(video, moved).flatten(0, 1))
    assert float((elsewhere - read).abs().mean()) > 2 * float((read - measured).abs().mean())
