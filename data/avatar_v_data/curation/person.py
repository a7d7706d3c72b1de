"""Whose face a clip shows: a template, the mean of several pictures' embeddings."""

from dataclasses import dataclass
from functools import cache
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from avatar_v.critics.frozen import critic_folder, hash_files
from avatar_v.faces import dlib_face, face_track
from avatar_v.faces.face import FaceCritic
from avatar_v_data.curation.heads import Boxes, boxes_between, head
from avatar_v_data.curation.stages import TICK, Clip, ClipScorer, Frames, Result, Seen, rounded

NUM_FACES = 8
SIDE = 64


@dataclass(frozen=True)
class PersonStage(ClipScorer):
    """``critic``: dlib for people, "world" for drawn ones.

    Columns: ``face``, a unit vector, and ``face_spread``, the largest distance of a picture's own
    vector from it: large where a clip shows two people in turn.
    """

    critic: Literal["dlib", "world"] = "dlib"

    name: ClassVar[str] = "person"
    version: ClassVar[int] = 2
    needs: ClassVar[tuple[str, ...]] = ("faces", "clips")
    numbers: ClassVar[tuple[str, ...]] = ("face_spread",)
    vectors: ClassVar[tuple[str, ...]] = ("face",)

    def weights(self) -> str:
        if self.critic == "world":
            return hash_files(sorted(critic_folder("face").iterdir()))
        return dlib_face.weights_hash()

    def score(self, clip: Clip, seen: Seen) -> Result:
        found = seen.results["faces"]["boxes"]
        faces = F.normalize(self._embedded(clip.stacked(), clip.start, found), dim=1)
        mean = F.normalize(faces.mean(0), dim=0)
        spread = float((faces - mean).norm(dim=1).max())
        return {"face": rounded(mean, 5), "face_spread": round(spread, 4)}

    def _embedded(self, frames: Frames, start: int, found: Boxes) -> Tensor:
        boxes = found[start // TICK : (start + len(frames)) // TICK]
        seen = torch.tensor([box is not None for box in boxes])
        at = face_track.spread_frames(seen, NUM_FACES) * TICK
        if self.critic == "world":
            return _world().measure(head(frames, start, found, SIDE)[at]).values
        between, _ = boxes_between(found, start, start + len(frames))
        points = face_track.landmarks_in(frames[at], between[at])
        return dlib_face.embed_faces(frames[at], points).values


@cache
def _world() -> FaceCritic:
    return FaceCritic.from_pretrained()
