"""The speed of a system as its timing says. Notes name the hardware: compare numbers of the same
hardware only."""

from avatar_v.scoring.clip import ScoredClip
from avatar_v.scoring.scorer import ANY, Scorer
from avatar_v.scoring.values import ScoreOutput, Values
from avatar_v_eval.scoring.timing import load_timing


class FpsScorer(Scorer):
    """Frames of the video per second of wall clock."""

    name = "fps"
    version = 1
    judge = "wall clock"
    faces = ANY
    outputs = (ScoreOutput("fps", "FPS", "higher", "frames/s"),)
    reads_timing = True

    def score(self, clip: ScoredClip) -> Values:
        timing = load_timing(clip.timing)
        return Values({"fps": clip.video.num_frames / timing.total_s}, notes=timing.notes)


class TtffScorer(Scorer):
    """Time to first frame of streaming systems, the sound's arrival included (Live Avatar, table
    2)."""

    name = "ttff"
    version = 1
    judge = "wall clock"
    faces = ANY
    outputs = (ScoreOutput("ttff", "time to first frame, sound's arrival included", "lower", "s"),)
    reads_timing = True

    def score(self, clip: ScoredClip) -> Values:
        timing = load_timing(clip.timing)
        if timing.ttff_s is None:
            raise ValueError("the system reports no time to first frame")
        return Values({"ttff": timing.ttff_s}, notes=timing.notes)


SCORERS = (FpsScorer, TtffScorer)
