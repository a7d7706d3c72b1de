"""DINO similarity: cosine of every sampled picture with the scene image (Live Avatar, table 2)."""

from avatar_v.critics.dino import SOURCE, Dino
from avatar_v_eval.bench.footage import Clip
from avatar_v_eval.bench.measured import Measured, Output
from avatar_v_eval.bench.metric import ANY, ClipMetric
from avatar_v_eval.bench.readings import face_reading
from avatar_v_eval.bench.sampling import sampled


class DinoSimilarity(ClipMetric):
    """2 frames a second, trimmed mean, whole pictures (their centre, where they are oblong)."""

    name = "dino"
    version = 1
    judge = "DINO of the weights' folder, class token; no detector"
    faces = ANY
    outputs = (
        Output("dino", "DINO similarity to the scene image", "higher"),
        Output("dino_drift", "DINO similarity lost, first quarter to last", "zero"),
    )
    needs_weights = SOURCE

    def __init__(self, weights: str) -> None:
        super().__init__()
        self.critic = Dino(weights)

    def weights_hash(self) -> str:
        return self.critic.hash()

    def measure(self, clip: Clip) -> Measured:
        chosen = sampled(clip.video.num_frames)
        scene = self.critic.measure(clip.image[None]).values[0]
        cosines = clip.video.each(lambda x: self.critic.measure(x).values @ scene, chosen)
        return face_reading(self.name, cosines.tolist(), chosen)


METRIC = DinoSimilarity
