"""The fine detail of a picture: a formula, for versions of one video."""

from avatar_v.critics.quality import sharpness
from avatar_v_eval.bench.footage import Clip
from avatar_v_eval.bench.measured import Measured, Output
from avatar_v_eval.bench.metric import ANY, ClipMetric
from avatar_v_eval.bench.readings import at_scene_size
from avatar_v_eval.bench.sampling import sampled, trimmed_mean


class Sharpness(ClipMetric):
    """Variance of the Laplacian at the scene image's size, 2 frames a second, trimmed mean."""

    name = "sharpness"
    version = 1
    judge = "formula"
    faces = ANY
    outputs = (Output("sharpness", "sharpness", "", "grey levels²"),)

    def measure(self, clip: Clip) -> Measured:
        chosen = sampled(clip.video.num_frames)
        values = clip.video.each(
            lambda frames: sharpness(at_scene_size(frames, clip.image)), chosen
        ).tolist()
        return Measured(
            {self.name: trimmed_mean(values)}, {self.name: list(zip(chosen, values, strict=True))}
        )


METRIC = Sharpness
