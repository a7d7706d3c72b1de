"""The difference of a picture from both its neighbours in time: a formula."""

from avatar_v.critics.quality import flicker
from avatar_v_eval.bench.footage import Clip
from avatar_v_eval.bench.measured import Measured, Output
from avatar_v_eval.bench.metric import ANY, ClipMetric
from avatar_v_eval.bench.readings import at_scene_size
from avatar_v_eval.bench.sampling import trimmed_mean


class Flicker(ClipMetric):
    """Of every frame, at the scene image's size, trimmed mean."""

    name = "flicker"
    version = 1
    judge = "formula"
    faces = ANY
    outputs = (Output("flicker", "flicker", "lower", "grey levels"),)

    def measure(self, clip: Clip) -> Measured:
        if clip.video.num_frames < 3:
            raise ValueError("flicker needs 3 frames")
        inside = clip.video.each(
            lambda frames: flicker(at_scene_size(frames, clip.image))[1:-1], overlap=2
        ).tolist()
        values = [inside[0], *inside, inside[-1]]
        return Measured({self.name: trimmed_mean(values)}, {self.name: list(enumerate(values))})


METRIC = Flicker
