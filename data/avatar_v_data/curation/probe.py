"""Can the file be read at all, and how large is its picture?"""

from dataclasses import dataclass
from typing import ClassVar

from avatar_v.media.reading import iter_video, probe
from avatar_v_data.curation.stages import Reader, Reads, Seen, Stage


@dataclass(frozen=True)
class ProbeStage(Stage):
    """A file without pictures or without sound is refused. ``height`` is that of the picture as it
    is shown, of a turned film too; ``seconds`` are those of the file's header. A new version has
    all stages read all files again."""

    name: ClassVar[str] = "probe"
    version: ClassVar[int] = 5
    reads: ClassVar[Reads] = "file"

    def begin(self, seen: Seen) -> Reader:
        info = probe(seen.recording.path)
        if info.no_video or info.no_audio:
            raise ValueError(info.no_video or info.no_audio)
        shown = next(iter_video(seen.recording.path))
        return Reader({"height": shown.shape[1], "seconds": info.duration_s})
