"""The speed of a system: frames of its video per second of wall clock, as its timing says."""

from avatar_v_eval.bench.footage import Clip
from avatar_v_eval.bench.measured import Measured, Output
from avatar_v_eval.bench.metric import ANY, ClipMetric
from avatar_v_eval.bench.timing import timing_of


class Fps(ClipMetric):
    """Notes name the hardware. Compare numbers of the same hardware only."""

    name = "fps"
    version = 1
    judge = "wall clock"
    faces = ANY
    outputs = (Output("fps", "FPS", "higher", "frames/s"),)
    reads_timing = True

    def measure(self, clip: Clip) -> Measured:
        timing = timing_of(clip.timing)
        fps = clip.video.num_frames / timing.total_s
        return Measured({"fps": fps}, notes=timing.notes)


METRIC = Fps
