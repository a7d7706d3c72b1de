"""Likeness with the reference clip or the scene image, 2 frames a second, and its drift."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from avatar_v.critics import dino
from avatar_v.faces import arcface, dlib_face
from avatar_v.faces.face import FaceCritic
from avatar_v.faces.face_track import HOW_TO_INSTALL, is_available
from avatar_v.scoring.clip import Footage, ScoredClip
from avatar_v.scoring.readings import (
    face_notes,
    face_reading,
    likeness_outputs,
    mean_direction,
)
from avatar_v.scoring.sampling import sampled
from avatar_v.scoring.scorer import ANY, DRAWN, REAL, NetworkScorer, Scorer
from avatar_v.scoring.values import ScoreOutput, Values


class FaceWorldScorer(NetworkScorer[FaceCritic]):
    """Of drawn faces: cosine with the direction of the reference frames' mean."""

    name = "face_world"
    version = 1
    judge = "FaceCritic; no detector, whole pictures"
    faces = DRAWN
    outputs = likeness_outputs("face_world", "face similarity", "world critic")

    def __init__(self, critic: str = "face") -> None:
        self.critic = FaceCritic.from_pretrained(critic)

    def score(self, clip: ScoredClip) -> Values:
        chosen = sampled(clip.video.num_frames)
        own = self._embedded(clip.reference, sampled(clip.reference.num_frames))
        cosines = self._embedded(clip.video, chosen) @ mean_direction(own)
        return face_reading(self.name, cosines.tolist(), chosen)

    def _embedded(self, footage: Footage, chosen: list[int]) -> Float[Tensor, "n d"]:
        return footage.squares.each(lambda frames: self.critic.measure(frames).values, chosen)


class FaceDlibScorer(Scorer):
    """Of real faces by dlib: distance to the reference clip's mean embedding, of frames in which
    the face was found. Offline in the extra [faces]; below 0.6 dlib takes two faces for one's."""

    name = "face_dlib"
    version = 1
    judge = "dlib_face_recognition_resnet_model_v1; dlib's HOG detector, 68 landmarks"
    faces = REAL
    outputs = (
        ScoreOutput("face_dlib", "face distance, dlib", "lower"),
        ScoreOutput("face_dlib_drift", "face distance, first quarter less last", "zero"),
        ScoreOutput("face_dlib_found", "sampled frames with a face, dlib", "higher"),
    )

    def __init__(self) -> None:
        if not is_available():
            raise ImportError(HOW_TO_INSTALL)

    @property
    def weights(self) -> str:
        return dlib_face.weights_hash()

    def score(self, clip: ScoredClip) -> Values:
        chosen = self._found(clip.video)
        own = self._embedded(clip.reference, self._found(clip.reference)).mean(0)
        distances = (self._embedded(clip.video, chosen) - own).norm(dim=1)
        reading = face_reading(self.name, distances.tolist(), chosen, face_notes(clip.video))
        share = len(chosen) / len(sampled(clip.video.num_frames))
        return _with_found(self.name, reading, share)

    def _found(self, footage: Footage) -> list[int]:
        frames = [i for i in sampled(footage.num_frames) if bool(footage.track.found[i])]
        if not frames:
            raise ValueError(f"no face was found in any sampled frame of {footage.name}")
        return frames

    def _embedded(self, footage: Footage, frames: list[int]) -> Float[Tensor, "n 128"]:
        parts = [
            dlib_face.embed_faces(pictures, footage.track.landmarks[numbers]).values
            for numbers, pictures in footage.blocks(frames)
        ]
        return torch.cat(parts)


class ArcFaceScorer(NetworkScorer[arcface.ArcFace]):
    """Of real faces by ArcFace, as the field reports it (Avatar V §7.2): cosine with the reference
    clip, of the frames in which the detector sees a face."""

    name = "face_arcface"
    version = 1
    judge = "ArcFace and its SCRFD, as the weights' folder has them"
    faces = REAL
    outputs = (
        *likeness_outputs("face_arcface", "face similarity", "ArcFace"),
        ScoreOutput("face_arcface_found", "sampled frames with a face, SCRFD", "higher"),
    )
    needs_weights = arcface.SOURCE

    def __init__(self, weights: str) -> None:
        self.critic = arcface.ArcFace(weights)

    def score(self, clip: ScoredClip) -> Values:
        chosen = sampled(clip.video.num_frames)
        rows, found = self._embedded(clip.video, chosen)
        own, seen = self._embedded(clip.reference, sampled(clip.reference.num_frames))
        if not bool(found.any()) or not bool(seen.any()):
            where = "the reference" if bool(found.any()) else "the video"
            raise ValueError(f"SCRFD found no face in any sampled frame of {where}")
        cosines = rows[found] @ mean_direction(own[seen])
        frames = [frame for frame, one in zip(chosen, found.tolist(), strict=True) if one]
        reading = face_reading(self.name, cosines.tolist(), frames)
        return _with_found(self.name, reading, float(found.float().mean()))

    def _embedded(
        self, footage: Footage, chosen: list[int]
    ) -> tuple[Float[Tensor, "n 512"], Bool[Tensor, " n"]]:
        parts = [self.critic.measure(frames) for _, frames in footage.blocks(chosen)]
        return torch.cat([s.values for s, _ in parts]), torch.cat([found for _, found in parts])


class DinoScorer(NetworkScorer[dino.Dino]):
    """Cosine of whole pictures (their centre, where they are oblong) with the scene image (Live
    Avatar, table 2)."""

    name = "dino"
    version = 1
    judge = "DINO of the weights' folder, class token; no detector"
    faces = ANY
    outputs = (
        ScoreOutput("dino", "DINO similarity to the scene image", "higher"),
        ScoreOutput("dino_drift", "DINO similarity lost, first quarter to last", "zero"),
    )
    needs_weights = dino.SOURCE

    def __init__(self, weights: str) -> None:
        self.critic = dino.Dino(weights)

    def score(self, clip: ScoredClip) -> Values:
        chosen = sampled(clip.video.num_frames)
        scene = self.critic.measure(clip.image[None]).values[0]
        cosines = clip.video.each(lambda x: self.critic.measure(x).values @ scene, chosen)
        return face_reading(self.name, cosines.tolist(), chosen)


def _with_found(name: str, reading: Values, share: float) -> Values:
    return Values({**reading.values, f"{name}_found": share}, reading.frames, reading.notes)


SCORERS = (FaceWorldScorer, FaceDlibScorer, ArcFaceScorer, DinoScorer)
