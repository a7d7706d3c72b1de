"""Lip sync of real faces: Sync-C, Sync-D and offset by joonson's SyncNet.

Windows, distances, shifts and crops are syncnet_python's; the face detector is not: dlib's, every
fifth frame, takes the place of S3FD on every frame, so numbers of the two must not be compared.
Of a face that is lost, the longest run in which it was found is scored.
"""

from avatar_v.critics.syncnet import WEIGHTS_FILE, WEIGHTS_LICENCE, WEIGHTS_URL, SyncNet
from avatar_v.faces.syncnet_crop import CropPlan
from avatar_v.types import SAMPLES_PER_FRAME
from avatar_v_eval.bench.footage import Clip
from avatar_v_eval.bench.measured import Measured
from avatar_v_eval.bench.metric import REAL, ClipMetric
from avatar_v_eval.bench.readings import longest_run, sync_outputs, sync_reading


class SyncNetSync(ClipMetric):
    """Of the tracked face with the video's own sound."""

    name = "syncnet"
    version = 1
    judge = "SyncNet (syncnet_v2); faces found by dlib's HOG detector, 5 a second"
    faces = REAL
    outputs = sync_outputs("syncnet", "SyncNet")
    needs_weights = f"{WEIGHTS_FILE} of {WEIGHTS_URL} ({WEIGHTS_LICENCE})"

    def __init__(self, weights: str) -> None:
        super().__init__()
        self.critic = SyncNet.load(weights)

    def weights_hash(self) -> str:
        return self.critic.hash()

    def measure(self, clip: Clip) -> Measured:
        video = clip.video
        start, stop = longest_run(video.track)
        cut = CropPlan(video.track.box[start:stop], *video.size)
        crops = (
            cut(frames, numbers[0] - start) for numbers, frames in video.blocks(range(start, stop))
        )
        sound = video.audio[start * SAMPLES_PER_FRAME : stop * SAMPLES_PER_FRAME]
        return sync_reading(self.name, self.critic, crops, stop - start, sound)


METRIC = SyncNetSync
