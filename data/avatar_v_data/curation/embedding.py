"""A vector of what a clip shows: by a VideoMAE or a CLIP of the user's. Deduplication can read it
(`Grouping.same_video`)."""

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from avatar_v.base.local_models import load_whole
from avatar_v.critics.frozen import hash_folder
from avatar_v.critics.preparation import Preparation, read_preparation
from avatar_v.safety.policy import check_folder
from avatar_v_data.curation.stages import Clip, ClipScorer, Frames, Result, Seen, rounded

KINDS = ("VideoMAEModel", "VideoMAEForPreTraining", "VideoMAEForVideoClassification", "CLIPModel")
NUM_SEEN = 16
"""Pictures of a clip that CLIP sees; a VideoMAE says itself how many it does."""
NEEDED = "preprocessor_config.json"
SOURCE = (
    "a VideoMAE or CLIP as transformers saves it, for example of `hf download "
    "openai/clip-vit-base-patch32 --local-dir FOLDER` (MIT)"
)


@dataclass(frozen=True)
class EmbeddingStage(ClipScorer):
    """``model``: the folder of a VideoMAE or a CLIP of transformers. Column: ``video``, a unit
    vector."""

    model: str = "weights/video"

    name: ClassVar[str] = "embedding"
    version: ClassVar[int] = 1
    needs: ClassVar[tuple[str, ...]] = ("probe", "clips")
    vectors: ClassVar[tuple[str, ...]] = ("video",)

    def weights(self) -> str:
        check_folder(Path(self.model), "embedding", KINDS, (NEEDED,), SOURCE)
        return hash_folder(self.model)

    def score(self, clip: Clip, seen: Seen) -> Result:
        config = _network(self.model)[0].config
        num = NUM_SEEN if config.model_type == "clip" else config.num_frames
        return {"video": rounded(video_vector(clip.some(num), self.model), 5)}


@torch.inference_mode()
def video_vector(frames: Frames, folder: str) -> Float[Tensor, " d"]:
    """Of a VideoMAE the mean of its tokens, of a CLIP the mean of its pictures' vectors."""
    model, prepare = _network(folder)
    x = prepare(frames).to(model.device)
    if model.config.model_type == "clip":
        pooled = model.vision_model(pixel_values=x).pooler_output
        vectors = F.normalize(model.visual_projection(pooled), dim=1)
    else:
        missing = model.config.num_frames - len(x)
        x = torch.cat([x, x[-1:].expand(max(missing, 0), -1, -1, -1)])
        vectors = model(pixel_values=x[None]).last_hidden_state[0]
    return F.normalize(vectors.float().mean(0), dim=0).cpu()


@cache
def _network(folder: str) -> tuple[Any, Preparation]:
    from transformers import AutoModel

    model = load_whole(AutoModel, folder, SOURCE)
    return model, read_preparation(Path(folder) / NEEDED, SOURCE)
