"""Identity of drawn faces: cosine of the face critic with the reference clip, and its drift."""

from jaxtyping import Float
from torch import Tensor

from avatar_v.faces.face import FaceCritic
from avatar_v_eval.bench.footage import Clip, Footage
from avatar_v_eval.bench.measured import Measured, Output
from avatar_v_eval.bench.metric import DRAWN, ClipMetric
from avatar_v_eval.bench.readings import face_reading, mean_direction
from avatar_v_eval.bench.sampling import sampled


class FaceWorld(ClipMetric):
    """2 frames a second of both clips; the reference is the direction of its frames' mean."""

    name = "face_world"
    version = 1
    judge = "FaceCritic; no detector, whole pictures"
    faces = DRAWN
    outputs = (
        Output("face_world", "face similarity, world critic", "higher"),
        Output("face_world_drift", "face similarity lost, first quarter to last", "zero"),
    )

    def __init__(self) -> None:
        super().__init__()
        self.critic = FaceCritic.from_pretrained()

    def weights_hash(self) -> str:
        return self.critic.hash()

    def measure(self, clip: Clip) -> Measured:
        chosen = sampled(clip.video.num_frames)
        own = self._embedded(clip.reference, sampled(clip.reference.num_frames))
        cosines = self._embedded(clip.video, chosen) @ mean_direction(own)
        return face_reading(self.name, cosines.tolist(), chosen)

    def _embedded(self, footage: Footage, chosen: list[int]) -> Float[Tensor, "n d"]:
        return footage.squares.each(lambda frames: self.critic.measure(frames).values, chosen)


METRIC = FaceWorld
