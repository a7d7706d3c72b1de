"""Can the file be read at all, and is it the same as another?"""

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from avatar_v.media.reading import probe
from avatar_v_data.curation.stages import Reads, Result, Seen, Stage

BLOCK = 1 << 20


@dataclass(frozen=True)
class ProbeStage(Stage):
    """Streams, length and the SHA-256 of the file. A new version has all stages read it again."""

    name: ClassVar[str] = "probe"
    version: ClassVar[int] = 2
    reads: ClassVar[Reads] = "file"
    needs: ClassVar[tuple[str, ...]] = ()

    def run(self, seen: Seen) -> Result:
        path = seen.recording.path
        info = probe(path)
        if info.no_video or info.no_audio:
            raise ValueError(info.no_video or info.no_audio)
        digest = hashlib.sha256()
        with Path(path).open("rb") as file:
            while block := file.read(BLOCK):
                digest.update(block)
        return {
            "sha256": digest.hexdigest(),
            "duration_s": info.duration_s,
            "width": info.width,
            "height": info.height,
            "frame_rate_hz": info.frame_rate_hz,
            "sample_rate_hz": info.sample_rate_hz,
            "colours": info.colours,
        }
