"""Videos for pairs that were made elsewhere: a folder of files, each named by the clip it is of.

``CLIP.mp4`` speaks the sound of the clip with that key, from its beginning. Motion is read of the
pictures, as that of a reference is.
"""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from jaxtyping import Float, UInt8
from torch import Tensor

from avatar_v.base.video_format import VideoFormat, checked_rate
from avatar_v.inputs.reference_clip import read_reference
from avatar_v.motion.extractors import Extractor, find_extractor
from avatar_v.pairs.making import Conditions, Made
from avatar_v.shards.schema import Meta
from avatar_v.types import MOTION_NAMES


@dataclass(frozen=True)
class MadeVideos:
    """The videos of one system, which are there already; seeds change nothing."""

    name: str
    files: dict[str, Path]  # by the key of the clip
    video: VideoFormat
    face_crop: bool
    extractor: Extractor | None

    @classmethod
    def load(cls, folder: str, *, video: VideoFormat, face_crop: bool, motion: str) -> "MadeVideos":
        """``motion``: what reads it (motion/extractors.py). ValueError for a folder without
        videos."""
        files = {path.stem: path for path in sorted(Path(folder).glob("*.mp4"))}
        if not files:
            raise ValueError(f"{folder}: no videos in it; expected CLIP.mp4, by the keys of clips")
        return cls(folder, files, video, face_crop, find_extractor(motion, face_crop=face_crop))

    @property
    def size(self) -> tuple[int, int]:
        return self.video.size

    @property
    def frame_rate_hz(self) -> None:
        """Files are read at the rate of the conditions."""

    def samples(self, conditions: Conditions, seeds: Sequence[int]) -> Made:
        """The beginnings of the files, as long as the conditions. ValueError for a file that is
        shorter, and as `reference_clip.read_reference`."""
        made = [self._read(self.files[of.key], of.meta) for of in conditions.clips]
        motion, video = zip(*made, strict=True)
        return Made(torch.stack(motion), torch.stack(video))

    def _read(
        self, path: Path, meta: Meta
    ) -> tuple[Float[Tensor, "f m"], UInt8[Tensor, "f 3 h w"]]:
        num_frames, rate = meta.num_frames, checked_rate(meta.frame_rate_hz)
        read = read_reference(
            path,
            video=dataclasses.replace(self.video, frame_rate_hz=rate),
            seconds=(num_frames - 1) / rate,
            face_crop=self.face_crop,
            extractor=self.extractor,
        )
        if read.num_frames < num_frames:
            raise ValueError(
                f"{path}: {read.num_frames} frames, expected {num_frames} or more; lower --frames"
            )
        nothing = torch.zeros(num_frames, len(MOTION_NAMES))
        return nothing if read.motion is None else read.motion, read.video
