"""Identity of real faces by ArcFace: cosine with the reference clip, and drift (Avatar V §7.2)."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from avatar_v.faces.arcface import SOURCE, ArcFace
from avatar_v_eval.bench.footage import Clip, Footage
from avatar_v_eval.bench.measured import Measured, Output
from avatar_v_eval.bench.metric import REAL, ClipMetric
from avatar_v_eval.bench.readings import face_reading, mean_direction
from avatar_v_eval.bench.sampling import sampled


class FaceArcFace(ClipMetric):
    """2 frames a second of both clips, of those in which the detector sees a face."""

    name = "face_arcface"
    version = 1
    judge = "ArcFace and its SCRFD, as the weights' folder has them"
    faces = REAL
    outputs = (
        Output("face_arcface", "face similarity, ArcFace", "higher"),
        Output("face_arcface_drift", "face similarity lost, first quarter to last", "zero"),
        Output("face_arcface_found", "sampled frames with a face, SCRFD", "higher"),
    )
    needs_weights = SOURCE

    def __init__(self, weights: str) -> None:
        super().__init__()
        self.critic = ArcFace(weights)

    def weights_hash(self) -> str:
        return self.critic.hash()

    def measure(self, clip: Clip) -> Measured:
        chosen = sampled(clip.video.num_frames)
        rows, found = self._embedded(clip.video, chosen)
        own, seen = self._embedded(clip.reference, sampled(clip.reference.num_frames))
        if not bool(found.any()) or not bool(seen.any()):
            where = "the reference" if bool(found.any()) else "the video"
            raise ValueError(f"SCRFD found no face in any sampled frame of {where}")
        cosines = rows[found] @ mean_direction(own[seen])
        frames = [frame for frame, one in zip(chosen, found.tolist(), strict=True) if one]
        reading = face_reading(self.name, cosines.tolist(), frames)
        values = {**reading.values, "face_arcface_found": float(found.float().mean())}
        return Measured(values, reading.frames)

    def _embedded(
        self, footage: Footage, chosen: list[int]
    ) -> tuple[Float[Tensor, "n 512"], Bool[Tensor, " n"]]:
        parts = [self.critic.measure(frames) for _, frames in footage.blocks(chosen)]
        return torch.cat([s.values for s, _ in parts]), torch.cat([found for _, found in parts])


METRIC = FaceArcFace
