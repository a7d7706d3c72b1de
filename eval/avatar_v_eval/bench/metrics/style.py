"""Style of drawn faces: how differently the person moves than in the reference clip."""

from avatar_v.critics.motion import MotionMeter
from avatar_v_eval.bench.footage import Clip
from avatar_v_eval.bench.measured import Measured, Output
from avatar_v_eval.bench.metric import DRAWN, ClipMetric
from avatar_v_eval.bench.readings import style_distance


class Style(ClipMetric):
    """Distance of habits read from both clips by the motion meter (readings.style_distance)."""

    name = "style"
    version = 1
    judge = "MotionMeter; no detector, whole pictures"
    faces = DRAWN
    outputs = (Output("style", "style distance to the reference", "lower"),)

    def __init__(self) -> None:
        super().__init__()
        self.meter = MotionMeter.from_pretrained()

    def weights_hash(self) -> str:
        return self.meter.hash()

    def measure(self, clip: Clip) -> Measured:
        own, shown = (
            self.meter.measure(footage.squares).values.double().numpy()
            for footage in (clip.video, clip.reference)
        )
        return Measured({"style": style_distance(own, shown)})


METRIC = Style
