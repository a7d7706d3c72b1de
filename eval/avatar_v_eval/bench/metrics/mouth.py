"""Lips of drawn faces against the truth: r of the mouth's opening in the video and in the true one.

Both are read from pixels by the same meter, so a copy of the truth scores 1. Needs a case with its
truth and a video that starts with the sound.
"""

from avatar_v.critics.motion import MotionMeter
from avatar_v_eval.bench.footage import Clip
from avatar_v_eval.bench.measured import Measured, Output
from avatar_v_eval.bench.metric import DRAWN, ClipMetric
from avatar_v_eval.intervals import pearson


class Mouth(ClipMetric):
    """Of all frames that both videos have."""

    name = "mouth"
    version = 1
    judge = "MotionMeter; no detector, whole pictures"
    faces = DRAWN
    outputs = (Output("mouth_r", "mouth opening against the truth, r", "higher"),)

    def __init__(self) -> None:
        super().__init__()
        self.meter = MotionMeter.from_pretrained()

    def weights_hash(self) -> str:
        return self.meter.hash()

    def measure(self, clip: Clip) -> Measured:
        if clip.truth is None:
            raise ValueError("the case has no truth to compare with")
        shown, true = (
            footage.squares.each(self.meter.mouth_open).double().numpy()
            for footage in (clip.video, clip.truth)
        )
        num = min(len(shown), len(true))
        return Measured(
            {"mouth_r": pearson(shown[:num], true[:num])},
            {"mouth_r": list(enumerate(shown.tolist()))},
        )


METRIC = Mouth
