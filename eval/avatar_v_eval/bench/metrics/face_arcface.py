"""Identity of real faces by ArcFace: cosine with the reference clip, and its drift (§7.2)."""

from avatar_v.critics.arcface import SOURCE, ArcFace
from avatar_v_eval.bench.footage import Clip
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
        video, reference = clip.video.frames, clip.reference.frames
        chosen = sampled(len(video))
        rows, found = self.critic.measure(video[chosen])
        own, seen = self.critic.measure(reference[sampled(len(reference))])
        if not bool(found.any()) or not bool(seen.any()):
            where = "the reference" if bool(found.any()) else "the video"
            raise ValueError(f"SCRFD found no face in any sampled frame of {where}")
        cosines = rows.values[found] @ mean_direction(own.values[seen])
        frames = [frame for frame, one in zip(chosen, found.tolist(), strict=True) if one]
        reading = face_reading(self.name, cosines.tolist(), frames)
        values = {**reading.values, "face_arcface_found": float(found.float().mean())}
        return Measured(values, reading.frames)


METRIC = FaceArcFace
