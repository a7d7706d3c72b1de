"""Identity of real faces by dlib: distance to the reference clip's mean embedding, and its drift.

Offline in the extra [faces]. Below 0.6 dlib takes two faces for one person's.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from avatar_v.faces.dlib_face import embed_faces, weights_hash
from avatar_v.faces.face_track import HOW_TO_INSTALL, is_available
from avatar_v_eval.bench.footage import Clip, Footage
from avatar_v_eval.bench.measured import Measured, Output
from avatar_v_eval.bench.metric import REAL, ClipMetric
from avatar_v_eval.bench.readings import face_notes, face_reading
from avatar_v_eval.bench.sampling import sampled


class FaceDlib(ClipMetric):
    """2 frames a second of both clips, of those in which the face was found."""

    name = "face_dlib"
    version = 1
    judge = "dlib_face_recognition_resnet_model_v1; dlib's HOG detector, 68 landmarks"
    faces = REAL
    outputs = (
        Output("face_dlib", "face distance, dlib", "lower"),
        Output("face_dlib_drift", "face distance, first quarter less last", "zero"),
        Output("face_dlib_found", "sampled frames with a face, dlib", "higher"),
    )

    def __init__(self) -> None:
        super().__init__()
        if not is_available():
            raise ImportError(HOW_TO_INSTALL)

    def weights_hash(self) -> str:
        return weights_hash()

    def measure(self, clip: Clip) -> Measured:
        chosen = _found(clip.video)
        own = _embedded(clip.reference, _found(clip.reference)).mean(0)
        distances = (_embedded(clip.video, chosen) - own).norm(dim=1)
        reading = face_reading(self.name, distances.tolist(), chosen, face_notes(clip.video))
        share = len(chosen) / len(sampled(clip.video.num_frames))
        values = {**reading.values, "face_dlib_found": share}
        return Measured(values, reading.frames, reading.notes)


def _found(footage: Footage) -> list[int]:
    frames = [i for i in sampled(footage.num_frames) if bool(footage.track.found[i])]
    if not frames:
        raise ValueError(f"no face was found in any sampled frame of {footage.name}")
    return frames


def _embedded(footage: Footage, frames: list[int]) -> Float[Tensor, "n 128"]:
    parts = [
        embed_faces(pictures, footage.track.landmarks[numbers]).values
        for numbers, pictures in footage.blocks(frames)
    ]
    return torch.cat(parts)


METRIC = FaceDlib
