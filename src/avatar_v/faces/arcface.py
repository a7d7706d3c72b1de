"""ArcFace: whose face is this, among real people? insightface's detector and recogniser.

Faces are found by SCRFD, aligned by five points to the 112 x 112 template and embedded (Deng et al.
2019); the field reports the cosine of two embeddings. Weights are the user's to supply; the extra
[arcface] brings the code. For pictures of the world see face.FaceCritic.
"""

import importlib
import importlib.util
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, UInt8
from torch import Tensor

from avatar_v.base.outside import check_pulled
from avatar_v.critics.frozen import Score, hash_files

Frames = UInt8[Tensor, "f 3 h w"]

NUM_DIMS = 512
SOURCE = (
    "det_10g.onnx and w600k_r50.onnx of insightface's buffalo_l "
    "(github.com/deepinsight/insightface, release v0.7; for non-commercial research only): "
    "unpack them into one folder and pass it"
)


class ArcFace:
    """A folder with one detector and one recogniser in ONNX, as insightface names and routes them.

    ValueError for a folder without them or with files that are something else; ImportError naming
    the extra where insightface is absent. ``detection_side``: pictures are fitted into this square.
    """

    name = "arcface"

    def __init__(self, folder: str | Path, *, detection_side: int = 640) -> None:
        if importlib.util.find_spec("insightface") is None:
            raise ImportError("ArcFace needs insightface: pip install 'avatar_v[arcface]'")
        paths = sorted(Path(folder).glob("*.onnx"))
        if not paths:
            raise ValueError(f"{folder}: no .onnx file; ArcFace needs {SOURCE}")
        check_pulled(folder)
        zoo: Any = importlib.import_module("insightface.model_zoo")
        models = {path: zoo.get_model(str(path)) for path in paths}
        self._detector = _one(folder, models, "detection")
        self._recogniser = _one(folder, models, "recognition")
        self._detector.prepare(-1, input_size=(detection_side, detection_side))
        self._recogniser.prepare(-1)
        self._hash = hash_files([Path(m.model_file) for m in (self._detector, self._recogniser)])

    def hash(self) -> str:
        """12 hex digits of sha256 over both files."""
        return self._hash

    def measure(self, frames: Frames) -> tuple[Score, Bool[Tensor, " f"]]:
        """Unit embeddings "f 512" of the largest face in each picture, and where there is one.
        Rows without a face are 0."""
        rows = torch.zeros(len(frames), NUM_DIMS)
        found = torch.zeros(len(frames), dtype=torch.bool)
        align: Any = importlib.import_module("insightface.utils.face_align")
        for index, picture in enumerate(_bgr(frames)):
            points = self._largest(picture)
            if points is None:
                continue
            face = align.norm_crop(picture, landmark=points)
            rows[index] = torch.from_numpy(self._recogniser.get_feat(face)).float().flatten()
            found[index] = True
        return Score(F.normalize(rows, dim=1), self.name, self._hash), found

    def _largest(self, picture: UInt8[np.ndarray, "h w 3"]) -> Float[np.ndarray, "5 2"] | None:
        """Eyes, nose and mouth corners of the largest face."""
        boxes, points = self._detector.detect(picture)
        if len(boxes) == 0:
            return None
        area = (boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1])
        return points[int(area.argmax())]


def _one(folder: str | Path, models: dict[Path, Any], task: str) -> Any:
    """The only model of a task; ValueError for none and for several."""
    found = [model for model in models.values() if getattr(model, "taskname", "") == task]
    if len(found) != 1:
        names = ", ".join(path.name for path in models)
        raise ValueError(f"{folder}: {len(found)} {task} models in {names}; expected one. {SOURCE}")
    return found[0]


def _bgr(frames: Frames) -> Iterator[UInt8[np.ndarray, "h w 3"]]:
    """Pictures in OpenCV's order of axes and colours."""
    for frame in frames:
        yield np.ascontiguousarray(frame.flip(0).permute(1, 2, 0).cpu().numpy())
