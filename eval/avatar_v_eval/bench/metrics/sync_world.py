"""Lip sync of drawn faces: Sync-C, Sync-D and offset by the world's own critic."""

from avatar_v.critics.world_sync import WorldSyncNet
from avatar_v_eval.bench.footage import Clip
from avatar_v_eval.bench.measured import Measured
from avatar_v_eval.bench.metric import DRAWN, ClipMetric
from avatar_v_eval.bench.readings import sync_outputs, sync_reading


class SyncWorld(ClipMetric):
    """Of the whole picture with its own sound, as it is heard."""

    name = "sync_world"
    version = 1
    judge = "WorldSyncNet; no detector, whole pictures"
    faces = DRAWN
    outputs = sync_outputs("sync_world", "world critic")

    def __init__(self) -> None:
        super().__init__()
        self.critic = WorldSyncNet.from_pretrained()

    def weights_hash(self) -> str:
        return self.critic.hash()

    def measure(self, clip: Clip) -> Measured:
        return sync_reading(self.name, self.critic, clip.video.squares, clip.video.audio)


METRIC = SyncWorld
