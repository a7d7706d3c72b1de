"""Whose face a clip shows: a template, the mean of several pictures' embeddings."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from avatar_v.critics.frozen import critic_folder, hash_files
from avatar_v.faces import dlib_face, face_track
from avatar_v.faces.face import FaceCritic
from avatar_v_data.curation.heads import boxes_between, head
from avatar_v_data.curation.stages import (
    EVERY,
    FootageRecording,
    Frames,
    Result,
    clip_frames,
    rounded,
)

NUM_LOOKS = 8
SIDE = 64


@dataclass(frozen=True)
class PersonStage:
    """``critic``: dlib for people, "world" for drawn ones.

    Columns: ``face``, a unit vector, and ``face_spread``, the largest distance of a picture's own
    vector from it: large where a clip shows two people in turn.
    """

    critic: Literal["dlib", "world"] = "dlib"

    name: ClassVar[str] = "person"
    version: ClassVar[int] = 2
    needs: ClassVar[tuple[str, ...]] = ("faces", "clips")

    def weights(self) -> str:
        if self.critic == "world":
            return hash_files(sorted(critic_folder("face").iterdir()))
        return dlib_face.weights_hash()

    def run(self, recording: FootageRecording, results: Mapping[str, Result]) -> Result:
        spans = [(clip["start"], clip["stop"]) for clip in results["clips"]["clips"]]
        rows = []
        for index, frames in clip_frames(recording, spans):
            faces = F.normalize(self._embedded(frames, spans[index][0], results), dim=1)
            mean = F.normalize(faces.mean(0), dim=0)
            spread = float((faces - mean).norm(dim=1).max())
            rows.append({"face": rounded(mean, 5), "face_spread": round(spread, 4)})
        return {"clips": rows}

    def _embedded(self, frames: Frames, start: int, results: Mapping[str, Result]) -> Tensor:
        boxes = results["faces"]["boxes"][start // EVERY : (start + len(frames)) // EVERY]
        seen = torch.tensor([box is not None for box in boxes])
        looks = face_track.spread_frames(seen, NUM_LOOKS) * EVERY
        if self.critic == "world":
            return _world().measure(head(frames, start, results, SIDE)[looks]).values
        between, _ = boxes_between(results["faces"]["boxes"], start, start + len(frames))
        points = face_track.landmarks_in(frames[looks], between[looks])
        return dlib_face.embed_faces(frames[looks], points).values


@cache
def _world() -> FaceCritic:
    return FaceCritic.from_pretrained()
