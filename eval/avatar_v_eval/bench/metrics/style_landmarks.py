"""Style of real faces: how differently the person moves than in the reference clip."""

from avatar_v.faces.face_track import HOW_TO_INSTALL, is_available
from avatar_v.motion.landmarks import motion_from_landmarks
from avatar_v_eval.bench.footage import Clip, Footage
from avatar_v_eval.bench.measured import Measured, Output
from avatar_v_eval.bench.metric import REAL, ClipMetric
from avatar_v_eval.bench.readings import Motion, face_notes, style_distance


class StyleLandmarks(ClipMetric):
    """Distance of habits read from landmarks of both clips, where the face was found."""

    name = "style_landmarks"
    version = 1
    judge = "motion of dlib's 68 landmarks; dlib's HOG detector"
    faces = REAL
    outputs = (Output("style_landmarks", "style distance to the reference, landmarks", "lower"),)

    def __init__(self) -> None:
        super().__init__()
        if not is_available():
            raise ImportError(HOW_TO_INSTALL)

    def measure(self, clip: Clip) -> Measured:
        distance = style_distance(_motion(clip.video), _motion(clip.reference))
        return Measured({self.name: distance}, notes=face_notes(clip.video))


def _motion(footage: Footage) -> Motion:
    track, (height, width) = footage.track, footage.size
    motion = motion_from_landmarks(track.landmarks, track.found, width / height)
    return motion[track.found].double().numpy()


METRIC = StyleLandmarks
