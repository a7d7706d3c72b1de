"""What a clip shows that nobody wants to train on: by a classifier of pictures of the user's."""

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import torch

from avatar_v.critics.frozen import hash_folder
from avatar_v.safety.moderation import picture_scores, read_labels
from avatar_v.safety.policy import PICTURE_MODELS, check_folder
from avatar_v_data.curation.stages import Clip, ClipScorer, Result, Seen

NUM_SEEN = 8
"""Pictures of a clip that are judged."""


@dataclass(frozen=True)
class ContentStage(ClipScorer):
    """``model``: the folder of an image classifier of transformers.

    Columns: ``content_LABEL`` for each of its labels, the largest probability in a clip's pictures.
    """

    model: str = "weights/content"

    name: ClassVar[str] = "content"
    version: ClassVar[int] = 1
    needs: ClassVar[tuple[str, ...]] = ("clips",)

    def weights(self) -> str:
        folder = Path(self.model)
        needed = ("preprocessor_config.json",)
        check_folder(folder, "content", ("ForImageClassification",), needed, PICTURE_MODELS)
        return hash_folder(folder)

    def score(self, clip: Clip, seen: Seen) -> Result:
        at = torch.linspace(0, len(clip.frames) - 1, NUM_SEEN).round().long().unique().tolist()
        pictures = torch.stack([clip.frames[number] for number in at])
        most = picture_scores(pictures, self.model).amax(0).tolist()
        labels = read_labels(self.model, is_text=False)
        return {f"content_{x}": round(p, 4) for x, p in zip(labels, most, strict=True)}
