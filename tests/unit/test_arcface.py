"""critics/arcface over ONNX files with insightface's layout and small weights of our own."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

pytest.importorskip("insightface", reason="the [arcface] extra is not installed")
onnx = pytest.importorskip("onnx")

from avatar_v.faces.arcface import ArcFace  # noqa: E402

SIDE, STRIDES, ANCHORS = 64, (8, 16, 32), 2
FACE = ((20.0, 24.0), (44.0, 24.0), (32.0, 34.0), (24.0, 46.0), (40.0, 46.0))
"""Eyes, nose, mouth corners: where the small detector sees a face in every bright picture."""


def save(path: Path, nodes: list, inputs: list, outputs: list, weights: dict) -> None:
    tensors = [onnx.numpy_helper.from_array(value, name) for name, value in weights.items()]
    graph = onnx.helper.make_graph(nodes, "small", inputs, outputs, tensors)
    opset = [onnx.helper.make_opsetid("", 17)]
    model = onnx.helper.make_model(graph, opset_imports=opset, ir_version=9)
    onnx.save(model, str(path))


def value(name: str, shape: list) -> object:
    return onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, shape)


def detector(path: Path) -> None:
    """SCRFD's nine outputs. One anchor of stride 8 fires in proportion to the mean brightness."""
    node = onnx.helper.make_node
    nodes = [
        node("ReduceMean", ["input"], ["mean"], axes=[0, 1, 2, 3], keepdims=0),
        node("Add", ["mean", "one"], ["level"]),  # 0 for black, 2 for white
    ]
    outputs, weights = [], {"one": np.float32(1.0)}
    for kind, width in (("score", 1), ("bbox", 4), ("kps", 10)):
        for stride in STRIDES:
            num = (SIDE // stride) ** 2 * ANCHORS
            table = np.zeros((num, width), np.float32)
            if stride == 8:
                row = 4 * (SIDE // 8) + 4  # the anchor point (32, 32)
                if kind == "score":
                    table[row * ANCHORS] = 0.5
                if kind == "bbox":
                    table[row * ANCHORS] = 2.5  # 20 pixels each way
                if kind == "kps":
                    offset = (np.array(FACE, np.float32) - 32) / 8
                    table[row * ANCHORS] = offset.ravel()
            name = f"{kind}_{stride}"
            weights[f"{name}_table"] = table
            factor = "level" if kind == "score" else "one"
            nodes.append(node("Mul", [f"{name}_table", factor], [name]))
            outputs.append(value(name, [num, width]))
    save(path, nodes, [value("input", [1, 3, SIDE, SIDE])], outputs, weights)


def recogniser(path: Path) -> None:
    """112 x 112 pictures to 512 numbers by one random projection of a coarse picture."""
    node = onnx.helper.make_node
    draw = np.random.default_rng(0)
    nodes = [
        node("AveragePool", ["data"], ["coarse"], kernel_shape=[16, 16], strides=[16, 16]),
        node("Flatten", ["coarse"], ["flat"], axis=1),
        node("MatMul", ["flat", "projection"], ["embedding"]),
    ]
    weights = {"projection": draw.standard_normal((3 * 49, 512)).astype(np.float32)}
    inputs = [value("data", ["batch", 3, 112, 112])]
    save(path, nodes, inputs, [value("embedding", ["batch", 512])], weights)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    detector(tmp_path / "det_10g.onnx")
    recogniser(tmp_path / "w600k_r50.onnx")
    return tmp_path


@pytest.fixture
def faces() -> Tensor:
    """Two different bright pictures, the first again with noise, and a black one."""
    draw = torch.Generator().manual_seed(0)
    coarse = torch.randint(120, 256, (2, 3, 8, 8), generator=draw).float()
    two = torch.nn.functional.interpolate(coarse, scale_factor=8, mode="bilinear")
    noisy = two[:1] + torch.randn(1, 3, 64, 64, generator=draw) * 4
    pictures = torch.cat([two, noisy, torch.zeros(1, 3, 64, 64)])
    return pictures.round().clamp(0, 255).byte()


def test_the_same_face_is_near_and_no_face_is_said(folder: Path, faces: Tensor) -> None:
    critic = ArcFace(folder, detection_side=SIDE)
    score, found = critic.measure(faces)
    assert found.tolist() == [True, True, True, False]
    assert score.values.shape == (4, 512)
    assert score.values[3].eq(0).all()
    assert score.values[:3].norm(dim=1).tolist() == pytest.approx([1, 1, 1], abs=1e-5)
    same, other = float(score.values[0] @ score.values[2]), float(score.values[0] @ score.values[1])
    assert same > 0.99
    assert same > other
    assert (score.critic, score.weights_hash) == ("arcface", critic.hash())


def test_the_face_is_aligned_before_it_is_embedded(folder: Path, faces: Tensor) -> None:
    """The same embedding as from the crop that insightface's template asks for."""
    from insightface.utils.face_align import norm_crop

    critic = ArcFace(folder, detection_side=SIDE)
    picture = faces[0].flip(0).permute(1, 2, 0).numpy()
    crop = norm_crop(np.ascontiguousarray(picture), np.array(FACE, np.float32))
    expected = torch.from_numpy(critic._recogniser.get_feat(crop)).flatten()
    own = critic.measure(faces[:1])[0].values[0]
    torch.testing.assert_close(own, expected / expected.norm(), atol=1e-3, rtol=1e-3)


def test_missing_weights_are_one_error_with_their_source(folder: Path) -> None:
    (folder / "w600k_r50.onnx").unlink()
    with pytest.raises(ValueError, match=r"0 recognition models in det_10g\.onnx.*buffalo_l"):
        ArcFace(folder)
    (folder / "det_10g.onnx").unlink()
    with pytest.raises(ValueError, match=r"no \.onnx file; ArcFace needs det_10g\.onnx"):
        ArcFace(folder)


def test_two_recognisers_are_refused(folder: Path) -> None:
    recogniser(folder / "another.onnx")
    with pytest.raises(ValueError, match="2 recognition models"):
        ArcFace(folder)
