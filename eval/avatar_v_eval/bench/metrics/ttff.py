"""Time to first frame of streaming systems, the sound's arrival included (Live Avatar, table 2)."""

from avatar_v_eval.bench.footage import Clip
from avatar_v_eval.bench.measured import Measured, Output
from avatar_v_eval.bench.metric import ANY, ClipMetric
from avatar_v_eval.bench.timing import timing_of


class Ttff(ClipMetric):
    """Notes name the hardware. Compare numbers of the same hardware only."""

    name = "ttff"
    version = 1
    judge = "wall clock"
    faces = ANY
    outputs = (Output("ttff", "time to first frame, sound's arrival included", "lower", "s"),)
    reads_timing = True

    def measure(self, clip: Clip) -> Measured:
        timing = timing_of(clip.timing)
        if timing.ttff_s is None:
            raise ValueError("the system reports no time to first frame")
        return Measured({"ttff": timing.ttff_s}, notes=timing.notes)


METRIC = Ttff
