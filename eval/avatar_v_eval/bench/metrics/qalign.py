"""The quality of the picture: Q-Align's quality (IQA) and aesthetics (ASE), 1 bad … 5 excellent."""

import functools

import torch
from torch import Tensor

from avatar_v.critics.qalign import SOURCE, QAlign, Task
from avatar_v_eval.bench.footage import Clip, Frames
from avatar_v_eval.bench.measured import Measured, Output
from avatar_v_eval.bench.metric import ANY, ClipMetric
from avatar_v_eval.bench.sampling import sampled, trimmed_mean

TASKS: dict[str, Task] = {"qalign_iqa": "quality", "qalign_ase": "aesthetics"}


class QAlignQuality(ClipMetric):
    """2 frames a second, trimmed mean. Uses a GPU where there is one: 7 billion weights."""

    name = "qalign"
    version = 2
    judge = "Q-Align (one-align)"
    faces = ANY
    outputs = (
        Output("qalign_iqa", "Q-Align IQA", "higher"),
        Output("qalign_ase", "Q-Align ASE", "higher"),
    )
    needs_weights = SOURCE

    def __init__(self, weights: str) -> None:
        super().__init__()
        self.network = QAlign(weights, "cuda" if torch.cuda.is_available() else "cpu")

    def weights_hash(self) -> str:
        return self.network.hash()

    def measure(self, clip: Clip) -> Measured:
        chosen = sampled(clip.video.num_frames)
        scores = {
            key: clip.video.each(functools.partial(self._ask, task), chosen).tolist()
            for key, task in TASKS.items()
        }
        return Measured(
            {key: trimmed_mean(values) for key, values in scores.items()},
            {key: list(zip(chosen, values, strict=True)) for key, values in scores.items()},
        )

    def _ask(self, task: Task, frames: Frames) -> Tensor:
        return self.network.measure(frames, task).values


METRIC = QAlignQuality
