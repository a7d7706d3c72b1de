"""How good the picture is: Q-Align's quality (IQA) and aesthetics (ASE), 1 bad … 5 excellent."""

import copy

from avatar_v.critics.quality import Q_ALIGN_SOURCE, QAlign
from avatar_v_eval.bench.footage import Clip
from avatar_v_eval.bench.measured import Measured, Output
from avatar_v_eval.bench.metric import ANY, ClipMetric
from avatar_v_eval.bench.sampling import sampled, trimmed_mean


class QAlignQuality(ClipMetric):
    """2 frames a second, trimmed mean."""

    name = "qalign"
    version = 1
    judge = "Q-Align (one-align)"
    faces = ANY
    outputs = (
        Output("qalign_iqa", "Q-Align IQA", "higher"),
        Output("qalign_ase", "Q-Align ASE", "higher"),
    )
    needs_weights = Q_ALIGN_SOURCE

    def __init__(self, weights: str) -> None:
        super().__init__()
        quality = QAlign(weights, "quality")
        aesthetics = copy.copy(quality)  # the same network, asked another question
        aesthetics.task = "aesthetics"
        self.critics = {"qalign_iqa": quality, "qalign_ase": aesthetics}
        self.quality_hash = quality.hash()

    def weights_hash(self) -> str:
        return self.quality_hash

    def measure(self, clip: Clip) -> Measured:
        chosen = sampled(len(clip.video.frames))
        scores = {
            key: critic.measure(clip.video.frames[chosen]).values.tolist()
            for key, critic in self.critics.items()
        }
        return Measured(
            {key: trimmed_mean(values) for key, values in scores.items()},
            {key: list(zip(chosen, values, strict=True)) for key, values in scores.items()},
        )


METRIC = QAlignQuality
