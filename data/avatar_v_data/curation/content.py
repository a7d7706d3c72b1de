"""What networks say of a clip's pictures by themselves: what nobody wants to train on (a classifier
of the user's, and NudeNet, whose weights lie in its package), and how good they look (Q-Align)."""

import importlib.util
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch

from avatar_v.critics.frozen import hash_files, hash_folder
from avatar_v.critics.qalign import QAlign, weight_files
from avatar_v.safety.moderation import picture_scores, read_labels
from avatar_v.safety.policy import PICTURE_MODELS, check_folder
from avatar_v_data.curation.stages import Clip, ClipScorer, Result, Seen

NUM_SEEN = 8
"""Pictures of a clip that are judged."""
BARE = ("ANUS", "BUTTOCKS", "FEMALE_BREAST", "FEMALE_GENITALIA", "MALE_GENITALIA")
"""What counts of what NudeNet sees bare; feet, bellies and men's chests do not."""
HOW_TO_INSTALL = "nudity needs NudeNet: pip install --no-deps nudenet==3.4.2"


@dataclass(frozen=True)
class ContentStage(ClipScorer):
    """``model``: the folder of an image classifier of transformers.

    Columns: ``content_LABEL`` for each of its labels, the largest probability in a clip's pictures.
    """

    model: str = "weights/content"

    name: ClassVar[str] = "content"
    version: ClassVar[int] = 1
    needs: ClassVar[tuple[str, ...]] = ("clips",)
    numbers: ClassVar[tuple[str, ...]] = ("content_",)

    def weights(self) -> str:
        folder = Path(self.model)
        needed = ("preprocessor_config.json",)
        check_folder(folder, "content", ("ForImageClassification",), needed, PICTURE_MODELS)
        return hash_folder(folder)

    def score(self, clip: Clip, seen: Seen) -> Result:
        most = picture_scores(clip.some(NUM_SEEN), self.model).amax(0).tolist()
        labels = read_labels(self.model, is_text=False)
        return {f"content_{x}": round(p, 4) for x, p in zip(labels, most, strict=True)}


@dataclass(frozen=True)
class NudityStage(ClipScorer):
    """Column: ``nudity``, the largest probability of a `BARE` part in a clip's pictures."""

    name: ClassVar[str] = "nudity"
    version: ClassVar[int] = 1
    needs: ClassVar[tuple[str, ...]] = ("probe", "clips")
    numbers: ClassVar[tuple[str, ...]] = ("nudity",)

    def weights(self) -> str:
        if not all(map(importlib.util.find_spec, ("nudenet", "onnxruntime"))):
            raise ValueError(HOW_TO_INSTALL)
        return version("nudenet")

    def score(self, clip: Clip, seen: Seen) -> Result:
        pictures = clip.some(NUM_SEEN).flip(1).permute(0, 2, 3, 1).numpy()
        parts = [part for x in pictures for part in _detector().detect(np.ascontiguousarray(x))]
        sure = [part["score"] for part in parts if part["class"].removesuffix("_EXPOSED") in BARE]
        return {"nudity": round(float(max(sure, default=0.0)), 4)}


@cache
def _detector() -> Any:
    import nudenet  # pyright: ignore[reportMissingImports]
    import onnxruntime  # pyright: ignore[reportMissingImports]

    detector, options = nudenet.NudeDetector(), onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1  # a worker is one processor
    weights = Path(str(nudenet.__file__)).parent / "320n.onnx"
    detector.onnx_session = onnxruntime.InferenceSession(weights, options)
    return detector


@dataclass(frozen=True)
class QualityStage(ClipScorer):
    """``model``: the folder of Q-Align (critics/qalign.py).

    Columns: ``quality`` and ``aesthetics``, 1 bad to 5 excellent, means of its pictures.
    """

    model: str = "weights/one-align"

    name: ClassVar[str] = "quality"
    version: ClassVar[int] = 1
    needs: ClassVar[tuple[str, ...]] = ("probe", "clips")
    numbers: ClassVar[tuple[str, ...]] = ("quality", "aesthetics")

    def weights(self) -> str:
        return hash_files(weight_files(Path(self.model)))

    def score(self, clip: Clip, seen: Seen) -> Result:
        pictures, judge = clip.some(NUM_SEEN), _judge(self.model)
        return {
            task: round(float(judge.measure(pictures, task).values.mean()), 4)
            for task in ("quality", "aesthetics")
        }


@cache
def _judge(folder: str) -> QAlign:
    return QAlign(folder, "cuda" if torch.cuda.is_available() else "cpu")
