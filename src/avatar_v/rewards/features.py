"""Features: what a preference model reads of a clip, as one row of numbers.

Parts of it stand side by side: what the critics of the world say (clip_features.py), what a video
encoder does (video_features.py), and what scorers do (score_features.py).
"""

import dataclasses
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from avatar_v.rewards.clip_features import ClipFeatures
from avatar_v.rewards.feature_part import FeaturePart
from avatar_v.rewards.score_features import ScoreFeatures
from avatar_v.rewards.video_features import VideoFeatures


@dataclass(frozen=True)
class FeatureSources:
    """The networks that are read, by shipped names or folders; "" for one that is not."""

    motion: str = "motion"
    face: str = "face"
    sync: str = "sync"
    video: str = ""  # the folder of a video encoder, as what follows in VideoFeatures
    num_frames: int = 0
    num_windows: int = 0
    scorers: tuple[str, ...] = ()  # as in ScoreFeatures

    @property
    def names(self) -> tuple[str, ...]:
        """Those that are read."""
        read = (self.motion, self.face, self.sync, self.video, *self.scorers)
        return tuple(name for name in read if name)


KINDS = {ClipFeatures, VideoFeatures, ScoreFeatures}
CRITICS = FeatureSources()
"""The critics that ship."""


class Features:
    """A callable as its parts. ValueError unless these are of KINDS, each once at most."""

    def __init__(self, parts: Sequence[FeaturePart]) -> None:
        kinds = [type(part) for part in parts]
        if not kinds or len(set(kinds)) < len(kinds) or not KINDS.issuperset(kinds):
            raise ValueError(
                "features are of ClipFeatures, VideoFeatures and ScoreFeatures, each once, got "
                f"{[kind.__name__ for kind in kinds]}"
            )
        self.parts = tuple(parts)

    @classmethod
    def of(cls, read: FeatureSources) -> "Features":
        """Features of these networks; errors as those of the parts."""
        parts: list[FeaturePart] = []
        if read.motion or read.face or read.sync:
            parts.append(ClipFeatures(read.motion, read.face, read.sync))
        if read.video:
            parts.append(VideoFeatures(read.video, read.num_frames, read.num_windows))
        if read.scorers:
            parts.append(ScoreFeatures(read.scorers))
        return cls(parts)

    @property
    def sources(self) -> FeatureSources:
        """The arguments that build the same features again."""
        read = FeatureSources("", "", "")
        for part in self.parts:
            read = dataclasses.replace(read, **part.config)
        return read

    @property
    def num(self) -> int:
        """Numbers in a row."""
        return sum(part.num for part in self.parts)

    def hash(self) -> str:
        """12 hex digits that change with any part."""
        hashes = [part.hash() for part in self.parts]
        if len(hashes) == 1:
            return hashes[0]
        return hashlib.sha256("".join(hashes).encode()).hexdigest()[:12]

    def __call__(self, *inputs: Tensor) -> Float[Tensor, "b d"]:
        """Rows of clips, part after part; each takes what a `FeaturePart` takes."""
        return torch.cat([part(*inputs) for part in self.parts], dim=1)
