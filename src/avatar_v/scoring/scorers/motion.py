"""How the person moves: lips against the truth, and style against the reference clip."""

from avatar_v.critics.motion import MOUTH_OPEN, MotionMeter
from avatar_v.faces.face_track import HOW_TO_INSTALL, is_available
from avatar_v.motion.landmarks import motion_from_landmarks
from avatar_v.scoring.clip import Footage, ScoredClip
from avatar_v.scoring.readings import Motion, face_notes, read_motion, style_distance
from avatar_v.scoring.sampling import pearson
from avatar_v.scoring.scorer import DRAWN, REAL, NetworkScorer, Scorer
from avatar_v.scoring.values import ScoreOutput, Values


class MouthScorer(NetworkScorer[MotionMeter]):
    """r of the mouth's opening in the video with the true one, of all frames that both have. The
    true one is read from pixels by the same meter, so that a copy scores 1, except where the motion
    of the truth is known. Needs a video that starts with the sound."""

    name = "mouth"
    version = 1
    judge = "MotionMeter; no detector, whole pictures"
    faces = DRAWN
    outputs = (ScoreOutput("mouth_r", "mouth opening against the truth, r", "higher"),)

    def __init__(self, critic: str = "motion") -> None:
        self.critic = MotionMeter.from_pretrained(critic)

    def score(self, clip: ScoredClip) -> Values:
        true = clip.true
        shown = clip.video.squares.each(self.critic.mouth_open).double().cpu().numpy()
        known = (
            true.squares.each(self.critic.mouth_open)
            if true.motion is None
            else true.motion[:, MOUTH_OPEN]
        )
        num = min(len(shown), len(known))
        r = pearson(shown[:num], known[:num].double().cpu().numpy())
        return Values({"mouth_r": r}, {"mouth_r": list(enumerate(shown.tolist()))})


class StyleScorer(NetworkScorer[MotionMeter]):
    """Distance of habits read from both clips by the motion meter (readings.style_distance)."""

    name = "style"
    version = 1
    judge = "MotionMeter; no detector, whole pictures"
    faces = DRAWN
    outputs = (ScoreOutput("style", "style distance to the reference", "lower"),)

    def __init__(self, critic: str = "motion") -> None:
        self.critic = MotionMeter.from_pretrained(critic)

    def score(self, clip: ScoredClip) -> Values:
        own, shown = (read_motion(self.critic, of) for of in (clip.video, clip.reference))
        return Values({"style": style_distance(own, shown)})


class StyleLandmarksScorer(Scorer):
    """Distance of habits read from landmarks of both clips, where the face was found."""

    name = "style_landmarks"
    version = 1
    judge = "motion of dlib's 68 landmarks; dlib's HOG detector"
    faces = REAL
    outputs = (
        ScoreOutput("style_landmarks", "style distance to the reference, landmarks", "lower"),
    )

    def __init__(self) -> None:
        if not is_available():
            raise ImportError(HOW_TO_INSTALL)

    def score(self, clip: ScoredClip) -> Values:
        distance = style_distance(_seen(clip.video), _seen(clip.reference))
        return Values({self.name: distance}, notes=face_notes(clip.video))


def _seen(footage: Footage) -> Motion:
    track, (height, width) = footage.track, footage.size
    motion = motion_from_landmarks(track.landmarks, track.found, width / height)
    return motion[track.found].double().numpy()


SCORERS = (MouthScorer, StyleScorer, StyleLandmarksScorer)
