"""The quality of the picture: Q-Align's quality (IQA) and aesthetics (ASE), 1 bad … 5 excellent."""

import functools

import torch
from torch import Tensor

from avatar_v.critics.qalign import SOURCE, QAlign, Task
from avatar_v.scoring.clip import ScoredClip
from avatar_v.scoring.pictures import Frames
from avatar_v.scoring.sampling import sampled, trimmed_mean
from avatar_v.scoring.scorer import ANY, NetworkScorer
from avatar_v.scoring.values import ScoreOutput, Values

TASKS: dict[str, Task] = {"qalign_iqa": "quality", "qalign_ase": "aesthetics"}


class QAlignScorer(NetworkScorer[QAlign]):
    """2 frames a second, trimmed mean. Uses a GPU where there is one: 7 billion weights."""

    name = "qalign"
    version = 2
    judge = "Q-Align (one-align)"
    faces = ANY
    outputs = (
        ScoreOutput("qalign_iqa", "Q-Align IQA", "higher"),
        ScoreOutput("qalign_ase", "Q-Align ASE", "higher"),
    )
    needs_weights = SOURCE

    def __init__(self, weights: str) -> None:
        self.critic = QAlign(weights, "cuda" if torch.cuda.is_available() else "cpu")

    def score(self, clip: ScoredClip) -> Values:
        chosen = sampled(clip.video.num_frames)
        scores = {
            key: clip.video.each(functools.partial(self._ask, task), chosen).tolist()
            for key, task in TASKS.items()
        }
        return Values(
            {key: trimmed_mean(values) for key, values in scores.items()},
            {key: list(zip(chosen, values, strict=True)) for key, values in scores.items()},
        )

    def _ask(self, task: Task, frames: Frames) -> Tensor:
        return self.critic.measure(frames, task).values


SCORERS = (QAlignScorer,)
