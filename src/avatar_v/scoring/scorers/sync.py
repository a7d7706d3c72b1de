"""Lip sync: Sync-C, Sync-D and offset, of drawn faces and of real ones.

Of SyncNet windows, distances, shifts and crops are syncnet_python's; the face detector is not:
dlib's, every fifth frame, takes the place of S3FD on every frame, so numbers of the two must not be
compared. Of a face that is lost, the longest run in which it was found is scored.
"""

from avatar_v.critics.syncnet import SOURCE, SyncNet
from avatar_v.critics.world_sync import WorldSyncNet
from avatar_v.faces.syncnet_crop import CropPlan
from avatar_v.scoring.clip import ScoredClip
from avatar_v.scoring.readings import longest_run, sync_outputs, sync_reading
from avatar_v.scoring.scorer import DRAWN, REAL, NetworkScorer
from avatar_v.scoring.values import Values
from avatar_v.types import SAMPLES_PER_FRAME


class SyncWorldScorer(NetworkScorer[WorldSyncNet]):
    """By the world's own critic, of the whole picture with its own sound, as it is heard."""

    name = "sync_world"
    version = 1
    judge = "WorldSyncNet; no detector, whole pictures"
    faces = DRAWN
    outputs = sync_outputs("sync_world", "world critic")

    def __init__(self, critic: str = "sync") -> None:
        self.critic = WorldSyncNet.from_pretrained(critic)

    def score(self, clip: ScoredClip) -> Values:
        faces = (frames for _, frames in clip.video.squares.blocks())
        num_frames, sound = clip.video.num_frames, clip.video.audio
        return sync_reading(self.name, self.critic, faces, num_frames, sound)


class SyncNetScorer(NetworkScorer[SyncNet]):
    """By joonson's SyncNet, of the tracked face with the video's own sound."""

    name = "syncnet"
    version = 1
    judge = "SyncNet (syncnet_v2); faces found by dlib's HOG detector, 5 a second"
    faces = REAL
    outputs = sync_outputs("syncnet", "SyncNet")
    needs_weights = SOURCE

    def __init__(self, weights: str) -> None:
        self.critic = SyncNet.load(weights)

    def score(self, clip: ScoredClip) -> Values:
        video = clip.video
        start, stop = longest_run(video.track)
        cut = CropPlan(video.track.box[start:stop], *video.size)
        crops = (
            cut(frames, numbers[0] - start) for numbers, frames in video.blocks(range(start, stop))
        )
        sound = video.audio[start * SAMPLES_PER_FRAME : stop * SAMPLES_PER_FRAME]
        return sync_reading(self.name, self.critic, crops, stop - start, sound)


SCORERS = (SyncWorldScorer, SyncNetScorer)
