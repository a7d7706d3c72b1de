"""Recogniser: ArcFace with gradients, for losses and rewards of real people.

The recogniser of insightface's pack in torch, equal to onnxruntime's within 1e-4 of the unit
embedding. Faces are aligned to the 112 x 112 template by five points (Deng et al. 2019) of the
landmarks that clips have. What scores, with a detector of its own, is arcface.ArcFace.
"""

from pathlib import Path

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from avatar_v.critics.frozen import hash_files
from avatar_v.critics.look import Faces, Square, Video, cut, in_pixels
from avatar_v.critics.onnx_network import OnnxNetwork
from avatar_v.faces.arcface import NUM_DIMS

SIDE = 112
TEMPLATE = (
    (38.2946, 51.6963), (73.5318, 51.5014), (56.0252, 71.7366), (41.5493, 92.3655),
    (70.7299, 92.2041),
)  # fmt: skip
"""Eyes, nose and corners of the mouth in insightface's template."""
SOURCE = (
    "w600k_r50.onnx of insightface's buffalo_l (github.com/deepinsight/insightface, release v0.7; "
    "for non-commercial research only): the file, or a folder that has it"
)


class Recogniser(nn.Module):
    """``path``: an .onnx file, or a folder in which one is a recogniser (3 x 112 x 112 in).

    ValueError for a missing file, for none or several of them, and for a graph that is no
    recogniser; ImportError naming the extra where onnx is absent.
    """

    name = "arcface"
    by_face = True

    def __init__(self, path: str | Path) -> None:
        super().__init__()
        self._file, self.network = _recogniser_of(Path(path))
        with torch.no_grad():
            found = tuple(self.network(torch.zeros(1, 3, SIDE, SIDE)).shape)
        if found != (1, NUM_DIMS):
            raise ValueError(
                f"{self._file} gives {found}, not {NUM_DIMS} numbers; expected {SOURCE}"
            )
        self._hash = hash_files([self._file])

    def hash(self) -> str:
        """12 hex digits of sha256 over the file."""
        return self._hash

    def look(self, video: Video, faces: Faces | None) -> Float[Tensor, "b f 3 112 112"]:
        assert faces is not None
        assert faces.landmarks is not None
        points = in_pixels(faces.landmarks.flatten(0, 1).float(), video.shape[3], video.shape[4])
        pictures = video.float().clamp(-1, 1).flatten(0, 1)
        return cut(pictures, aligned(points), SIDE).unflatten(0, video.shape[:2])

    def read(self, crops: Float[Tensor, "n 3 112 112"]) -> Float[Tensor, "n 512"]:
        """Unit vectors of RGB faces in [-1, 1]."""
        return F.normalize(self.network(crops), dim=1)


def aligned(landmarks: Float[Tensor, "n 68 2"]) -> Square:
    """The square of the template around faces whose landmarks are in pixels: the similarity from
    five points to the template's, by least squares (as Umeyama's without mirrors)."""
    eyes = [landmarks[:, 36:42].mean(1), landmarks[:, 42:48].mean(1)]
    points = torch.stack([*eyes, landmarks[:, 30], landmarks[:, 48], landmarks[:, 54]], dim=1)
    there = torch.tensor(TEMPLATE, device=points.device)
    here, middle = points - points.mean(1, keepdim=True), there.mean(0)
    there = there - middle
    size = here.square().sum((1, 2)).clamp_min(1e-6)
    along = (here * there).sum((1, 2)) / size
    turned = (here[..., 0] * there[..., 1] - here[..., 1] * there[..., 0]).sum(1) / size
    whole = (along.square() + turned.square()).clamp_min(1e-12)
    right = torch.stack([along, -turned], dim=1) / whole[:, None]  # a pixel of the template
    down = torch.stack([turned, along], dim=1) / whole[:, None]
    offset = (SIDE - 1) / 2 - middle
    centre = points.mean(1) + offset[0] * right + offset[1] * down
    return Square(centre, SIDE / 2 * right, SIDE / 2 * down)


def _recogniser_of(path: Path) -> tuple[Path, OnnxNetwork]:
    """The only network of a folder, or the file, that takes faces."""
    files = sorted(path.glob("*.onnx")) if path.is_dir() else [path]
    if not files or not files[0].is_file():
        raise ValueError(f"{path}: no .onnx file; expected {SOURCE}")
    found, reasons = [], []
    for file in files:
        try:
            network = OnnxNetwork(file)
        except ValueError as error:
            reasons.append(str(error))
            continue
        if network.input_shape[1:] == [3, SIDE, SIDE]:
            found.append((file, network))
        else:
            reasons.append(f"{file} takes {network.input_shape}")
    if len(found) != 1:
        raise ValueError(f"{path}: {len(found)} recognisers ({'; '.join(reasons)}); {SOURCE}")
    return found[0]
