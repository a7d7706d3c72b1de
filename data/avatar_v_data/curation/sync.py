"""Do lips and sound belong together, and how far are they apart?"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

import torch
from jaxtyping import UInt8
from torch import Tensor

from avatar_v.critics.frozen import critic_folder, hash_files
from avatar_v.critics.sync import SyncCritic, Waveform, distance_table, embed_clip, sync_score
from avatar_v.critics.syncnet import SyncNet
from avatar_v.critics.world_sync import WorldSyncNet
from avatar_v.faces.syncnet_crop import CropPlan
from avatar_v_data.curation.heads import Boxes, boxes_between, head
from avatar_v_data.curation.stages import Clip, ClipScorer, Frames, Result, Seen

WORLD = "world"
SIDE = 64
"""Pixels that the world's critic reads."""
PART = 40
"""Frames of a part whose offset is measured alone, at least."""
CONFIDENCE = "sync_confidence"


@dataclass(frozen=True)
class SyncStage(ClipScorer):
    """``critic``: the file of SyncNet's weights, or "world" for drawn people.

    Columns: ``sync_offset`` in frames (positive: the sound is early), ``sync_confidence`` (Sync-C:
    the median of the distances over the shifts minus the smallest), and ``sync_drift``, how many
    frames the offsets of a clip's parts lie apart: a cut that nobody sees may move the sound.
    """

    critic: str = WORLD

    name: ClassVar[str] = "sync"
    version: ClassVar[int] = 3
    needs: ClassVar[tuple[str, ...]] = ("probe", "faces", "clips")
    numbers: ClassVar[tuple[str, ...]] = ("sync_offset", "sync_confidence", "sync_drift")

    def weights(self) -> str:
        if self.critic == WORLD:
            return hash_files(sorted(critic_folder("sync").iterdir()))
        if not Path(self.critic).is_file():
            return SyncNet.load(self.critic).hash()  # its error says where to get the file
        return hash_files([Path(self.critic)])

    def score(self, clip: Clip, seen: Seen) -> Result:
        faces = self._faces(clip.stacked(), clip.start, seen.results["faces"]["boxes"])
        return _row(_critic(self.critic), faces, clip.sound(seen.audio))

    def _faces(self, frames: Frames, start: int, found: Boxes) -> UInt8[Tensor, "f 3 side side"]:
        """Cut out as the critic was trained on them."""
        if self.critic == WORLD:
            return head(frames, start, found, SIDE)
        boxes, _ = boxes_between(found, start, start + len(frames))
        return CropPlan(boxes, *frames.shape[2:])(frames, 0)


def sound_late(row: Mapping[str, Any], sure: float | None) -> int:
    """Frames by which a clip's sound is late; 0 where sync says nothing, or with less confidence
    than ``sure``, None: always."""
    if sure is None or row.get(CONFIDENCE, -math.inf) < sure:
        return 0
    return -row["sync_offset"]


def _row(critic: SyncCritic, pictures: Frames, sound: Waveform) -> Result:
    table = distance_table(*embed_clip(critic, pictures, sound))
    parts = torch.tensor_split(table, max(len(table) // PART, 1))
    whole, *of_parts = map(sync_score, (table, *parts))
    offsets = [score.offset for score in of_parts]
    return {
        "sync_offset": whole.offset,
        CONFIDENCE: round(whole.confidence, 4),
        "sync_drift": max(offsets) - min(offsets),
    }


@cache
def _critic(name: str) -> SyncCritic:
    return WorldSyncNet.from_pretrained() if name == WORLD else SyncNet.load(name)
